// Loads weights of 2, 4 or 8 bits and dequantizes them to float16 on the way to LDS.
#pragma once

#include "blocks/gpu/packed_weights.h"
#include "device/platform.h"
#include "gemm/loaders/packed_args.h"
#include "gemm/loaders/packs.h"

namespace graphopt::hip {

// The scale of a block, and the byte or the two bytes that contain its zero point.
struct BlockBits {
  half_t scale;
  uint32_t zero_point;
};

// The addresses of a block's scale and zero point in line 0 of PackedLines.
struct BlockAddresses {
  const uint8_t *scale, *zero_point;
};

// Reads `lines` lines of an operand that has weights of kBits bits. Line 0 of this class is the operand's line `first`.
template <int kBits>
class PackedLines {
 public:
  DEVICE PackedLines(const PackedWeights& layout, const uint8_t* b, const half_t* scales,
                     const uint8_t* zero_points, int first, int lines)
      : layout_(layout),
        b_(b + start(first, layout.row_bytes)),
        scales_(scales + start(first, layout.blocks)),
        zero_points_(zero_points + start(first, layout.zero_point_row_bytes)),
        last_(lines - 1) {}

  // Returns the block of index k, at most the last one.
  DEVICE int block_of(int k) const {
    return min_int(static_cast<int>(divide(static_cast<uint32_t>(k), layout_.size)), layout_.blocks - 1);
  }
  // Returns the address, in line 0, of the T that begins with the weight of index k. If this T does not fit into the
  // line, returns the address of the last T that does.
  template <class T>
  DEVICE const uint8_t* weights_at(int k) const {
    return b_ + min_int(static_cast<int>(static_cast<uint32_t>(k) / 8 * kBits),
                        layout_.row_bytes - static_cast<int>(sizeof(T)));
  }
  DEVICE BlockAddresses block_at(int k) const {
    const int block = block_of(k);
    return {reinterpret_cast<const uint8_t*>(scales_ + block),
            zero_points_ + static_cast<uint32_t>(block * layout_.zero_point_bits) / 8};
  }
  // Returns `line`, or the last line if `line` is beyond it.
  DEVICE uint32_t clamp(int line) const { return static_cast<uint32_t>(min_int(line, last_)); }
  // The next functions take addresses in line 0. They load the same part of `line`, or return its address.
  template <class T>
  DEVICE T load(const uint8_t* weights, uint32_t line) const {
    return *reinterpret_cast<const T*>(at(weights, line));
  }
  DEVICE const uint8_t* at(const uint8_t* weights, uint32_t line) const {
    return weights + offset(line, layout_.row_bytes);
  }
  DEVICE BlockBits load_block(const BlockAddresses& first, uint32_t line) const {
    const uint8_t* const scale =
        first.scale + offset(line, layout_.blocks * static_cast<int>(sizeof(half_t)));
    return load_block({scale, first.zero_point + offset(line, layout_.zero_point_row_bytes)});
  }
  // Returns the addresses of the first block of a line; load_block() takes them to load any block of this line.
  DEVICE BlockAddresses line_blocks(uint32_t line) const {
    return {reinterpret_cast<const uint8_t*>(scales_) +
                offset(line, layout_.blocks * static_cast<int>(sizeof(half_t))),
            zero_points_ + offset(line, layout_.zero_point_row_bytes)};
  }
  DEVICE BlockBits load_block(const BlockAddresses& of_line, int block) const {
    return load_block({of_line.scale + block * static_cast<int>(sizeof(half_t)),
                       of_line.zero_point + static_cast<uint32_t>(block * layout_.zero_point_bits) / 8});
  }
  // Returns at which bit of its first byte the zero point of a block begins.
  DEVICE int zero_point_bit(int block) const { return block * layout_.zero_point_bits % 8; }
  DEVICE Dequantizer<kBits> dequantizer(const BlockBits& bits, int zero_point_bit) const {
    return {bits.scale, static_cast<uint32_t>(bits.zero_point >> zero_point_bit), layout_.zero_point};
  }

  // Returns k. On NVIDIA, the result depends on the data of `loaded`, so loads at index k start only when `loaded` has
  // arrived. If they started earlier, a wave that waits for `loaded` would also wait for them.
  DEVICE int depend_on(uint32_t loaded, int k) const {
    if (!kCopiesToLds) return k;
    // Rows have less than 2^23 bytes, which the compiler does not know.
    const int zero = layout_.row_bytes >> 24;
    return k + (static_cast<int>(loaded) & zero);
  }

