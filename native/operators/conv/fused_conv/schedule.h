// Tables of the implicit GEMM that depend only on the shapes. For kernel files only (see cpu/isa.h).
#pragma once

#include <cstdint>
#include <vector>

#include "operators/conv/fused_conv/cpu.h"
#include "operators/conv/fused_conv/strips.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Pixels that are the rows of a GEMM.
struct PixelBlock {
  Pixels pixels;
  int64_t first;  // index of the first one in the order of s
};

// The location of a tile of columns: in s, or in the gathered words.
struct Place {
  int64_t offset, row;  // offset and stride of rows, in words
  bool gathered;
};

struct StripSchedule {
  Strip strip;
  std::vector<int64_t> offsets;  // [step]
  // [image][step], for vectors that reach beyond the end of x if x is read in place. Each run writes the offset of the
  // last step.
  std::vector<std::vector<int64_t>> at_end = {};
  std::vector<Pixels> pixels = {};      // if pixels are the vectors
  std::vector<PixelBlock> blocks = {};  // if pixels are the rows
  std::vector<int64_t> order = {};      // the order of the steps in tiles
  std::vector<Place> places = {};

  // The size of the tables in bytes.
  int64_t bytes() const {
    const size_t numbers = offsets.size() * (1 + at_end.size()) + order.size();
    return static_cast<int64_t>(numbers * sizeof(int64_t) + pixels.size() * sizeof(Pixels) +
                                blocks.size() * sizeof(PixelBlock) + places.size() * sizeof(Place));
  }
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
