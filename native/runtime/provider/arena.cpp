#include "runtime/provider/arena.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace graphopt::provider {

size_t arena_bytes(size_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

namespace {

// Returns the first step with the highest memory need. Only steps that begin a lifetime can need more than the step
// before.
size_t find_peak_step(const std::vector<Lifetime>& lifetimes) {
  size_t steps = 0;
  for (const Lifetime& lifetime : lifetimes) steps = std::max(steps, lifetime.last + 2);
  std::vector<size_t> need(steps);  // change from the previous step; decreases wrap around as unsigned
  for (const Lifetime& lifetime : lifetimes) {
    need[lifetime.first] += arena_bytes(lifetime.bytes);
    need[lifetime.last + 1] -= arena_bytes(lifetime.bytes);
  }
  std::partial_sum(need.begin(), need.end(), need.begin());
  size_t peak = 0, peak_step = 0;
  for (const Lifetime& lifetime : lifetimes) {
    if (need[lifetime.first] <= peak) continue;
    peak = need[lifetime.first];
    peak_step = lifetime.first;
  }
  return peak_step;
}

}  // namespace

ArenaLayout lay_out(const std::vector<Lifetime>& lifetimes) {
  ArenaLayout layout;
  layout.offsets.resize(lifetimes.size());
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  struct Placed {
    size_t first, last;  // steps
    size_t begin, end;   // bytes
  };
  std::vector<Placed> placed;  // sorted by offset
  placed.reserve(lifetimes.size());
  for (const size_t i : order) {
    const Lifetime& lifetime = lifetimes[i];
    const size_t bytes = arena_bytes(lifetime.bytes);
    if (bytes == 0) break;  // the remaining tensors are empty as well
    // end: the end of the tensors visited so far that are alive at the same time as this one
    size_t end = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
    for (const Placed& other : placed) {
      if (other.last < lifetime.first || lifetime.last < other.first) continue;
      if (other.begin >= end + bytes && other.begin - end < best_gap) {
        best = end;
        best_gap = other.begin - end;
      }
      end = std::max(end, other.end);
    }
    const size_t offset = best != SIZE_MAX ? best : end;
    layout.offsets[i] = offset;
    layout.bytes = std::max(layout.bytes, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [](size_t at, const Placed& other) { return at < other.begin; }),
                  {lifetime.first, lifetime.last, offset, offset + bytes});
  }
  layout.peak_step = find_peak_step(lifetimes);
  return layout;
}

}  // namespace graphopt::provider
