// Loads weights of 2, 4 or 8 bits and dequantizes them to float16 on the way to LDS.
#pragma once

#include "blocks/gpu/packed_weights.h"
#include "device/platform.h"
#include "gemm/loaders/packed_args.h"
#include "gemm/loaders/packs.h"

namespace graphopt::hip {

// A scale, and the byte or the two bytes that contain the zero point, in a register of their own.
struct BlockBits {
  half_t scale;
  uint32_t point;
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

  // Returns k; on NVIDIA, when `loaded` has arrived. One scoreboard tracks all loads there: a wave that waits for some
  // elements also waits for later ones if it has started to load them. The index k of these therefore depends on
  // `loaded`.
  DEVICE int after(uint32_t loaded, int k) const {
    if (!kCopiesToLds) return k;
    const int zero = layout_.row_bytes >> 24;  // unknown to the compiler: 256 rows have less than 2^31 bytes
    return k + (static_cast<int>(loaded) & zero);
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

// Dequantizes an operand whose lines are contiguous along K to LDS with a row for each line. A work-item dequantizes
// runs of 16 elements of a line, which are in one block. kAsyncCopies: the registers hold the runs of a step until
// begin() of that step stores them and loads those of the next step, all in part 0. Otherwise begin() loads, and
// finish() stores. Callers must begin the steps in order.
template <int kBits, bool kAsyncCopies, int kLines, int kDepth, int kThreads>
struct PackedRows {
  static constexpr int kAcross = kDepth / 16, kRows = kThreads / kAcross, kRuns = kLines / kRows;
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
    if (kAsyncCopies) load(k);
  }

  template <class Row>
  DEVICE void begin(Row* to, int part) {
    if (!kAsyncCopies) {
      load(k);
    } else if (part <= 0) {  // also kAllParts
      store(to);
      k = weights.after(loaded(), k + kDepth);
      load(k);
    }
  }
  template <class Row>
  DEVICE void finish(Row* to) {
    if (kAsyncCopies) return;
    store(to);
    k += kDepth;
  }

 private:
  DEVICE void load(int at) {
    const int first = opaque(row),
              block = weights.block_of(at);  // else the addresses of all runs are kept in registers
    UNROLL for (int i = 0; i < kRuns; ++i) {
      runs[i] = weights.template load<Run>(first + i * kRows, at);
      blocks[i] = weights.load_block(first + i * kRows, block);
    }
  }
  // Returns bits of all runs and blocks.
  DEVICE uint32_t loaded() const {
    uint32_t some = 0;
    UNROLL for (int i = 0; i < kRuns; ++i) {
      some |= runs[i].v[0] | bit_cast<uint16_t>(blocks[i].scale) | blocks[i].point;
    }
    return some;
  }
  template <class Row>
  DEVICE void store(Row* to) const {
    const int block = weights.block_of(k);
    UNROLL for (int i = 0; i < kRuns; ++i) {
      const auto dequantizer = weights.dequantizer(blocks[i], block);
      UNROLL for (int half = 0; half < 2; ++half) {
        store_pack(&to[row + i * kRows][column + 8 * half],
                   bit_cast<Pack<half_t>>(dequantizer.eight(runs[i].v, half)));
      }
    }
  }
};

}  // namespace graphopt::hip
