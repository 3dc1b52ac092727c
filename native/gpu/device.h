// A GPU, or the CPU that stands in for one in tests: memory, streams, launches. The runtime is found with
// dlopen when it is first needed; the library links to none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/launch.h"

namespace graphopt::gpu {

// Device code for one architecture: an ELF file for AMD, a cubin for NVIDIA.
struct CodeObject {
  const char* arch;
  const char* module;  // the source file it comes from
  const void* data;
  size_t size;
};

// What was compiled into this library; empty when no compiler for device code was found at build time.
const std::vector<CodeObject>& code_objects();

// The addresses that the buffers of a plan stand for.
struct Memory {
  const void* const* inputs = nullptr;
  void* const* outputs = nullptr;
  void* const* workspace = nullptr;
  void* weights = nullptr;
};

// There is no runtime for this kind of device on this machine.
class NoRuntime : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Methods throw std::runtime_error with the runtime's name for the status. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceFacts& facts() const = 0;
  // Which of the machine's devices is current in the calling thread.
  virtual int current() const = 0;
  virtual void launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds,
                      void** args, void* stream) = 0;
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;
  virtual void synchronize(void* stream) = 0;

  // Enqueues all launches of a plan.
  void run(const Plan& plan, const Memory& memory, void* stream);
};

// The device that is current in the calling thread's HIP or CUDA context. Throws std::runtime_error when
// there is no runtime, no device, or no code object for it.
std::unique_ptr<Device> open_hip();
std::unique_ptr<Device> open_cuda();
// Kernels compiled for the CPU (hip/host/hip_on_cpu.h) in the shared library at `path`.
std::unique_ptr<Device> open_host(const std::string& path);

}  // namespace graphopt::gpu
