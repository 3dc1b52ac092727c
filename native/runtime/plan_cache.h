// The plans of one node for the shapes that came last: a run whose shapes are known does not plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "operators/kernel.h"

namespace graphopt::runtime {

// A planned call with what it was planned for, besides the types and shapes of its inputs.
struct PlannedCall {
  Call call;
  size_t alignment = 0;        // of the inputs on the device; the outputs' may have lowered the call's
  uint64_t generation = 0;     // of the vendor's libraries (device/libraries/libraries.h)
  uint64_t stream_number = 0;  // gpu::StreamContext::number; 0 of a kernel for the CPU
  size_t lanes = 0;            // of a kernel for the CPU
  std::vector<unsigned char> host_values;  // of inputs that a kernel for a device reads on the host
};

// Thread-safe.
class PlanCache {
 public:
  static constexpr size_t kMost = 8;

  // One that `wanted` says is right; null when there is none. Nobody else has it until it is put back, so
  // that runs at the same time have calls of their own.
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

  // That which was used the longest time ago leaves when there are too many.
  void put(std::unique_ptr<PlannedCall> planned) {
    std::unique_ptr<PlannedCall> gone;  // destroyed behind the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() == kMost) {
      gone = std::move(idle_.front());
      idle_.erase(idle_.begin());
    }
    idle_.push_back(std::move(planned));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<PlannedCall>> idle_;  // the last used last
};

}  // namespace graphopt::runtime
