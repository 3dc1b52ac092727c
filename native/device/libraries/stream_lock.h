// A lock for the use of a library on one stream. Plans do not wait for it: they use built-in kernels until
// the lock is released.
#pragma once

#include <atomic>
#include <mutex>

#include "device/libraries/libraries.h"

namespace graphopt::gpu {

// Meets the requirements of std::unique_lock.
class StreamLock {
 public:
  void lock() { mutex_.lock(); }
  bool try_lock() {
    if (mutex_.try_lock()) return true;
    // The holder reads `try_failed_` after it unlocks. If it reads the flag before this assignment, the lock is free
    // and the second attempt succeeds.
    try_failed_ = true;
    return mutex_.try_lock();
  }
  // Plans after a failed try_lock use built-in kernels, so a new plan may find a better implementation.
  void unlock() {
    mutex_.unlock();
    if (try_failed_.exchange(false)) raise_library_generation();
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> try_failed_{false};
};

}  // namespace graphopt::gpu
