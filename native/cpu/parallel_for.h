// Handing out work items among the lanes of a pool.
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

// Of some parts, least to most, the number whose longest lane has the least to do, where each part of each of `of`
// costs cost(parts): many parts divide well, few repeat less.
template <class Cost>
int64_t parts_of_least_cost(int64_t least, int64_t most, int64_t of, int64_t lanes, const Cost& cost) {
  if (lanes == 1) return least;
  int64_t best = least;
  double lowest = 0;
  for (int64_t n = least; n <= most; ++n) {
    const double longest = static_cast<double>((of * n + lanes - 1) / lanes) * static_cast<double>(cost(n));
    if (n == least || longest < lowest) best = n, lowest = longest;
  }
  return best;
}

// The items of a loop, handed out among lanes. Every lane begins with neighbouring items, the same ones in every call as
// far as it can, since what they read and write is in its caches, and then takes what others have left.
class Items {
 public:
  Items(int64_t items, size_t lanes)
      : items_(items),
        shares_(std::min<int64_t>(items, static_cast<int64_t>(lanes))),
        taken_(static_cast<size_t>(shares_)) {}

  // Calls fn(item, lane) for items that nobody has begun, until none is left.
  template <class F>
  void take(size_t lane, F&& fn) {
    // An item that ends by an exception has ended, too: who waits for it must go on.
    struct Ended {
      std::atomic<int64_t>& all;
      int64_t items = 0;
      ~Ended() { all.fetch_add(items, std::memory_order_release); }
    } ended{ended_.value};
    for (int64_t i = 0; i < shares_; ++i) {
      const int64_t share = (static_cast<int64_t>(lane) + i) % shares_;
      const int64_t begin = items_ * share / shares_, size = items_ * (share + 1) / shares_ - begin;
      std::atomic<int64_t>& next = taken_[static_cast<size_t>(share)].value;
      while (next.load(std::memory_order_relaxed) < size) {
        const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
        if (item >= size) break;
        ++ended.items;
        fn(begin + item, lane);
      }
    }
  }

  // Waits for those that other threads have begun, which may wait for this processor.
  void wait() const {
    constexpr int kSpins = 1 << 12;  // a tenth or two of a millisecond: most waits are shorter
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
  std::vector<Counter> taken_;  // of each share
  Counter ended_;
};

// Calls fn(item, lane) once for each item in [0, items).
template <class F>
void parallel_for(Parallel& parallel, int64_t items, F&& fn) {
  if (items <= 1) {
    for (int64_t item = 0; item < items; ++item) fn(item, size_t{0});
    return;
  }
  Items shared(items, parallel.lanes());
  parallel.run([&](size_t lane) { shared.take(lane, fn); });
}

struct Loop {
  int64_t items;
  std::function<void(int64_t item, size_t lane)> run;
};

// Loops one behind another in a single call of the pool, which takes a pool of many threads longer than many a loop
// does. No loop begins before all items of the last one have ended; none waits for a thread that has begun no item.
inline void parallel_loops(Parallel& parallel, const std::vector<Loop>& loops) {
  // As parallel_for: what has an item at most needs nobody else.
  const bool alone =
      std::all_of(loops.begin(), loops.end(), [](const Loop& loop) { return loop.items <= 1; });
  if (alone || parallel.lanes() == 1) {
    for (const Loop& loop : loops) {
      for (int64_t item = 0; item < loop.items; ++item) loop.run(item, 0);
    }
    return;
  }
  std::deque<Items> shared;
  for (const Loop& loop : loops) shared.emplace_back(loop.items, parallel.lanes());
  parallel.run([&](size_t lane) {
    for (size_t i = 0; i < loops.size(); ++i) {
      if (i > 0) shared[i - 1].wait();
      shared[i].take(lane, loops[i].run);
    }
  });
}

}  // namespace graphopt::cpu
