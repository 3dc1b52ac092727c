// Tables of the implicit GEMM that depend only on the shapes. For kernel files only (see cpu/isa.h).
#pragma once

#include <cstdint>
#include <vector>

#include "operators/conv/fused_conv/cpu.h"
#include "operators/conv/fused_conv/strips.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// A block of pixels that are rows of the GEMM.
struct PixelBlock {
  Pixels pixels;
  int64_t first;  // position of the first pixel in s, the packed x (strips.h)
};

// The location of an AMX tile whose columns are pixels: in s, or in the gathered words (tiles_cpu.cpp).
struct TileSource {
  int64_t offset, row;  // offset, and stride of the rows, in words
  bool gathered;
};

// The tables of one strip.
struct StripSchedule {
  Strip strip;
  std::vector<int64_t> offsets;  // [step], in words of s
  // [image][step], only if x is read in place: offsets for vectors that read beyond the end of x. Each run copies the
  // end of x and sets the offset of the last step to the copy.
  std::vector<std::vector<int64_t>> at_end = {};
  std::vector<Pixels> pixels = {};            // for each vector, if pixels are the columns of the GEMM
  std::vector<PixelBlock> blocks = {};        // if pixels are the rows of the GEMM
  std::vector<int64_t> order = {};            // with AMX: the steps in the order of the tiles
  std::vector<TileSource> tile_sources = {};  // with AMX: one for each tile of 16 steps

  // Returns the size of the tables in bytes.
  int64_t bytes() const {
    const size_t integers = offsets.size() * (1 + at_end.size()) + order.size();
    return static_cast<int64_t>(integers * sizeof(int64_t) + pixels.size() * sizeof(Pixels) +
                                blocks.size() * sizeof(PixelBlock) +
                                tile_sources.size() * sizeof(TileSource));
  }
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
