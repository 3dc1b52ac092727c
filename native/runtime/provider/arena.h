// Lays out the tensors of a region in one block of memory. A tensor lives from the step that writes it to the last step
// that reads it. Tensors with disjoint lifetimes may share bytes.
#pragma once

#include <cstddef>
#include <vector>

namespace graphopt::provider {

// Offsets and sizes are multiples of this.
constexpr size_t kArenaAlignment = 256;

// Returns the size in the arena of a tensor with `bytes` bytes.
size_t arena_bytes(size_t bytes);

struct Lifetime {
  size_t bytes = 0;
  size_t first = 0, last = 0;  // steps, both included
};

struct ArenaLayout {
  std::vector<size_t> offsets;  // one for each lifetime
  size_t bytes = 0;             // total
  size_t peak_step = 0;         // the first step with the highest need
};

// Places the largest tensor first, and each in the smallest gap that is free for its whole lifetime ("greedy by size":
// Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
ArenaLayout lay_out(const std::vector<Lifetime>& lifetimes);

}  // namespace graphopt::provider
