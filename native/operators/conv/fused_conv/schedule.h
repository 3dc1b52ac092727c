// What a product needs to know of its shapes, whatever it computes. For kernel files only (see cpu/isa.h).
#pragma once

#include <cstdint>
#include <vector>

#include "operators/conv/fused_conv/cpu.h"
#include "operators/conv/fused_conv/strips.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Pixels that are the rows of a product.
struct PixelBlock {
  Pixels pixels;
  int64_t first;  // in the order of s
};

// Where a tile of columns lies: in s, or among the gathered ones.
struct Place {
  int64_t offset, row;  // in words
  bool gathered;
};

struct StripSchedule {
  Strip strip;
  std::vector<int64_t> offsets;  // of each step
  // The same of each image that is multiplied together, for vectors that reach beyond x where that is read in place. A
  // run writes the last one.
  std::vector<std::vector<int64_t>> at_end = {};
  std::vector<Pixels> pixels = {};      // that are the vectors
  std::vector<PixelBlock> blocks = {};  // or the rows
  std::vector<int64_t> order = {};      // of the steps, in tiles
  std::vector<Place> places = {};

  // What it takes where it is kept.
  int64_t bytes() const {
    const size_t numbers = offsets.size() * (1 + at_end.size()) + order.size();
    return static_cast<int64_t>(numbers * sizeof(int64_t) + pixels.size() * sizeof(Pixels) +
                                blocks.size() * sizeof(PixelBlock) + places.size() * sizeof(Place));
  }
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
