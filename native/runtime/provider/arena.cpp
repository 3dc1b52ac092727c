#include "runtime/provider/arena.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace graphopt::provider {

size_t arena_bytes(size_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

namespace {

// Returns the first step with the highest memory need. Only steps that begin a lifetime can need more than the step
// before.
size_t fullest_step(const std::vector<Lifetime>& lifetimes) {
  size_t steps = 0;
  for (const Lifetime& life : lifetimes) steps = std::max(steps, life.last + 2);
  std::vector<size_t> need(steps);  // change from the previous step; decreases wrap around as unsigned
  for (const Lifetime& life : lifetimes) {
    need[life.first] += arena_bytes(life.bytes);
    need[life.last + 1] -= arena_bytes(life.bytes);
  }
  std::partial_sum(need.begin(), need.end(), need.begin());
  size_t most = 0, fullest = 0;
  for (const Lifetime& life : lifetimes) {
    if (need[life.first] <= most) continue;
    most = need[life.first];
    fullest = life.first;
  }
  return fullest;
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
    const Lifetime& life = lifetimes[i];
    const size_t bytes = arena_bytes(life.bytes);
    if (bytes == 0) break;                                 // the remaining tensors are empty as well
    size_t end = 0, best = SIZE_MAX, best_gap = SIZE_MAX;  // end: of the overlapping ones so far
    for (const Placed& other : placed) {
      if (other.last < life.first || life.last < other.first) continue;
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
                  {life.first, life.last, offset, offset + bytes});
  }
  layout.fullest = fullest_step(lifetimes);
  return layout;
}

}  // namespace graphopt::provider
