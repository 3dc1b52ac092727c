// Copies from the caller's memory that do not make him wait: a driver may read memory that is not pinned only
// while the call lasts, so it waits for the copy. Here the processor copies into pinned memory, and the
// device from there.
//
// This pinned memory is ours: callers have some of their own kind (PinnedMemory in memory.h).
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

  // From memory of the host to the device, behind what the stream has to do. `from` has been read when it
  // returns.
  void upload(void* to, const void* from, size_t bytes, void* stream);

 private:
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
    void* event = nullptr;                      // recorded behind the last copy from it
    std::weak_ptr<gpu::StreamContext> context;  // of that copy; expired when it is done

    bool is_free();
  };

  // Null when there is none and no more may be made.
  Block* take(size_t bytes);

  gpu::Device& device_;
  std::mutex mutex_;
  std::vector<Block> blocks_;  // never given back: the device lives as long as the process
  size_t total_ = 0;
};

Staging& staging(gpu::Device& device);

}  // namespace graphopt::provider
