// MatMulNBits for many rows on NVIDIA's warpgroups (gemm/pipelines/wgmma.h).
//
// The weights are the left operand. A work-group computes kRows rows of 128 columns of Y, and each of its two
// warpgroups 64 of these columns. While the tensor cores multiply a step, work-items dequantize the weights of the next
// step. They also copy elements of A and packed weights of later steps to LDS.
#include "device/platform.h"
#include "gemm/kernels.h"
#include "gemm/loaders/packed.h"
#include "gemm/pipelines/wgmma.h"
#include "operators/matmul/matmul_nbits/args.h"

#if GRAPHOPT_WARPGROUPS

namespace graphopt::hip {

template <int kRows, int kBits>
class NBitsWarpgroups {
  using Instruction = WarpgroupInstruction<kRows>;
  using Rows = typename Instruction::Rows;
  static constexpr int kDepth = kNBitsWarpgroupDepth, kThreads = kNBitsWarpgroupThreads;
  static constexpr int kColumns = kNBitsWarpgroupColumns, kStages = kNBitsWarpgroupStages;
  // Packs of A of a work-item in a step are kRowsAtOnce rows apart.
  static constexpr int kRowsAtOnce = kThreads / (kDepth / 8), kPacks = kRows / kRowsAtOnce;
  static constexpr int kOutputRow = kColumns + 8;  // padded: rows begin in different banks
  // A work-item dequantizes kOwn consecutive weights of a column for a step, which are in one block.
  static constexpr int kOwn = kColumns * kDepth / kThreads, kOwnBytes = kOwn * kBits / 8;
  static constexpr int kCopyBytes = kOwnBytes < 16 ? kOwnBytes : 16;
  static_assert(kOwn == kNBitsWarpgroupBlock, "the block sizes that plans assume");

 public:
  struct Lds {
    alignas(1024) Rows a[kStages][kRows];
    Rows weights[3][kColumns];
    alignas(16) uint8_t packed[kStages][kColumns][kDepth * kBits / 8];
  };
  static_assert(kDepth == Instruction::kLdsRow && sizeof(Lds) == warpgroup_lds(kRows, kBits),
                "the size that plans assume");
  static_assert(sizeof(half_t) * kRows * kOutputRow <= sizeof(Lds), "rows of Y fit into LDS");

  DEVICE NBitsWarpgroups(const NBitsWarpgroupArgs& args, Lds& lds, int first_m, int first_n)
      : args_(args),
        lds_(lds),
        lines_(args.weights, args.b, args.scales, args.zero_points, first_n, args.N - first_n),
        first_m_(first_m),
        first_n_(first_n) {
    const half_t* const a = args.a;
    const int row = thread_x() / 8, pack = thread_x() % 8;
    from_a_ = a + static_cast<ptrdiff_t>(first_m) * args.K + pack * 8;
    to_a_ = row * kDepth + Instruction::swizzled(pack, row) * 8;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      rows_of_a_[i] = static_cast<uint32_t>(row + kRowsAtOnce * i) * static_cast<uint32_t>(args.K);
    }
    inside_ = max_int(0, args.M - first_m - row + kRowsAtOnce - 1) / kRowsAtOnce;
    const uint32_t line = lines_.clamp(own_column());
    packed_ = lines_.at(lines_.template weights_at<Bits128>(0), line);
    const BlockAddresses block = lines_.line_blocks(line);
    scales_ = block.scale;
    zero_points_ = block.zero_point;
  }

  DEVICE void run() {
    const int steps = (args_.K + kDepth - 1) / kDepth;
    UNROLL for (int step = 0; step < kStages - 2; ++step) copy(step, step);
    load_block(0);
    wait_for_copies_except<kStages - 3>();
    dequantize(0, 0, 0);
    Instruction::publish();
    barrier();
    int buffer = 0, weights = 0;
    NO_UNROLL for (int step = 0; step < steps; ++step) {
      Instruction::begin();
      UNROLL for (int k = 0; k < kDepth; k += 16) {
        sum_.multiply(lds_.weights[weights] + wave_id() / 4 * Instruction::kRows, lds_.a[buffer], k);
      }
      Instruction::end();
      // The copy overwrites the buffers of the step before the previous one, which all warpgroups have multiplied.
      copy(step + kStages - 2, buffer < 2 ? buffer + kStages - 2 : buffer - 2);
      buffer = buffer == kStages - 1 ? 0 : buffer + 1;
      weights = weights == 2 ? 0 : weights + 1;
      wait_for_copies_except<kStages - 3>();
      dequantize((step + 1) * kDepth, buffer, weights);
      Instruction::publish();
      Instruction::template wait_except<1>();
      barrier();
    }
    Instruction::template wait_except<0>();
    wait_for_copies();
    barrier();  // all warpgroups have read their operands
    store();
  }

 private:
  // Returns the column, and the first index k in a step, of the weights that this work-item copies and dequantizes.
  DEVICE static int own_column() { return thread_x() * kOwn / kDepth; }
  DEVICE static int own_k() { return thread_x() * kOwn % kDepth; }

