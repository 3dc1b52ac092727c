// What Linux shows of AMD GPUs to this process, without asking any driver, and why ROCm shows none: the
// runtime gives one error for all reasons. docs/provider_reference.md lists the codes.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace graphopt::gpu {

struct AmdSystem {
  int gpus = 0;                      // on the PCI bus, which containers see whole; WSL shows none there
  std::vector<std::string> unbound;  // those that the kernel's driver amdgpu does not have: "BUS: DRIVER"
  bool kfd = false;                  // the compute driver's device node is there
  std::string kfd_group;             // that may open it, by number where it has no name here
  std::string kfd_refusal;           // why this process can't open it, "" where it can
  int kfd_gpus = -1;                 // those that the compute driver has; -1 where it does not tell
  std::vector<std::string> render_nodes;  // /dev/dri/renderD*
  std::string render_group;               // that may open the first
  std::string render_refusal;             // why this process can open none of them, "" where it can
  bool dxg = false;                       // WSL's device node is there
  bool wsl = false;
  bool container = false;
  std::vector<std::string> unreadable;  // nodes of the compute driver's topology: GPUs of others
  std::vector<std::string>
      rocm;  // folders that hold the HIP runtime: /opt/rocm*/lib and core-*/lib there, $ROCM_PATH/lib

  bool may_have_gpu() const { return gpus > 0 || kfd || dxg; }
};

// Where the system lies: "/", but in tests.
std::string& system_root();

AmdSystem look_around(const std::string& root = system_root());

// Why there is no GPU, in the order in which ROCm would meet the obstacles, with what mends it. told: what
// find_hip() says of a runtime that is not there or shows none; other problems come back as they are.
Diagnosis why_no_gpu(const Diagnosis& told, const AmdSystem& system);

}  // namespace graphopt::gpu
