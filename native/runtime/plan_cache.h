// Caches the most recent plans of one node, because planning the same shapes again would cost time in every run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "operators/kernel.h"

namespace graphopt::runtime {

// A planned call and the conditions of the plan, besides the types and shapes of its inputs.
struct PlannedCall {
  Call call;
  // Common alignment of the device inputs, in bytes. Call::alignment is that of the inputs and the outputs.
  size_t alignment = 0;
  uint64_t generation = 0;                 // gpu::library_generation() at planning
  uint64_t stream_number = 0;              // gpu::StreamContext::number; 0 for CPU kernels
  size_t workers = 0;                      // number of worker threads, for CPU kernels
  std::vector<unsigned char> host_values;  // values of inputs that a device kernel reads on the host
};

// Thread-safe.
class PlanCache {
 public:
  static constexpr size_t kMaxPlans = 8;

  // Removes and returns a plan that satisfies `wanted`; null if there is none. The caller owns the plan until it
  // puts it back, so concurrent runs never share a plan.
  template <class Wanted>
  std::unique_ptr<PlannedCall> take(Wanted&& wanted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = idle_.size(); i-- > 0;) {
      if (!wanted(*idle_[i])) continue;
      std::unique_ptr<PlannedCall> found = std::move(idle_[i]);
      idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
    return nullptr;
  }

  // Adds a plan, and evicts the least recently used one if the cache is full.
  void put(std::unique_ptr<PlannedCall> planned) {
    std::unique_ptr<PlannedCall> evicted;  // destroyed after the lock is released
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() == kMaxPlans) {
      evicted = std::move(idle_.front());
      idle_.erase(idle_.begin());
    }
    idle_.push_back(std::move(planned));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<PlannedCall>> idle_;  // least recently used first
};

}  // namespace graphopt::runtime
