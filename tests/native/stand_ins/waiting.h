// Counts how often the thread that runs sessions waits in a library for kernel files, databases or compilers.
// Each library's stand-in is a separate file with its own counters.
#pragma once

#include <mutex>
#include <thread>

namespace stand_in {

struct Waiting {
  std::mutex mutex;
  std::thread::id runner;
  int in_run = 0;

  void count() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (std::this_thread::get_id() == runner) ++in_run;
  }
};

inline Waiting& waiting() {
  static Waiting one;
  return one;
}

}  // namespace stand_in

// Marks the calling thread as the one that runs sessions.
extern "C" __attribute__((visibility("default"))) void stand_in_this_thread_runs() {
  const std::lock_guard<std::mutex> lock(stand_in::waiting().mutex);
  stand_in::waiting().runner = std::this_thread::get_id();
}
extern "C" __attribute__((visibility("default"))) int stand_in_waits_in_run() {
  const std::lock_guard<std::mutex> lock(stand_in::waiting().mutex);
  return stand_in::waiting().in_run;
}
