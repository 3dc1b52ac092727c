// Loads weights of 2, 4 or 8 bits and dequantizes them to float16 on the way to LDS.
#pragma once

#include "blocks/gpu/packed_weights.h"
#include "device/platform.h"
#include "gemm/loaders/packed_args.h"
#include "gemm/loaders/packs.h"

namespace graphopt::hip {

// A scale, and the byte or the two bytes that contain the zero point.
struct BlockBits {
  half_t scale;
  uint16_t point;
};

// The lines from `first` on of weights of kBits bits. Offsets from the first line have 32 bits.
template <int kBits>
class PackedLines {
 public:
  DEVICE PackedLines(const PackedWeights& layout, const uint8_t* b, const half_t* scales,
                     const uint8_t* points, int first, int lines)
      : layout_(layout),
        b_(b + start(first, layout.row_bytes)),
        scales_(scales + start(first, layout.blocks)),
        points_(points + start(first, layout.point_row_bytes)),
        last_(lines - 1),
        kind_(PointKind::of<kBits>(layout.point_bits)) {}

  // Returns the block of index k, at most the last one.
  DEVICE int block_of(int k) const {
    return min_int(static_cast<int>(divide(static_cast<uint32_t>(k), layout_.size)), layout_.blocks - 1);
  }
  // Loads the weights of a line from index k on as a T. Lines beyond the last one and indices beyond the end of a row
  // repeat the last.
  template <class T>
  DEVICE T load(int line, int k) const {
    const int at = min_int(k / 8 * kBits, layout_.row_bytes - static_cast<int>(sizeof(T)));
    return *reinterpret_cast<const T*>(b_ + offset(line, layout_.row_bytes, at));
  }
  DEVICE BlockBits load_block(int line, int block) const {
    BlockBits bits = {scales_[offset(line, layout_.blocks, block)], 0};
    const uint8_t* const point =
        points_ + offset(line, layout_.point_row_bytes, block * layout_.point_bits / 8);
    bits.point = layout_.point_bits == 16 ? *reinterpret_cast<const uint16_t*>(point) : *point;
    return bits;
  }
  DEVICE Dequantizer<kBits> dequantizer(const BlockBits& bits, int block) const {
    return {bits.scale, static_cast<uint32_t>(bits.point >> block * layout_.point_bits % 8), kind_};
  }

 private:
  DEVICE static ptrdiff_t start(int line, int length) { return static_cast<ptrdiff_t>(line) * length; }
  DEVICE uint32_t offset(int line, int length, int at) const {
    return static_cast<uint32_t>(min_int(line, last_)) * static_cast<uint32_t>(length) +
           static_cast<uint32_t>(at);
  }

  const PackedWeights& layout_;
  const uint8_t* b_;
  const half_t* scales_;
  const uint8_t* points_;
  int last_;
  PointKind kind_;
};

// Dequantizes an operand whose lines are contiguous along K to LDS with a row for each line. A work-item dequantizes runs
// of 16 elements of a line, which are in one block. kAsyncCopies: the registers hold the runs of a step until begin() of that
// step stores them and loads those of the next step. Otherwise begin() loads, and finish() stores. Callers must begin the
// steps, and the parts of each step, in order.
template <int kBits, bool kAsyncCopies, int kLines, int kDepth, int kThreads>
struct PackedRows {
  static constexpr int kAcross = kDepth / 16, kRows = kThreads / kAcross, kRuns = kLines / kRows;
  static constexpr int kParts = kDepth / 16;
  static_assert(kRuns * kRows == kLines, "whole runs for every work-item");
  struct alignas(2 * kBits) Run {
    uint32_t v[kBits / 2];
  };

  PackedLines<kBits> weights;
  int row, column, k;  // k: of the runs in registers
  Run runs[kRuns];
  BlockBits blocks[kRuns];

  DEVICE PackedRows(const PackedLines<kBits>& lines, int first_k)
      : weights(lines), row(thread_x() / kAcross), column(thread_x() % kAcross * 16), k(first_k + column) {
    if (!kAsyncCopies) return;
    load(kAllParts, k);
    load_blocks(0, k);
  }

  template <class Row>
  DEVICE void begin(Row* to, int part) {
    if (!kAsyncCopies) {
      load(kAllParts, k);
      load_blocks(kAllParts, k);
      return;
    }
    store(to, part);
    load(part, k + kDepth);
    // Only those of one part at a time, because they would take as many registers as the runs.
    if (is_last_part(part, kParts)) k += kDepth;
    load_blocks((part + 1) % kParts, k);
  }
  template <class Row>
  DEVICE void finish(Row* to) {
    if (kAsyncCopies) return;
    store(to, kAllParts);
    k += kDepth;
  }

 private:
  DEVICE static bool is_in(int i, int part) { return in_part(i, kRuns, part, kParts, kParts); }
  DEVICE void load(int part, int at) {
    const int first = opaque(row);  // otherwise the addresses of all runs are kept in registers
    UNROLL for (int i = 0; i < kRuns; ++i) {
      if (is_in(i, part)) runs[i] = weights.template load<Run>(first + i * kRows, at);
    }
  }
  DEVICE void load_blocks(int part, int at) {
    const int first = opaque(row), block = weights.block_of(at);
    UNROLL for (int i = 0; i < kRuns; ++i) {
      if (is_in(i, part)) blocks[i] = weights.load_block(first + i * kRows, block);
    }
  }
  template <class Row>
  DEVICE void store(Row* to, int part) const {
    const int block = weights.block_of(k);
    UNROLL for (int i = 0; i < kRuns; ++i) {
      if (!is_in(i, part)) continue;
      const auto dequantizer = weights.dequantizer(blocks[i], block);
      UNROLL for (int half = 0; half < 2; ++half) {
        store_pack(&to[row + i * kRows][column + 8 * half],
                   bit_cast<Pack<half_t>>(dequantizer.eight(runs[i].v, half)));
      }
    }
  }
};

}  // namespace graphopt::hip
