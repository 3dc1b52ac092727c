// Objects that belong to one stream of a device. They are made before anything is captured on the stream, and end in the
// order of this table:
//
// | object                                 | created                                 | ends
// |----------------------------------------|-----------------------------------------|--------------------------
// | 1. captured graphs, plans, their arena | by the runs of a session                | close(): GraphOwner::release
// | 2. handles of BLAS, BLAS-Lt and DNN    | when a plan first needs the library     | with the context
// | 3. the workspace of a handle           | with the handle                         | after the handle
// | 4. the stream                          | create(); a stream of `of` is another's | after the handles
//
// No handle serves two streams: libraries share no state between them, and a graph keeps the workspace with which it was
// captured. A context without a session is kept for the next one: libraries wait for the whole device where a handle is
// destroyed (cublasDestroy, rocblas_destroy_handle), which ends captures of other threads, PyTorch's among them.
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
  // Waits until everything that it loads beside the runs is ready; returns how many kernels came since the last call.
  virtual size_t finish_loading() { return 0; }
  // The session of its stream has ended: no problem that it knows comes again.
  virtual void forget_problems() noexcept {}
  // Whether its calls can be captured. If not, nothing is captured on its stream.
  virtual bool can_be_captured() const { return true; }
};

// Owns graphs that were captured on a stream, with the memory that they use.
class GraphOwner {
 public:
  virtual ~GraphOwner() = default;
  // Destroys everything that refers to the stream. Called when its work is done, before another session has the stream.
  virtual void release(void* stream) noexcept = 0;
};

// Thread-safe.
class StreamContext {
 public:
  // A stream that does not wait for the default stream: one whose session has ended, or a new one. It is kept when the
  // last reference goes, after close(). The device must be current.
  static std::shared_ptr<StreamContext> create(Device& device);
  // Destroys the contexts of the device that no session has; false when there were none. Waits for the device, and for
  // captures to end. Not for a thread that captures.
  static bool destroy_idle(const Device& device) noexcept;
  // The context of a stream. That of another library's stream lives as long as the process: its end is not announced.
  static std::shared_ptr<StreamContext> of(Device& device, void* stream);
  // All that there are, on any device.
  static std::vector<std::shared_ptr<StreamContext>> all();
  // Waits for the work of all streams of the device that create() has made, one by one: hipDeviceSynchronize would end
  // every capture of the process. Streams of others are theirs to wait for. The device must be current.
  static void synchronize_all(Device& device);

  ~StreamContext();
  StreamContext(const StreamContext&) = delete;
  StreamContext& operator=(const StreamContext&) = delete;

  Device& device() const { return device_; }
  void* stream() const { return stream_; }
  // Unique in the process, unlike the stream's address: a stream that another session gets has a new number.
  uint64_t number() const { return number_; }

  // Waits for the stream's work. A stream that is captured has none, and is not touched; Capture waits for it first.
  void synchronize();
  // Whether the work up to an event of the stream is done.
  bool is_done(void* event);
  // Releases the graphs, when the stream's work is done.
  void close();

  // `release` is called before handles are destroyed. An owner that ends first detaches itself.
  void attach(std::weak_ptr<GraphOwner> owner);

  // The handle of `library`, created by `create` in the first call. Null with the reason if that failed, which is written to
  // stderr once and final until close().
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
  static void keep(StreamContext* context) noexcept;

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
  enum class Captured : uint8_t {
    kNo,
    kSoon,
    kYes
  };  // kSoon: the capturing thread waits for the stream's work
  Captured captured_ = Captured::kNo;
  int waiting_ = 0;  // threads that wait for the stream
  std::vector<std::weak_ptr<GraphOwner>> graphs_;
  std::map<const void*, Slot> handles_;  // by library
};

// While one lives nothing is captured, on any stream of the process: for calls of vendor libraries that may wait for the
// whole device or allocate inside, such as creating a handle. ROCm then invalidates every capture of the process, and
// hipBLASLt ends the process. Waits for captures to end, which takes the host milliseconds. Not for a thread that captures.
class NoCaptures {
 public:
  NoCaptures();
  ~NoCaptures();
  NoCaptures(const NoCaptures&) = delete;
  NoCaptures& operator=(const NoCaptures&) = delete;
};

// A capture on a stream by the calling thread, which does nothing with the device meanwhile but enqueue on the stream.
// Abandoned unless it is ended; the stream can be used again either way. The stream's work is waited for first: meanwhile
// other threads need not ask for it, which would end the capture.
class Capture {
 public:
  // `nodes`: of each graph at most; 0 for any number. Does not start while NoCaptures lives, nor on a stream that can't be
  // captured: see why_not. Throws std::runtime_error when the driver refuses.
  Capture(Device& device, void* stream, size_t nodes);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Why it has not started; null when it has.
  const char* why_not() const { return why_not_; }
  // Throws std::runtime_error when something was called that can't be captured.
  std::unique_ptr<Graph> end();

 private:
  void set_captured(StreamContext::Captured captured) noexcept;
  void leave() noexcept;

  Device& device_;
  std::shared_ptr<StreamContext> context_;
  const char* why_not_ = nullptr;
  bool open_ = false;  // the stream is being captured
};

}  // namespace graphopt::gpu