 private:
  DEVICE static ptrdiff_t start(int line, int length) { return static_cast<ptrdiff_t>(line) * length; }
  DEVICE static uint64_t offset(uint32_t line, int length) {
    return multiply_wide(line, static_cast<uint32_t>(length));
  }

  DEVICE BlockBits load_block(const BlockAddresses& from) const {
    BlockBits bits = {*reinterpret_cast<const half_t*>(from.scale), 0};
    bits.zero_point = layout_.zero_point_bits == 16 ? *reinterpret_cast<const uint16_t*>(from.zero_point)
                                                    : *from.zero_point;
    return bits;
  }

  const PackedWeights& layout_;
  const uint8_t* b_;
  const half_t* scales_;
  const uint8_t* zero_points_;
  int last_;
};

// Dequantizes an operand whose lines are contiguous along K, and stores each line as a row in LDS. A work-item
// dequantizes runs of 16 elements of a line, which are in one block. With kAsyncCopies, the runs of a step are in
// registers before the step begins, and begin() is called for each part of the step (packs.h). Part i dequantizes and
// stores run i. The part of the last run also loads the runs of the next step. Without kAsyncCopies, begin() loads, and
// finish() dequantizes and stores. Callers must begin the steps in order.
template <int kBits, bool kAsyncCopies, int kLines, int kDepth, int kThreads>
struct PackedRows {
  static constexpr int kAcross = kDepth / 16, kRows = kThreads / kAcross, kRuns = kLines / kRows;
  static_assert(kRuns * kRows == kLines, "whole runs for every work-item");
  static_assert(!kAsyncCopies || kRuns <= kDepth / 16, "a part for each run");
  struct alignas(2 * kBits) Run {
    uint32_t v[kBits / 2];
  };

  PackedLines<kBits> weights;
  int row, column, k;  // k: of the runs in registers
  Run runs[kRuns];
  BlockBits blocks[kRuns];

  DEVICE PackedRows(const PackedLines<kBits>& lines, int first_k)
      : weights(lines), row(thread_x() / kAcross), column(thread_x() % kAcross * 16), k(first_k + column) {
    if (kAsyncCopies) load(k);
  }

  template <class Row>
  DEVICE void begin(Row* to, int part) {
    if (!kAsyncCopies) {
      load(k);
      return;
    }
    UNROLL for (int i = 0; i < kRuns; ++i) {
      if (part == kAllParts || part == i) store(to, i);
    }
    if (part != kAllParts && part != kRuns - 1) return;
    k = weights.depend_on(loaded(), k + kDepth);
    load(k);
  }
  template <class Row>
  DEVICE void finish(Row* to) {
    if (kAsyncCopies) return;
    UNROLL for (int i = 0; i < kRuns; ++i) store(to, i);
    k += kDepth;
  }

 private:
  DEVICE void load(int at) {
    const int first = opaque(row);  // else the addresses of all runs are kept in registers
    const uint8_t* const from = weights.template weights_at<Run>(at);
    const BlockAddresses block = weights.block_at(at);
    UNROLL for (int i = 0; i < kRuns; ++i) {
      const uint32_t line = weights.clamp(first + i * kRows);
      runs[i] = weights.template load<Run>(from, line);
      blocks[i] = weights.load_block(block, line);
    }
  }
  // Returns a value that depends on the loads of all runs and blocks.
  DEVICE uint32_t loaded() const {
    uint32_t bits = 0;
    UNROLL for (int i = 0; i < kRuns; ++i) {
      bits |= runs[i].v[0] | bit_cast<uint16_t>(blocks[i].scale) | blocks[i].zero_point;
    }
    return bits;
  }
  template <class Row>
  DEVICE void store(Row* to, int i) const {
    constexpr int kPairs = Dequantizer<kBits>::kPairs;
    const auto dequantizer = weights.dequantizer(blocks[i], weights.zero_point_bit(weights.block_of(k)));
    struct {
      uint32_t v[8];
    } elements;
    UNROLL for (int w = 0; w < kBits / 2; ++w) {
      uint32_t pairs[kPairs];
      dequantizer.dequantize(runs[i].v[w], pairs);
      deinterleave<kPairs>(pairs, elements.v + w * kPairs);
    }
    struct Halves {
      Pack<half_t> v[2];
    };
    const auto halves = bit_cast<Halves>(elements);
    UNROLL for (int half = 0; half < 2; ++half) {
      store_pack(&to[row + i * kRows][column + 8 * half], halves.v[half]);
    }
  }
};

}  // namespace graphopt::hip
