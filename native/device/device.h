// A GPU, or the CPU that stands in for one in tests: memory, streams, launches. The runtime is found with
// dlopen when it is first needed; the library links to none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/launch.h"

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
// The source file that a kernel comes from, known when the library is built: a driver is never asked for a
// kernel that a module lacks. Null for a kernel that is in none.
const char* module_of(const std::string& kernel);
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

// Launches and copies that were recorded, to be enqueued as one. The device must be current where one is
// destroyed, and no longer run it.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(void* stream) = 0;
};

// Methods throw std::runtime_error with the runtime's name for the status. Thread-safe. Streams and events
// are the runtime's own (hipStream_t, CUevent, ...).
class Device {
 public:
  virtual ~Device() = default;
  virtual Backend backend() const = 0;
  virtual const DeviceFacts& facts() const = 0;
  // Makes this device current in the calling thread, as all methods below need it; returns what was current
  // before, for leave(). Call through OnDevice.
  virtual void* enter() = 0;
  virtual void leave(void* before) noexcept = 0;
  virtual void launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds,
                      void** args, void* stream) = 0;
  virtual void* allocate(size_t bytes) = 0;  // throws OutOfMemory
  virtual void free(void* memory) noexcept = 0;
  // Memory of the host from which the device copies on its own; for good. Throws OutOfMemory.
  virtual void* allocate_pinned(size_t bytes) = 0;
  virtual void synchronize(void* stream) = 0;
  virtual void synchronize() = 0;  // all streams

  // Between any of host and device. When one of them is host memory that is not pinned, the call waits.
  virtual void copy(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual void* create_stream() = 0;  // does not wait for the default stream
  virtual void destroy_stream(void* stream) noexcept = 0;
  virtual void* create_event() = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  virtual void record(void* event, void* stream) = 0;
  virtual void wait(void* stream, void* event) = 0;  // work enqueued from now on waits for the event
  virtual void wait(void* event) = 0;                // the calling thread waits
  virtual bool is_done(void* event) = 0;

  // What is enqueued on the stream from now on is recorded and not run, until the recording is ended or
  // abandoned. The stream is not the null stream; in between this thread does nothing with the device but
  // enqueue on it.
  virtual void begin_capture(void* stream) = 0;
  // Throws, and ends it all the same, when something was called that can't be recorded.
  virtual std::unique_ptr<Graph> end_capture(void* stream) = 0;
  virtual void abandon_capture(void* stream) noexcept = 0;
  // Whether the stream records; also after something was called that can't be recorded.
  virtual bool is_capturing(void* stream) = 0;
  // Throws when a recording on the stream has come to nothing.
  virtual void check_capture(void* stream) = 0;

  // After a call of one of the vendor's libraries, which may have left an error in the thread: others would
  // take it for theirs.
  virtual void forget_errors() noexcept = 0;

  // Enqueues all launches of a plan.
  void run(const Plan& plan, const Memory& memory, void* stream);
};

// A device is current in the calling thread while one lives, and then what was before: the thread is the
// caller's.
class OnDevice {
 public:
  explicit OnDevice(Device& device) : device_(device), before_(device.enter()) {}
  ~OnDevice() { device_.leave(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  Device& device_;
  void* before_;
};

// Why something is not there: a word for programs (report.h lists them), a sentence for people, and a command
// or step that mends it. All empty when nothing is wrong.
struct Problem {
  std::string code, text;
  std::string mend = {};
};

// What a driver says of its devices without opening any.
struct FoundDevice {
  DeviceFacts facts;
  Problem problem;  // why it can't be used
};
struct Present {
  std::vector<FoundDevice> devices;
  std::string library;  // the runtime's file
  std::string version;  // of the runtime
  Problem problem;      // why there are no devices
};
Present find_hip();
Present find_cuda();

// A device of those. Throws std::runtime_error.
std::unique_ptr<Device> open_hip(int number, const DeviceFacts& facts);
std::unique_ptr<Device> open_cuda(int number, const DeviceFacts& facts);

// Which of AMD's devices is current in the calling thread.
int current_hip();

// Throws std::runtime_error in a process that was forked after its parent had looked for devices: no GPU
// runtime works there.
void refuse_fork();

// `count` times the value, float16 or float, on the device, which must be current. Kept for good.
void* constant_vector(Device& device, float value, bool half, int64_t count);

// Kernels compiled for the CPU (device/emulator/hip_on_cpu.h) in the shared library at `path`.
std::unique_ptr<Device> open_host(const std::string& path);

}  // namespace graphopt::gpu
