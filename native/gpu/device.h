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
// Their architectures that begin with `prefix`, separated by spaces.
std::string architectures(const std::string& prefix);

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

// The device has no memory of that size left.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Backend { kHip, kCuda, kHost };

// Methods throw std::runtime_error with the runtime's name for the status. Thread-safe. Streams and events
// are the runtime's own (hipStream_t, CUevent, ...).
class Device {
 public:
  virtual ~Device() = default;
  virtual Backend backend() const = 0;
  virtual const DeviceFacts& facts() const = 0;
  // Which of the machine's devices is current in the calling thread.
  virtual int current() const = 0;
  // Makes this device current in the calling thread, as all methods below and current() need it.
  virtual void make_current() = 0;
  virtual void launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds,
                      void** args, void* stream) = 0;
  virtual void* allocate(size_t bytes) = 0;  // throws OutOfMemory
  virtual void free(void* memory) noexcept = 0;
  virtual void synchronize(void* stream) = 0;
  virtual void synchronize() = 0;  // all streams

  // Between any of host and device. When `to` is host memory that is not pinned, the call waits.
  virtual void copy(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual void* create_stream() = 0;  // does not wait for the default stream
  virtual void destroy_stream(void* stream) noexcept = 0;
  virtual void* create_event() = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  virtual void record(void* event, void* stream) = 0;
  virtual void wait(void* stream, void* event) = 0;  // work enqueued from now on waits for the event
  virtual void wait(void* event) = 0;                // the calling thread waits

  // Enqueues all launches of a plan.
  void run(const Plan& plan, const Memory& memory, void* stream);
};

// A device by its number. Throws std::runtime_error when there is no runtime (NoRuntime), no such device, or
// no code object for it.
std::unique_ptr<Device> open_hip(int number = 0);
std::unique_ptr<Device> open_cuda(int number = 0);

// How many devices a driver shows, and which of them is current in the calling thread.
struct Present {
  int count = 0;
  int current = 0;
};
// None when there is no runtime.
Present find_hip();
Present find_cuda();
// Kernels compiled for the CPU (hip/host/hip_on_cpu.h) in the shared library at `path`.
std::unique_ptr<Device> open_host(const std::string& path);

}  // namespace graphopt::gpu
