// Who may use a library on one stream. Who plans does not wait for it: kernels of our own are planned
// instead, until whoever holds the lock has let go of it.
#pragma once

#include <atomic>
#include <mutex>

#include "device/libraries/libraries.h"

namespace graphopt::gpu {

// For std::unique_lock.
class StreamLock {
 public:
  void lock() { mutex_.lock(); }
  bool try_lock() {
    if (mutex_.try_lock()) return true;
    // Whoever holds it looks after letting go. If that was in between, it is free now.
    turned_away_ = true;
    return mutex_.try_lock();
  }
  // What was planned for those that were turned away may have a better implementation now.
  void unlock() {
    mutex_.unlock();
    if (turned_away_.exchange(false)) raise_library_generation();
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> turned_away_{false};
};

}  // namespace graphopt::gpu
