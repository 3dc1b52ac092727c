// Handing out work items among the lanes of a pool.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "device/cpu/parallel.h"

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

// Calls fn(item, lane) once for each item in [0, items). Every lane begins with neighbouring items, the same ones in
// every call as far as it can, since what they read and write is in its caches, and then takes what others have left.
template <class F>
void parallel_for(Parallel& parallel, int64_t items, F&& fn) {
  if (items <= 1) {
    for (int64_t item = 0; item < items; ++item) fn(item, size_t{0});
    return;
  }
  constexpr size_t kMostShares = 64;
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  std::array<Share, kMostShares> shares;
  const size_t count = std::min({parallel.lanes(), static_cast<size_t>(items), kMostShares});
  const auto begin_of = [&](size_t i) {
    return items * static_cast<int64_t>(i) / static_cast<int64_t>(count);
  };
  for (size_t i = 0; i < count; ++i) {
    shares[i].next.store(begin_of(i), std::memory_order_relaxed);
    shares[i].end = begin_of(i + 1);
  }
  parallel.run([&](size_t lane) {
    for (size_t i = 0; i < count; ++i) {
      Share& share = shares[(lane + i) % count];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int64_t item = share.next.fetch_add(1, std::memory_order_relaxed);
        if (item < share.end) fn(item, lane);
      }
    }
  });
}

}  // namespace graphopt::cpu
