// Device memory that is kept for the next request: in steady state nothing is asked of the driver.
//
// A block that was handed out for a stream may be handed out again for that stream as soon as it is freed,
// since the stream's work runs in order; for other streams only once that work is known to be done (retire).
//
// A pool with a limit has at most so many bytes of the device, with what it keeps: a session with a memory_limit has one
// of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "device/allocations.h"
#include "device/device.h"

namespace graphopt::provider {

// The smallest of few sizes that holds `bytes`: so many steps, at most `steps`, of a power of two from `least` on. Throws
// gpu::OutOfMemory for more than any device has.
size_t few_sizes(size_t bytes, size_t least, size_t steps);

// Thread-safe.
class Pool {
 public:
  // A pool of the memory of gpu::device(number), which is opened when it is first needed; of all of it where the limit
  // is 0.
  explicit Pool(int number, size_t limit = 0);
  // Gives back what it keeps; nothing is in use any more.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int number() const { return number_; }
  size_t limit() const { return limit_; }
  gpu::Device& device() const;
  bool is_of(const gpu::Device& device) const { return device_ == &device; }

  // The size of the smallest block that serves a request: an eighth more at most, of 4 KiB and up. Throws
  // gpu::OutOfMemory.
  static size_t block_size(size_t bytes);

  // `holder`: its use. For work on `stream`, or with null for work that is not known; a block of twice block_size(bytes) at most, and with
  // a limit exactly of that size, so that the limit holds or not by what is asked for and not by what was kept. Throws
  // gpu::OutOfMemory beyond the limit, and when the device has no memory left even after all pools have given back what
  // they keep.
  void* allocate(size_t bytes, const void* stream, gpu::Holder holder = gpu::Holder::kTensors);

  void free(void* memory);

  // All work on the stream is done.
  void retire(const void* stream);

  // All work on the stream is done, and there will be no more: another may get its address.
  void forget(const void* stream);

  struct Statistics {
    size_t in_use = 0, kept = 0, device_allocations = 0;
    size_t most = 0;  // in use and kept, at once
  };
  Statistics statistics() const;
  // In use, and kept (Holder::kIdle).
  gpu::BytesByHolder bytes() const;
  // Waits for the device and frees idle blocks; false when there are none.
  bool trim();

 private:
  struct Block {
    size_t bytes = 0;
    const void* stream = nullptr;
    gpu::Holder holder = gpu::Holder::kTensors;
  };
  struct FreeBlock {
    void* memory;
    uint64_t since;
  };
  using FreeBlocks = std::multimap<size_t, FreeBlock>;

  void* take(FreeBlocks& blocks, size_t least, size_t most);
  // A block that was kept; null when there is none.
  void* take(size_t least, size_t most, const void* stream);
  void retire_locked(const void* stream);
  // Gives back those that have been kept for the longest time, until so many bytes more are within the limit.
  void make_room(size_t bytes);

  int number_;
  size_t limit_;
  mutable std::atomic<gpu::Device*> device_{nullptr};
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> used_;
  std::map<const void*, FreeBlocks> free_;  // by the stream whose work may still use them; null: none
  uint64_t clock_ = 0;
  Statistics statistics_;
};

// Registers a session's function that gives idle memory back when a device is exhausted, and returns false when there is
// none. Called until `owner` is gone.
void on_shortage(std::weak_ptr<void> owner, std::function<bool()> give_back);

// The pool of a device of gpu::device(number) that all sessions without a limit share.
Pool& pool(int number);

// JSON: what all pools of the process have, and what this library has of its devices' memory in all
// (docs/native_library.md).
std::string describe_memory();

}  // namespace graphopt::provider
