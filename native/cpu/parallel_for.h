// Distributes work items among the workers of a pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "cpu/parallel.h"

namespace graphopt::cpu {

// Returns into how many parts to divide each item so that the busiest worker has the least work: a number in
// [min_parts, max_parts]. cost(parts) is the cost of one part. Many parts balance better; few parts have less overhead.
template <class Cost>
int64_t parts_of_least_cost(int64_t min_parts, int64_t max_parts, int64_t items, int64_t workers,
                            const Cost& cost) {
  if (workers == 1) return min_parts;
  int64_t best = min_parts;
  double lowest = 0;
  for (int64_t n = min_parts; n <= max_parts; ++n) {
    const double longest =
        static_cast<double>((items * n + workers - 1) / workers) * static_cast<double>(cost(n));
    if (n == min_parts || longest < lowest) best = n, lowest = longest;
  }
  return best;
}

// The items of a loop, distributed among workers. Each worker starts with a contiguous share of the items, the same one
// in every call: its data may still be in the worker's caches. Then the worker takes items from other shares.
class Items {
 public:
  Items(int64_t items, size_t workers)
      : items_(items),
        shares_(std::min<int64_t>(items, static_cast<int64_t>(workers))),
        taken_(static_cast<size_t>(shares_)) {}

  // Calls fn(item, worker) for items that are not taken yet, until none is left.
  template <class F>
  void take(size_t worker, F&& fn) {
    // An item that throws also counts as finished, because other threads wait for it.
    struct Ended {
      std::atomic<int64_t>& all;
      int64_t items = 0;
      ~Ended() { all.fetch_add(items, std::memory_order_release); }
    } ended{ended_.value};
    for (int64_t i = 0; i < shares_; ++i) {
      const int64_t share = (static_cast<int64_t>(worker) + i) % shares_;
      const int64_t begin = items_ * share / shares_, size = items_ * (share + 1) / shares_ - begin;
      std::atomic<int64_t>& next = taken_[static_cast<size_t>(share)].value;
      while (next.load(std::memory_order_relaxed) < size) {
        const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
        if (item >= size) break;
        ++ended.items;
        fn(begin + item, worker);
      }
    }
  }

  // Waits for items that other threads have started. After kSpins spins it yields, because those threads may need this
  // processor.
  void wait() const {
    constexpr int kSpins = 1 << 12;  // spins before the first yield, 0.1 to 0.2 ms; most waits are shorter
    for (int spins = 0; ended_.value.load(std::memory_order_acquire) < items_; ++spins) {
      if (spins >= kSpins) std::this_thread::yield();
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

 private:
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  };
  int64_t items_, shares_;
  std::vector<Counter> taken_;  // for each share, the index of its next item
  Counter ended_;               // number of finished items of all shares
};

// Calls fn(item, worker) once for each item in [0, items).
template <class F>
void parallel_for(Parallel& parallel, int64_t items, F&& fn) {
  if (items <= 1) {
    for (int64_t item = 0; item < items; ++item) fn(item, size_t{0});
    return;
  }
  Items shared(items, parallel.workers());
  parallel.run([&](size_t worker) { shared.take(worker, fn); });
}

struct Loop {
  int64_t items;
  std::function<void(int64_t item, size_t worker)> run;
};

// Runs several loops in one call of the pool, because starting a pool of many threads takes longer than a short loop.
// Each loop starts when all items of the previous loop have finished. It does not wait for threads without items.
inline void parallel_loops(Parallel& parallel, const std::vector<Loop>& loops) {
  // Loops of at most one item need no other thread.
  const bool alone =
      std::all_of(loops.begin(), loops.end(), [](const Loop& loop) { return loop.items <= 1; });
  if (alone || parallel.workers() == 1) {
    for (const Loop& loop : loops) {
      for (int64_t item = 0; item < loop.items; ++item) loop.run(item, 0);
    }
    return;
  }
  std::deque<Items> shared;
  for (const Loop& loop : loops) shared.emplace_back(loop.items, parallel.workers());
  parallel.run([&](size_t worker) {
    for (size_t i = 0; i < loops.size(); ++i) {
      if (i > 0) shared[i - 1].wait();
      shared[i].take(worker, loops[i].run);
    }
  });
}

}  // namespace graphopt::cpu
