// The threads that a node's work is shared among.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "cpu/parallel.h"

namespace graphopt::runtime {

// How many threads a session has the runtime does not tell: they are known once they have come. Thread-safe.
class Workers {
 public:
  Workers();
  // At most so many threads, and so many lanes in the first loops.
  Workers(size_t most, size_t at_first);

  // What a node is planned for: in its first loops the processors that the thread may use that made this, then as many
  // threads as have come to any loop.
  size_t lanes() const;
  // Tasks that bring so many threads and, where there are more, some of these.
  size_t tasks(size_t lanes) const;

  // The calling thread's number, always the same: 0 for the one that runs the node, others from 1. Of a thread too
  // many the number of processors, which no lane has.
  size_t number(bool runs_node);
  // All threads of a loop have had their numbers.
  void end_loop();

 private:
  bool take(size_t number, const void* thread);

  size_t most_;  // numbers
  size_t at_first_;
  std::unique_ptr<std::atomic<const void*>[]> who_;  // has a number
  std::atomic<size_t> come_{1};                      // the highest number that was given, and one
  std::atomic<size_t> loops_{0};                     // that have ended, as far as they count
};

// Lanes on threads of a pool. A thread's lane is its number.
class SessionParallel final : public cpu::Parallel {
 public:
  // Calls task(user, i) for each i in [0, total) on some of its threads and waits.
  using Pool = std::function<void(void (*task)(void* user, size_t i), size_t total, void* user)>;

  // Both are used in run.
  SessionParallel(Workers& workers, Pool pool);
  size_t lanes() const override { return lanes_; }

 protected:
  void run_lanes(void (*fn)(void* user, size_t lane), void* user) override;

 private:
  Workers& workers_;
  Pool pool_;
  size_t lanes_;
};

}  // namespace graphopt::runtime
