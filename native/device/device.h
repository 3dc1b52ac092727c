// A GPU, or the CPU as its replacement in tests: memory, streams, launches. The GPU runtime is loaded with
// dlopen at the first use; this library links to no GPU runtime.
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
  const char* module;  // name of its source file
  const void* data;
  size_t size;
};

// Returns the code objects of this library. The list is empty if the build found no compiler for device code.
const std::vector<CodeObject>& code_objects();
// Returns the module that contains a kernel; null if none does. The build generates this table, so a driver is never
// queried for a kernel that a module lacks.
const char* module_of(const std::string& kernel);
// Returns the architectures of the code objects that begin with `prefix`, separated by spaces.
std::string architectures(const std::string& prefix);

// The addresses of a plan's buffers.
struct Memory {
  const void* const* inputs = nullptr;
  void* const* outputs = nullptr;
  void* const* workspace = nullptr;
  void* weights = nullptr;
};

// This machine has no runtime for this kind of device.
class NoRuntime : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The device does not have enough free memory.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Backend { kHip, kCuda, kHost };

// The device has failed: every further call of its driver in this process fails.
class DeviceLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Captured launches and copies, launched together as a sequence of driver graphs. At destruction the device
// must be current and must have completed the graph.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(void* stream) = 0;
};

// Maximum number of launches that one call of a vendor's library adds to a graph.
constexpr size_t kNodesOfLibraryCall = 8;

// The reliability of a driver's graphs (docs/amd_behaviour.md).
struct GraphRules {
  bool by_default = true;  // used unless a session option disables them
  size_t max_nodes = 0;    // of one graph; 0: unlimited
  // Whether a graph is used only after its results were compared with the results of single launches.
  bool verified = false;
  // Whether a captured hipExtModuleLaunchKernel, which MIOpen calls, runs its complete grid.
  bool captures_ext_launches = true;
};

// Methods throw std::runtime_error with the runtime's text for the status. After a failure that makes the
// device unusable they throw DeviceLost. Thread-safe. Streams and events are the runtime's types
// (hipStream_t, CUevent, ...).
class Device {
 public:
  virtual ~Device() = default;
  virtual Backend backend() const = 0;
  virtual const DeviceFacts& facts() const = 0;
  // Makes this device current in the calling thread, which all methods below require. Returns the previous
  // state for leave(). Use OnDevice instead of direct calls.
  virtual void* enter() = 0;
  virtual void leave(void* before) noexcept = 0;
  virtual void launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds,
                      void** args, void* stream) = 0;
  // Called only by gpu::allocate (device/allocations.h), which all other code uses. Throws OutOfMemory.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;
  // Allocates host memory that the device can access without the CPU. It is never freed. Throws OutOfMemory.
  virtual void* allocate_pinned(size_t bytes) = 0;
  // Bytes of device memory; memory_info() returns nothing if they are unknown.
  struct MemoryInfo {
    size_t free = 0, total = 0;
  };
  virtual std::optional<MemoryInfo> memory_info() { return std::nullopt; }
  virtual void synchronize(void* stream) = 0;

  // Copies between host and device in any direction. The call waits if one address is host memory that is not
  // pinned.
  virtual void copy(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual void* create_stream() = 0;  // does not wait for the default stream
  virtual void destroy_stream(void* stream) noexcept = 0;
  virtual void* create_event() = 0;
  // Creates an event that keeps the time when it is reached; only such events may be passed to microseconds().
  virtual void* create_timing_event() = 0;
  // Returns the time between two events that have been reached.
  virtual double microseconds(void* begin, void* end) = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  virtual void record(void* event, void* stream) = 0;
  virtual void wait(void* stream, void* event) = 0;  // later work on the stream waits for the event
  virtual void wait(void* event) = 0;                // the calling thread waits
  virtual bool is_done(void* event) = 0;

  // Captures the work that is enqueued on the stream, instead of running it, until the capture is ended or
  // abandoned. The stream must not be the null stream. During the capture this thread may only enqueue work
  // on the stream. Use Capture (device/stream_context.h) instead of direct calls.
  virtual void begin_capture(void* stream) = 0;
  // Throws if a call could not be captured. The stream remains usable.
  virtual std::unique_ptr<Graph> end_capture(void* stream) = 0;
  virtual void abandon_capture(void* stream) noexcept = 0;
  // Whether the stream is in a capture, also after a call that could not be captured.
  virtual bool is_capturing(void* stream) = 0;
  // Throws if a capture on the stream has failed.
  virtual void check_capture(void* stream) = 0;
  // Limits the nodes of each graph in the current capture of this thread; 0: unlimited.
  virtual void limit_capture(size_t nodes) { (void)nodes; }
  // Reserves `nodes` launches in the current graph of this thread's capture, and begins a new graph if they
  // exceed the limit. Does nothing without a capture.
  virtual void reserve_nodes(size_t nodes) { (void)nodes; }
  virtual GraphRules graph_rules() const { return {}; }
  // Sets the capture mode of the calling thread (hipStreamCaptureMode), which determines the effect of its
  // calls on captures of other threads. Returns the previous mode. The values are equal in HIP and CUDA. Use
  // OnDevice instead of direct calls.
  static constexpr int kRelaxed = 2;
  virtual int exchange_capture_mode(int mode) noexcept { return mode; }

  // Clears the last error of the thread after a call of a vendor's library. Other code would otherwise take this
  // error for its own.
  virtual void clear_errors() noexcept = 0;

  // Enqueues all launches of a plan.
  void run(const Plan& plan, const Memory& memory, void* stream);
};

// Makes a device current in the calling thread during its lifetime. It also lets the thread call any function of
// the driver while another thread, for example PyTorch's, captures. Without it, the driver would refuse calls that
// allocate or wait, including those inside vendor libraries, and would end the capture of the other thread. The
// destructor restores the caller's state.
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

// A stream for work outside runs: constants, weights, checks of libraries. On ROCm, work on the null stream
// would end every capture of the process. The device must be current.
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

// The reason why something is missing or unusable: a code for programs (listed in report.h), a sentence for
// users, and a command or step that solves the problem. All are empty if there is no problem.
struct Diagnosis {
  std::string code, text;
  std::string remedy = {};
};

// A device that a driver reports. It has not been opened.
struct FoundDevice {
  DeviceFacts facts;
  Diagnosis problem;     // why it is unusable
  int in_provider = -1;  // its index among the provider's devices; -1 if it is unusable
};
// A driver and the devices that it reports.
struct DetectedDriver {
  std::vector<FoundDevice> devices;
  std::string library;  // file of the runtime
  std::string version;  // of the runtime
  Diagnosis problem;    // why there are no devices
};
DetectedDriver find_hip();
DetectedDriver find_cuda();

// Opens a device that was found. Throws std::runtime_error.
std::unique_ptr<Device> open_hip(int number, const DeviceFacts& facts);
std::unique_ptr<Device> open_cuda(int number, const DeviceFacts& facts);

// Returns the number of the AMD device that is current in the calling thread.
int current_hip();

// Throws std::runtime_error in a process that was forked after its parent had looked for devices: GPU
// runtimes do not work in such a process.
void refuse_fork();

// Returns a device vector of `count` equal values, float16 or float. It is never freed. The device must be
// current.
void* constant_vector(Device& device, float value, bool half, int64_t count);

// Opens a device that runs kernels compiled for the CPU (device/emulator/hip_on_cpu.h), from the shared
// library at `path`.
std::unique_ptr<Device> open_host(const std::string& path);

}  // namespace graphopt::gpu
