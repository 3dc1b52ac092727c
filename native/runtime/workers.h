// The worker threads that share the work of a node.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "cpu/parallel.h"

namespace graphopt::runtime {

// Counts the session's threads. The runtime does not report how many there are, so each thread gets a number when it
// first runs a task. A loop is one call of SessionParallel::run_workers. Thread-safe.
class Workers {
 public:
  Workers();
  // `first_workers`: the number of workers in the first loops.
  Workers(size_t max_threads, size_t first_workers);

  // Returns the number of workers to plan for. In the first loops: the processors that the constructing thread may use.
  // Later: the number of threads that have run a task of any loop.
  size_t count() const;
  // Returns the number of tasks of a loop with `count` workers. Extra tasks, at most `count`, find uncounted threads.
  size_t tasks(size_t count) const;

  // Returns the calling thread's number, which does not change: 0 for the thread that runs the node, 1 and up for
  // others. If all numbers are assigned, returns the maximum number of threads, which is no worker's number.
  size_t number(bool runs_node);
  // Call after all threads of a loop have their numbers.
  void end_loop();

 private:
  bool take(size_t number, const void* thread);

  size_t max_threads_;  // maximum number of threads
  size_t first_workers_;
  std::unique_ptr<std::atomic<const void*>[]> owners_;  // the thread that has each number
  std::atomic<size_t> assigned_{1};                     // the highest assigned number plus one
  std::atomic<size_t> loops_{0};                        // finished loops, counted up to kCountingLoops
};

// Runs worker tasks on the threads of a pool. A thread's worker index is its number.
class SessionParallel final : public cpu::Parallel {
 public:
  // Calls task(user, i) for each i in [0, total) on some of its threads and waits.
  using Pool = std::function<void(void (*task)(void* user, size_t i), size_t total, void* user)>;

  // `workers` and the objects that `pool` refers to must be valid when run() is called.
  SessionParallel(Workers& workers, Pool pool);
  size_t workers() const override { return count_; }

 protected:
  void run_workers(void (*fn)(void* user, size_t worker), void* user) override;

 private:
  Workers& workers_;
  Pool pool_;
  size_t count_;
};

}  // namespace graphopt::runtime
