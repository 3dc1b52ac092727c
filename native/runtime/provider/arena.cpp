#include "runtime/provider/arena.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace graphopt::provider {

size_t arena_bytes(size_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

ArenaLayout lay_out(const std::vector<Lifetime>& lifetimes) {
  ArenaLayout layout;
  layout.offsets.resize(lifetimes.size());
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  std::vector<size_t> placed;  // by offset
  for (const size_t i : order) {
    const Lifetime& life = lifetimes[i];
    const size_t bytes = arena_bytes(life.bytes);
    if (bytes == 0) continue;
    size_t end = 0, best = SIZE_MAX, best_gap = SIZE_MAX;  // end: of what was passed
    for (const size_t k : placed) {
      if (lifetimes[k].last < life.first || life.last < lifetimes[k].first) continue;
      const size_t begin = layout.offsets[k];
      if (begin >= end + bytes && begin - end < best_gap) {
        best = end;
        best_gap = begin - end;
      }
      end = std::max(end, begin + arena_bytes(lifetimes[k].bytes));
    }
    const size_t offset = best != SIZE_MAX ? best : end;
    layout.offsets[i] = offset;
    layout.bytes = std::max(layout.bytes, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return layout.offsets[a] < layout.offsets[b]; }),
                  i);
  }
  // The most that a step needs; only steps that write something can need more than the one before.
  size_t most = 0;
  for (const Lifetime& at : lifetimes) {
    size_t need = 0;
    for (const Lifetime& life : lifetimes) {
      if (life.first <= at.first && at.first <= life.last) need += arena_bytes(life.bytes);
    }
    if (need > most) {
      most = need;
      layout.fullest = at.first;
    }
  }
  return layout;
}

}  // namespace graphopt::provider
