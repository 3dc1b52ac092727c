// Caches device memory or pinned host memory: in steady state the driver is not called.
//
// A block freed on a stream can be reused on the same stream at once, because the stream's work runs in order. Other
// streams can reuse it only when that work is known to be done (retire).
//
// A pool with a limit never allocates more bytes than the limit, including cached blocks. A session with a memory_limit
// has its own pool.
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

// Rounds `bytes` up to a multiple of a step: only a few sizes then occur. The step is `min_step` times a power of two,
// the smallest one that needs at most `steps` steps. Throws gpu::OutOfMemory for more bytes than any device has.
size_t size_class(size_t bytes, size_t min_step, size_t steps);

// Thread-safe.
class Pool {
 public:
  // Pinned host memory is never unpinned, because a driver waits for the whole device when it unpins memory.
  enum class Memory { kDevice, kPinned };
  // A pool for gpu::device(number), which is opened on first use. limit 0: no limit.
  explicit Pool(int number, size_t limit = 0, Memory memory = Memory::kDevice);
  // Frees the cached blocks; no block may be in use.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int number() const { return number_; }
  size_t limit() const { return limit_; }
  gpu::Device& device() const;
  bool is_of(const gpu::Device& device) const { return device_ == &device; }

  // Returns the size of the smallest block that serves a request: from 4 KiB on, it is at most an eighth
  // larger than the request. Throws gpu::OutOfMemory.
  static size_t block_size(size_t bytes);

  // Allocates a block for work on `stream`, or for unknown work if `stream` is null. `memory_use`: the use of the
  // block. The block has at most twice block_size(bytes). With a limit it has exactly that size, so a
  // request's success does not depend on the cached blocks. Throws gpu::OutOfMemory beyond the limit, and if
  // the device has no memory left after all pools have freed their cached blocks.
  void* allocate(size_t bytes, const void* stream, gpu::MemoryUse memory_use = gpu::MemoryUse::kTensors);

  void free(void* memory);

  // Makes the free blocks of the stream available to all streams. Call it when all work on the stream is
  // done.
  void retire(const void* stream);

  // Like retire, but for a stream that ends; another stream may get its address. Call it when all work on the
  // stream is done.
  void forget(const void* stream);

  struct Statistics {
    // Bytes of blocks in use and of cached blocks; number of allocations from the driver.
    size_t in_use = 0, kept = 0, device_allocations = 0;
    size_t peak = 0;  // maximum of in_use + kept
  };
  Statistics statistics() const;
  // Returns the bytes in use for each MemoryUse, and the cached bytes as MemoryUse::kIdle.
  gpu::BytesByUse bytes() const;
  // Waits for the device and frees idle blocks; returns false if there are none.
  bool trim();

 private:
  struct Block {
    size_t bytes = 0;
    const void* stream = nullptr;
    gpu::MemoryUse memory_use = gpu::MemoryUse::kTensors;
  };
  struct FreeBlock {
    void* memory;
    uint64_t since;  // clock_ when the block was freed
  };
  using FreeBlocks = std::multimap<size_t, FreeBlock>;

  // Return a cached block of min_bytes to max_bytes bytes, or null.
  void* take(FreeBlocks& blocks, size_t min_bytes, size_t max_bytes);
  void* take(size_t min_bytes, size_t max_bytes, const void* stream);
  void retire_locked(const void* stream);
  // Frees the oldest cached blocks until `bytes` more bytes are within the limit.
  void free_memory(size_t bytes);

  int number_;
  size_t limit_;
  Memory kind_;
  mutable std::atomic<gpu::Device*> device_{nullptr};
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> used_;
  std::map<const void*, FreeBlocks> free_;  // by the stream that may still use them; null: no stream
  uint64_t clock_ = 0;
  Statistics statistics_;
};

// Registers a session's function that frees idle memory and returns whether it has freed any. It is called if a device
// has too little free memory, unless `owner` has expired.
void on_out_of_memory(std::weak_ptr<void> owner, std::function<bool()> release_idle);

// Returns the pool of gpu::device(number) that all sessions without a limit share, and the device's pool of pinned
// host memory.
Pool& pool(int number);
Pool& pinned_pool(int number);

// Returns JSON: the statistics of all pools of device memory, and the total device memory of this library
// (docs/native_library.md).
std::string describe_memory();

}  // namespace graphopt::provider
