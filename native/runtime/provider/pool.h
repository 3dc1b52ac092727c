// Device memory that is kept for the next request: in steady state nothing is asked of the driver.
//
// A block that was handed out for a stream may be handed out again for that stream as soon as it is freed,
// since the stream's work runs in order; for other streams only once that work is known to be done (retire).
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

#include "device/device.h"

namespace graphopt::provider {

// The smallest of few sizes that holds `bytes`: so many steps, at most `steps`, of a power of two from `least` on. Throws
// gpu::OutOfMemory for more than any device has.
size_t few_sizes(size_t bytes, size_t least, size_t steps);

// One for each device of the process, shared by all sessions. Thread-safe.
class Pool {
 public:
  // A pool of the memory of gpu::device(number), which is opened when it is first needed.
  explicit Pool(int number) : number_(number) {}

  gpu::Device& device() const;

  // The size of the smallest block that serves a request: an eighth more at most, of 4 KiB and up. Throws
  // gpu::OutOfMemory.
  static size_t block_size(size_t bytes);

  // For work on `stream`, or with null for work that is not known; a block of twice block_size(bytes) at
  // most, or `exact`ly of that size. Throws gpu::OutOfMemory when the device has no memory left even after
  // everything that is kept has been given back.
  void* allocate(size_t bytes, const void* stream, bool exact = false);

  // Returns the size of the block.
  size_t free(void* memory);

  // All work on the stream is done.
  void retire(const void* stream);

  // All work on the stream is done, and there will be no more: another may get its address.
  void forget(const void* stream);

  // Gives back to the device what no one uses; waits for it.
  void trim();

  struct Statistics {
    size_t in_use = 0, kept = 0, device_allocations = 0;
  };
  Statistics statistics() const;

 private:
  struct Block {
    size_t bytes = 0;
    const void* stream = nullptr;
  };
  using FreeBlocks = std::multimap<size_t, void*>;

  void* take(FreeBlocks& blocks, size_t least, size_t most, const void* stream);
  void retire_locked(const void* stream);
  void trim_locked();

  int number_;
  mutable std::atomic<gpu::Device*> device_{nullptr};
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> used_;
  std::map<const void*, FreeBlocks> free_;  // by the stream whose work may still use them; null: none
  Statistics statistics_;
};

// The pool of a device of gpu::device(number).
Pool& pool(int number);

}  // namespace graphopt::provider
