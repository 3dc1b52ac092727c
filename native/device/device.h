// A GPU, or the CPU that stands in for one in tests: memory, streams, launches. The runtime is found with
// dlopen when it is first needed; the library links to none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

// The device has failed: no call of its driver succeeds in this process any more.
class DeviceLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Launches and copies that were captured, to be enqueued as one: a sequence of the driver's graphs. The device must be
// current where one is destroyed, and no longer run it.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(void* stream) = 0;
};

// Launches that one call of a vendor's library adds to a graph, at most.
constexpr size_t kNodesOfLibraryCall = 8;

// How far graphs of a driver can be relied on (docs/amd_behaviour.md).
struct GraphRules {
  bool by_default = true;  // used unless the session's options say otherwise
  size_t most_nodes = 0;   // of one graph; 0: any number
  bool verified = false;   // results are compared with those of launches before a graph is used
  bool whole_ext_launches =
      true;  // hipExtModuleLaunchKernel, which MIOpen calls, is captured with its whole grid
};

// Methods throw std::runtime_error with the runtime's name for the status, and DeviceLost from the first failure on that
// no call survives. Thread-safe. Streams and events are the runtime's own (hipStream_t, CUevent, ...).
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
  // For gpu::allocate (device/allocations.h) alone, which all others call. Throws OutOfMemory.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;
  // Memory of the host from which the device copies on its own; for good. Throws OutOfMemory.
  virtual void* allocate_pinned(size_t bytes) = 0;
  // Bytes; nothing when they are not known.
  struct MemoryInfo {
    size_t free = 0, total = 0;
  };
  virtual std::optional<MemoryInfo> memory_info() { return std::nullopt; }
  virtual void synchronize(void* stream) = 0;

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

  // Work that is enqueued on the stream from now on is captured and not run, until the capture is ended or abandoned.
  // The stream is not the null stream; in between this thread does nothing with the device but enqueue on it. Call
  // through Capture (device/stream_context.h).
  virtual void begin_capture(void* stream) = 0;
  // Throws when something was called that can't be captured. The stream can be used again all the same.
  virtual std::unique_ptr<Graph> end_capture(void* stream) = 0;
  virtual void abandon_capture(void* stream) noexcept = 0;
  // Whether the stream is captured; also after something was called that can't be captured.
  virtual bool is_capturing(void* stream) = 0;
  // Throws when a capture on the stream has failed.
  virtual void check_capture(void* stream) = 0;
  // The graphs of this thread's capture get at most so many nodes each; 0: any number.
  virtual void limit_capture(size_t nodes) { (void)nodes; }
  // Reserves room for `nodes` launches in the current graph of this thread's capture; begins the next graph when there
  // is none. Does nothing without a capture.
  virtual void reserve_nodes(size_t nodes) { (void)nodes; }
  virtual GraphRules graph_rules() const { return {}; }
  // Sets how the calling thread's calls meet captures of other threads (hipStreamCaptureMode); returns the mode before.
  // Call through OnDevice. The numbers are the same in HIP and in CUDA.
  static constexpr int kRelaxed = 2;
  virtual int exchange_capture_mode(int mode) noexcept { return mode; }

  // After a call of one of the vendor's libraries, which may have left an error in the thread: others would
  // take it for theirs.
  virtual void forget_errors() noexcept = 0;

  // Enqueues all launches of a plan.
  void run(const Plan& plan, const Memory& memory, void* stream);
};

// While one lives, a device is current in the calling thread, and captures of other threads do not concern it: without
// that the driver refuses calls that allocate or wait, those inside vendor libraries included, while PyTorch captures on
// another thread, and ends that capture. Both are then as before: the thread is the caller's.
class OnDevice {
 public:
  explicit OnDevice(Device& device)
      : device_(device), before_(device.enter()), mode_(device.exchange_capture_mode(Device::kRelaxed)) {}
  ~OnDevice() {
    device_.exchange_capture_mode(mode_);
    device_.leave(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  Device& device_;
  void* before_;
  int mode_;
};

// A stream for work that belongs to no run: constants, weights, checks of libraries. Work on the null stream would end
// every capture of the process on ROCm. The device must be current.
class WorkStream {
 public:
  explicit WorkStream(Device& device) : device_(device), stream_(device.create_stream()) {}
  ~WorkStream() { device_.destroy_stream(stream_); }
  WorkStream(const WorkStream&) = delete;
  WorkStream& operator=(const WorkStream&) = delete;

  void* get() const { return stream_; }
  void synchronize() const { device_.synchronize(stream_); }

 private:
  Device& device_;
  void* stream_;
};

// Why something is not there: a word for programs (report.h lists them), a sentence for people, and a command
// or step that mends it. All empty when nothing is wrong.
struct Diagnosis {
  std::string code, text;
  std::string mend = {};
};

// What a driver says of its devices without opening any.
struct FoundDevice {
  DeviceFacts facts;
  Diagnosis problem;  // why it can't be used
};
struct Present {
  std::vector<FoundDevice> devices;
  std::string library;  // the runtime's file
  std::string version;  // of the runtime
  Diagnosis problem;    // why there are no devices
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
