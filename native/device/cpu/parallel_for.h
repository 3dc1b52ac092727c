// Handing out work items among the lanes of a pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "device/cpu/parallel.h"

namespace graphopt::cpu {

// Calls fn(item, lane) once for each item in [0, items), on the caller's thread alone when there is only one.
template <class F>
void parallel_for(Parallel& parallel, int64_t items, F&& fn) {
  if (items <= 1 || parallel.lanes() <= 1) {
    for (int64_t item = 0; item < items; ++item) fn(item, size_t{0});
    return;
  }
  std::atomic<int64_t> next{0};
  parallel.run([&](size_t lane) {
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) fn(item, lane);
  });
}

}  // namespace graphopt::cpu
