// Counts the AMD GPUs that Linux shows to this process, and finds out why ROCm finds none: ROCm's runtime reports the
// same error for all reasons. Reads /sys and /proc and opens the drivers' device nodes, without ROCm.
// docs/provider_reference.md lists the codes.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace graphopt::gpu {

struct AmdSystem {
  int gpus = 0;                      // on the PCI bus; a container sees all of the machine, WSL sees none
  std::vector<std::string> unbound;  // GPUs without the kernel driver amdgpu: "BUS: DRIVER"
  bool kfd = false;                  // whether the compute driver's device node, /dev/kfd, exists
  std::string kfd_group;             // group with access to /dev/kfd; its ID if it has no name here
  std::string kfd_refusal;           // error of opening /dev/kfd; "" if this process can open it
  int kfd_gpus = -1;                 // GPUs that the compute driver lists; -1 if unknown
  std::string arch;                  // architecture of the first of these GPUs, "gfx1100"; "" if unknown
  std::vector<std::string> render_nodes;  // /dev/dri/renderD*
  std::string render_group;               // group with access to the first render node
  std::string render_refusal;  // error of opening the render nodes; "" if this process can open one
  bool dxg = false;            // whether WSL's device node, /dev/dxg, exists
  bool wsl = false;
  bool container = false;
  std::vector<std::string> unreadable;  // topology nodes of GPUs that are assigned to other containers
  // Folders with the HIP runtime, the newest last: /opt/rocm*/lib, /opt/rocm*/core-*/lib and $ROCM_PATH/lib.
  std::vector<std::string> rocm;

  bool may_have_gpu() const { return gpus > 0 || kfd || dxg; }
};

// The root of the file system: "/", except in tests.
std::string& system_root();

AmdSystem inspect_amd_system(const std::string& root = system_root());

// Returns why there is no GPU, with a remedy. Checks the obstacles in the order of ROCm's initialization.
// `reported`: the problem that find_hip() reports; only a missing runtime and missing devices are explained,
// other problems are returned unchanged.
Diagnosis explain_missing_gpu(const Diagnosis& reported, const AmdSystem& system);

}  // namespace graphopt::gpu
