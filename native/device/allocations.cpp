#include "device/allocations.h"

#include <algorithm>

namespace graphopt::gpu {

void Allocations::add(const void* memory, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_[memory] = bytes;
  statistics_.bytes += bytes;
  statistics_.most = std::max(statistics_.most, statistics_.bytes);
}

void Allocations::remove(const void* memory) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) return;
  statistics_.bytes -= found->second;
  blocks_.erase(found);
}

void Allocations::add_recording() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++statistics_.recordings;
}

void Allocations::remove_recording() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --statistics_.recordings;
}

Allocations::Statistics Allocations::statistics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

Allocations& allocations() {
  static auto& all = *new Allocations;  // sessions may outlive static objects
  return all;
}

}  // namespace graphopt::gpu