  // Starts to copy both operands of a step. Elements beyond A are zeros. (Copies of the last row instead would all wait
  // for the same addresses.) Weights beyond K repeat the last ones.
  DEVICE void copy(int step, int buffer) {
    const int k = step * kDepth;
    const int inside = k + thread_x() % 8 * 8 < args_.K ? inside_ : 0;
    const half_t* const from = from_a_ + k;
    half_t* const to = &lds_.a[buffer][0][0] + to_a_;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      copy_to_lds(to + kRowsAtOnce * i * kDepth, from + rows_of_a_[i], i < inside);
    }
    UNROLL for (int i = 0; i < kOwnBytes; i += kCopyBytes) {
      const int byte = min_int((k + own_k()) * kBits / 8 + i, args_.weights.row_bytes - kCopyBytes);
      copy_to_lds<kCopyBytes>(&lds_.packed[buffer][own_column()][own_k() * kBits / 8 + i], packed_ + byte,
                              true);
    }
    end_group_of_copies();
  }
  // Loads the scale and the zero point of a step.
  DEVICE void load_block(int k) {
    const int block = lines_.block_of(k + own_k());
    block_ = lines_.load_block({scales_, zero_points_}, block);
    zero_point_bit_ = lines_.zero_point_bit(block);
  }
  // Dequantizes the weights of the step from index k on. Their scale and zero point have been loaded; loads the scale
  // and the zero point of the next step.
  DEVICE void dequantize(int k, int buffer, int to) {
    constexpr int kPairs = Dequantizer<kBits>::kPairs, kWords = kOwnBytes / 4;
    const int column = own_column();
    struct alignas(kCopyBytes) Words {
      uint32_t v[kWords];
    };
    const auto packed = *reinterpret_cast<const Words*>(&lds_.packed[buffer][column][own_k() * kBits / 8]);
    const auto dequantizer = lines_.dequantizer(block_, zero_point_bit_);
    load_block(k + kDepth);
    uint32_t elements[kOwn / 2];
    UNROLL for (int w = 0; w < kWords; ++w) {
      uint32_t pairs[kPairs];
      dequantizer.dequantize(packed.v[w], pairs);
      deinterleave<kPairs>(pairs, elements + w * kPairs);
    }
    UNROLL for (int i = 0; i < kOwn / 8; ++i) {
      const Pack<uint32_t> pack = {
          {elements[4 * i], elements[4 * i + 1], elements[4 * i + 2], elements[4 * i + 3]}};
      store_pack(reinterpret_cast<uint32_t*>(
                     &lds_.weights[to][column][Instruction::swizzled(own_k() / 8 + i, column) * 8]),
                 pack);
    }
  }
  // Adds the bias to the sums, transposes them through LDS, and stores rows of Y.
  DEVICE void store() {
    const auto rows = reinterpret_cast<half_t(*)[kOutputRow]>(&lds_);
    const half_t* const bias = args_.bias;
    UNROLL for (int r = 0; r < 2; ++r) {
      const int column = wave_id() * 16 + lane_id() / 4 + 8 * r;
      float added = 0;
      if (bias != nullptr && first_n_ + column < args_.N) added = to_float(bias[first_n_ + column]);
      UNROLL for (int t = 0; t < kRows / 8; ++t) {
        UNROLL for (int e = 0; e < 2; ++e) {
          rows[t * 8 + lane_id() % 4 * 2 + e][column] = from_float<half_t>(sum_.v[4 * t + 2 * r + e] + added);
        }
      }
    }
    barrier();
    constexpr int kAcross = kColumns / 8;
    const int first = thread_x() % kAcross * 8, inside = args_.N - first_n_ - first;
    const int count = min_int(kRows, args_.M - first_m_);
    half_t* const y = args_.y;
    NO_UNROLL for (int row = thread_x() / kAcross; row < count; row += kThreads / kAcross) {
      half_t* const to = y + static_cast<ptrdiff_t>(first_m_ + row) * args_.N + first_n_ + first;
      const Pack<half_t> pack = load_pack(&rows[row][first]);
      if (args_.is_aligned != 0) {
        if (inside > 0) store_pack(to, pack);
      } else {
        UNROLL for (int i = 0; i < 8; ++i) {
          if (i < inside) to[i] = pack.v[i];
        }
      }
    }
  }

  const NBitsWarpgroupArgs& args_;
  Lds& lds_;
  PackedLines<kBits> lines_;
  int first_m_, first_n_;
  // from_a_: the pack of this work-item in the tile's first row of A. to_a_: the position of its first pack in LDS.
  // rows_of_a_: offsets of its rows of A. packed_, scales_ and zero_points_: those of its column.
  const half_t* from_a_;
  int to_a_;
  uint32_t rows_of_a_[kPacks];
  int inside_;  // the number of these rows that A has
  const uint8_t *packed_, *scales_, *zero_points_;
  // Of the next weights to dequantize.
  BlockBits block_;
  int zero_point_bit_;
  Instruction sum_;
};

template <int kRows, int kBits>
DEVICE void matmul_nbits_warpgroups(const NBitsWarpgroupArgs& args) {
  using Gemm = NBitsWarpgroups<kRows, kBits>;
  LARGE_SHARED(lds, typename Gemm::Lds);
  const auto id = static_cast<uint32_t>(block_x()), across = divide(id, args.down);
  Gemm gemm(args, lds, static_cast<int>(id - across * args.down.d) * kRows,
            static_cast<int>(across) * kNBitsWarpgroupColumns);
  gemm.run();
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define NBITS_WARPGROUP_KERNEL(name, rows, bits)                                                            \
  KERNEL_OF(matmul_nbits_warpgroups_##bits##_##name##_f16, (matmul_nbits_warpgroups<rows, bits>),           \
            (LaunchBounds{kNBitsWarpgroupThreads, 1}), NBitsWarpgroupArgs, a, b, scales, zero_points, bias, \
            y)
#define NBITS_WARPGROUP_KERNELS(name, targets, rows, ...)                                       \
  GEMM_ON_##targets(NBITS_WARPGROUP_KERNEL(name, rows, 2) NBITS_WARPGROUP_KERNEL(name, rows, 4) \
                        NBITS_WARPGROUP_KERNEL(name, rows, 8))
GEMM_WARPGROUP_TILES(NBITS_WARPGROUP_KERNELS)

#endif
