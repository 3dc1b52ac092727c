// Objects that belong to one stream of a device. They are created before a capture on the stream begins, and are
// destroyed in the order of this table:
//
// | object                                 | created                                  | destroyed
// |----------------------------------------|------------------------------------------|--------------------------
// | 1. captured graphs, plans, their arena | by the runs of a session                 | close(): GraphOwner::release
// | 2. handles of BLAS, BLAS-Lt and DNN    | when a plan first needs the library      | with the context
// | 3. the workspace of a handle           | with the handle                          | after the handle
// | 4. the stream                          | create(); of(): another library          | after the handles
//
// No handle serves two streams. Streams therefore share no state of a library, and a graph keeps the
// workspace of its capture. The context of a closed session is reused by the next session and not destroyed:
// destroying a handle waits for the whole device (cublasDestroy, rocblas_destroy_handle), and this wait would
// end captures of other threads, such as PyTorch's.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"

namespace graphopt::gpu {

// A handle of a vendor's library on one stream.
class VendorHandle {
 public:
  virtual ~VendorHandle() = default;
  // Waits for everything that the handle loads in the background. Returns the number of problems whose
  // kernels were loaded since the last call.
  virtual size_t finish_loading() { return 0; }
  // Clears all cached problems. Called when the session of the handle's stream has ended.
  virtual void clear_problems() noexcept {}
  // Whether calls of the handle can be captured. If not, captures on its stream are not started.
  virtual bool can_be_captured() const { return true; }
};

// Owns graphs captured on a stream, and their memory.
class GraphOwner {
 public:
  virtual ~GraphOwner() = default;
  // Destroys everything that refers to the stream. Called when the stream's work is complete, before another
  // session uses the stream.
  virtual void release(void* stream) noexcept = 0;
};

// Thread-safe.
class StreamContext {
 public:
  // Returns a context whose stream does not wait for the default stream: the context of a closed session, or
  // a new one. After close() and the release of its last reference, the context is kept for reuse. The device
  // must be current.
  static std::shared_ptr<StreamContext> create(Device& device);
  // Destroys the device's contexts that no session uses. Returns false if there are none. Waits for the
  // device, and for captures to end. A thread that captures must not call this function.
  static bool destroy_idle(const Device& device) noexcept;
  // Returns the context of a stream. The context of a stream that another library created lives until the
  // process ends, because that library does not announce the destruction of its stream.
  static std::shared_ptr<StreamContext> of(Device& device, void* stream);
  // Returns all contexts of all devices.
  static std::vector<std::shared_ptr<StreamContext>> all();
  // Waits for the work of each of the device's streams from create(), because hipDeviceSynchronize would end
  // every capture of the process. Waiting for other streams is the task of their owners. The device must be
  // current.
  static void synchronize_all(Device& device);

  ~StreamContext();
  StreamContext(const StreamContext&) = delete;
  StreamContext& operator=(const StreamContext&) = delete;

  Device& device() const { return device_; }
  void* stream() const { return stream_; }
  // Unique in the process, unlike the address of the stream: a reused stream gets a new number.
  uint64_t number() const { return number_; }

  // Waits for the stream's work, except during a capture: then the stream has no work, because Capture waits
  // for the work before it begins.
  void synchronize();
  // Whether the work up to an event of the stream is complete. True during a capture, when the stream has no work.
  bool is_done(void* event);
  // Releases the graphs, and removes the context from the table that of() searches. The stream's work must be
  // complete.
  void close();

  // Registers an owner: its release() is called before the handles are destroyed. Destroyed owners are
  // ignored.
  void attach(std::weak_ptr<GraphOwner> owner);

  // Returns the handle of `library`; the first call creates it with `create`. If that fails, the handle is
  // null with a reason, which is written to stderr once. The failure is final until another session reuses
  // the context.
  struct Handle {
    VendorHandle* handle;
    const char* why;
  };
  Handle handle(const void* library, const std::function<std::unique_ptr<VendorHandle>()>& create);
  bool can_be_captured();
  size_t finish_loading();

 private:
  friend class Capture;
  StreamContext(Device& device, void* stream, bool owns);
  static void recycle(StreamContext* context) noexcept;

  struct Slot {
    std::unique_ptr<VendorHandle> handle;
    std::string why;
  };

  Device& device_;
  void* stream_;
  const bool owns_;
  uint64_t number_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  // kPending: the capturing thread waits for the stream's work.
  enum class Captured : uint8_t { kNo, kPending, kYes };
  Captured captured_ = Captured::kNo;
  int waiting_ = 0;  // number of threads that wait for the stream
  std::vector<std::weak_ptr<GraphOwner>> graphs_;
  std::map<const void*, Slot> handles_;  // by library
};

// Prevents captures on all streams of the process during its lifetime. It is needed for calls of vendor libraries
// that may allocate or wait for the whole device, such as the creation of a handle. During a capture, such a call
// would make ROCm invalidate every capture of the process, and hipBLASLt would end the process. The
// constructor waits for captures to end, which takes milliseconds of host time. A thread that captures must
// not create a NoCaptures object.
class NoCaptures {
 public:
  NoCaptures();
  ~NoCaptures();
  NoCaptures(const NoCaptures&) = delete;
  NoCaptures& operator=(const NoCaptures&) = delete;
};

// A capture on a stream by the calling thread. During the capture this thread may only enqueue work on the
// stream. Without end() the capture is abandoned; the stream remains usable in both cases. The constructor
// waits for the stream's work, so that other threads need not query the stream during the capture. Such a
// query would end the capture.
class Capture {
 public:
  // `nodes`: maximum number of nodes of each graph; 0: unlimited. Does not start a capture during NoCaptures,
  // or on a stream that cannot be captured: see why_not. Throws std::runtime_error if the driver refuses.
  Capture(Device& device, void* stream, size_t nodes);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // The reason why the capture has not started; null if it has.
  const char* why_not() const { return why_not_; }
  // Throws std::runtime_error if a call could not be captured.
  std::unique_ptr<Graph> end();

 private:
  void set_captured(StreamContext::Captured captured) noexcept;
  void leave() noexcept;

  Device& device_;
  std::shared_ptr<StreamContext> context_;
  const char* why_not_ = nullptr;
  bool open_ = false;  // a capture is active on the stream
};

}  // namespace graphopt::gpu
