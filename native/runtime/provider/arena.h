// Where the tensors of a region lie in one block of memory: each from the step that writes it to the last one
// that reads it. Tensors that are never needed at once share bytes.
#pragma once

#include <cstddef>
#include <vector>

namespace graphopt::provider {

// Offsets and sizes are multiples of this.
constexpr size_t kArenaAlignment = 256;

// What a tensor of so many bytes takes there.
size_t arena_bytes(size_t bytes);

struct Lifetime {
  size_t bytes = 0;
  size_t first = 0, last = 0;  // steps, both included
};

struct ArenaLayout {
  std::vector<size_t> offsets;  // of each lifetime
  size_t bytes = 0;             // of all
  size_t fullest = 0;           // the step that needs the most
};

// Greedy by size: the largest first, each in the smallest gap that is free all its life (Pisarchyk and Lee,
// "Efficient Memory Management for Deep Neural Net Inference", 2020).
ArenaLayout lay_out(const std::vector<Lifetime>& lifetimes);

}  // namespace graphopt::provider
