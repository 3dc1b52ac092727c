// Uploads that do not block the caller. A driver may read unpinned memory only during the call, so it waits for the
// copy. Here, the CPU copies the data to pinned memory, from which the device copies it.
//
// This pinned memory is internal; tensors use pinned_pool (pool.h).
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "device/stream_context.h"

namespace graphopt::provider {

// One for each device. Thread-safe. The device must be current (gpu::OnDevice).
class Staging {
 public:
  explicit Staging(gpu::Device& device) : device_(device) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Copies host memory to the device, in order with the stream's work. `from` has been read when this returns.
  void upload(void* to, const void* from, size_t bytes, void* stream);

 private:
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;                           // 0 after a failed copy: never used again
    void* event = nullptr;                      // recorded after the last copy from it
    std::weak_ptr<gpu::StreamContext> context;  // of the stream of that copy; expires with the stream

    bool is_free();
  };

  // Returns null if no block is free and no more may be allocated.
  Block* take(size_t bytes);

  gpu::Device& device_;
  std::mutex mutex_;
  std::vector<Block> blocks_;  // never freed: the device lives as long as the process
  size_t total_ = 0;
};

Staging& staging(gpu::Device& device);

}  // namespace graphopt::provider
