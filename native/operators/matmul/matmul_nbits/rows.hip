// MatMulNBits for few rows on the matrix units, in float16.
//
// Memory-bound: the packed weights are read once for any number of rows, 8 or 16 bytes of a column at a time. A wave
// keeps the elements of A of a slice of K in registers and streams the columns of its work-group, 16 at a time. Its
// work-items load weights for their lines of the left operand (gemm/pipelines/instruction.h), dequantize them in
// registers, and multiply them by the elements of A at the same indices k. The weights are the left operand, because
// NVIDIA's instruction then reads the elements of A from the registers to which they were loaded. The matrix units
// multiply 16 rows in the time of one (on NVIDIA 8 rows). The waves of a work-group have different slices of K and add
// up their sums in LDS.
#include "blocks/gpu/packed_weights.h"
#include "device/platform.h"
#include "gemm/loaders/packed.h"
#include "gemm/pipelines/instruction.h"
#include "operators/matmul/matmul_nbits/args.h"

namespace graphopt::hip {

// kBlocks: the number of blocks in a load of weights. kRows: the maximum number of rows of A, 8 or 16; only NVIDIA's
// instruction multiplies 8 rows faster than 16.
template <int kBits, int kBlocks, int kRows, class Unit = hip::Instruction<half_t>>
class NBitsRows {
  using Instruction = Unit;
  static constexpr int kLines = Instruction::kLines, kParts = Instruction::kParts;
  static constexpr int kRightLines = kRows == 8 ? 1 : kLines;
  static constexpr int kSums = kRows == 8 ? Instruction::kSums / 2 : Instruction::kSums;
  static constexpr int kPairs = Dequantizer<kBits>::kPairs;
  // Words of weights for one multiplication.
  static constexpr int kWords = Instruction::kPairs > kPairs ? Instruction::kPairs / kPairs : 1;
  static constexpr int kElements = row_elements(kBits), kLoads = row_loads(kRightLines);
  static constexpr int kLoadWords = kElements * kBits / 32;
  static constexpr int kPart = kElements * kParts;  // length along K of one load of a wave
  static constexpr int kSlice = kPart * kLoads;

  struct alignas(4 * kLoadWords) Words {
    uint32_t v[kLoadWords];
  };
  // The weights of 16 columns for a slice of K.
  struct Columns {
    Words weights[kLoads][kLines];
    BlockBits blocks[kLoads][kLines][kBlocks];
  };

  // Elements of A for one load of a line.
  struct Elements {
    uint32_t v[kElements / 2];
  };

 public:
  DEVICE NBitsRows(const NBitsRowsArgs& args, int first_tile, float* sums)
      : args_(args),
        lines_(args.weights, args.b, args.scales, args.zero_points, first_tile * 16,
               args.N - first_tile * 16),
        sums_(sums),
        tiles_(min_int(args.tiles, (args.N + 15) / 16 - first_tile)) {}

  DEVICE void run() {
    int k = wave_id() * kSlice, tile = 0;  // of the current tile
    int next_k = k, next_tile = 0;         // of the next load
    if (k >= args_.K) return;
    const auto load_next = [&](Columns& to) {
      load(to, next_tile);
      if (++next_tile < tiles_) return;
      next_tile = 0;
      next_k += kSlice * args_.waves;
      enter_slice(next_k);
    };
    Columns columns[2];
    enter_slice(k);
    load_next(columns[0]);
    // Multiplies `now` and loads the next columns of this wave. Returns whether there are more columns.
    const auto step = [&](const Columns& now, Columns& next) {
      if (tile == 0) load_right(k);
      next_k = lines_.depend_on(some_of(now), next_k);
      const bool more = next_k < args_.K;
      if (more) load_next(next);
      multiply(now, k, tile);
      if (++tile == tiles_) {
        tile = 0;
        k += kSlice * args_.waves;
      }
      return more;
    };
    while (step(columns[0], columns[1]) && step(columns[1], columns[0])) {
    }
  }

  // Adds the sums of all waves, and stores them.
  DEVICE void finish(int first_tile, const float* sums) const {
    const half_t* const bias = args_.bias;
    half_t* const y = args_.y;
    const int used = min_int(args_.waves, (args_.K + kSlice - 1) / kSlice);
    for (int tile = wave_id(); tile < tiles_; tile += args_.waves) {
      UNROLL for (int s = 0; s < kSums; s += 4) {
        Pack<float> total = {};
        for (int wave = 0; wave < used; ++wave) {
          const Pack<float> part = load_pack(sums + offset(args_, wave, tile) + s * kWave);
          UNROLL for (int e = 0; e < 4; ++e) total.v[e] += part.v[e];
        }
        UNROLL for (int e = 0; e < 4; ++e) {
          const int n = (first_tile + tile) * 16 + Instruction::row(Instruction::row_of(s + e));
          const int m = Instruction::column(s + e);
          if (m >= args_.M || n >= args_.N) continue;
          const float sum = total.v[e] + (bias != nullptr ? to_float(bias[n]) : 0.0f);
          y[static_cast<ptrdiff_t>(m) * args_.N + n] = from_float<half_t>(sum);
        }
      }
    }
  }

 private:
  // Returns the offset of the sums of a work-item.
  DEVICE static int offset(const NBitsRowsArgs& args, int wave, int tile) {
    return (wave * args.tiles + tile) * (kSums * kWave) + lane_id() * 4;
  }
  // Returns the index along K of this work-item's first element in load number `load` of the slice that starts at k.
  DEVICE static int own(int k, int load) { return k + load * kPart + Instruction::part() * kElements; }
  DEVICE static int of_block(int k, int block) { return k + kElements / kBlocks * block; }

  // Computes the addresses of the slice that starts at index first_k.
  DEVICE void enter_slice(int first_k) {
    weights_ = lines_.template weights_at<Words>(own(first_k, 0));
    apart_ = static_cast<int>(lines_.template weights_at<Words>(own(first_k, kLoads - 1)) - weights_);
    UNROLL for (int i = 0; i < kLoads; ++i) {
      const int k = own(first_k, i);
      UNROLL for (int b = 0; b < kBlocks; ++b) blocks_[i][b] = lines_.block_at(of_block(k, b));
    }
  }
  DEVICE void load(Columns& to, int tile) const {
    UNROLL for (int l = 0; l < kLines; ++l) {
      const uint32_t line = lines_.clamp(tile * 16 + Instruction::line(l));
      UNROLL for (int i = 0; i < kLoads; ++i) {
        to.weights[i][l] = lines_.template load<Words>(weights_ + i * apart_, line);
        UNROLL for (int b = 0; b < kBlocks; ++b) to.blocks[i][l][b] = lines_.load_block(blocks_[i][b], line);
      }
    }
  }
  // Returns a value that depends on all loads of weights in load().
  DEVICE static uint32_t some_of(const Columns& columns) {
    uint32_t some = 0;
    UNROLL for (int i = 0; i < kLoads; ++i) {
      UNROLL for (int l = 0; l < kLines; ++l) { some |= columns.weights[i][l].v[kLoadWords - 1]; }
    }
    return some;
  }

  DEVICE void load_right(int first_k) {
    UNROLL for (int i = 0; i < kLoads; ++i) {
      const int k = own(first_k, i);
      UNROLL for (int b = 0; b < kBlocks; ++b) zero_point_bits_[i][b] =
          lines_.zero_point_bit(lines_.block_of(of_block(k, b)));
      UNROLL for (int l = 0; l < kRightLines; ++l) {
        const half_t* const a = args_.a;
        const half_t* const row =
            a + static_cast<ptrdiff_t>(min_int(Instruction::line(l), args_.M - 1)) * args_.K;
        struct {
          Bits128 v[kElements / 8];
        } packs;
        UNROLL for (int j = 0; j < kElements / 8; ++j) {
          packs.v[j] = Bits128{};
          if (k + 8 * j < args_.K) packs.v[j] = *reinterpret_cast<const Bits128*>(row + k + 8 * j);
        }
        const auto consecutive = bit_cast<Elements>(packs);
        UNROLL for (int j = 0; j < kElements / 2; j += kPairs) {
          interleave<kPairs>(consecutive.v + j, right_[i][l].v + j);
        }
      }
    }
  }

  // Multiplies a tile of columns by the rows of A and adds the result to the sums in LDS. The first slice of a wave
  // stores the result instead, because LDS is not initialized.
  DEVICE void multiply(const Columns& columns, int k, int tile) {
    typename Instruction::Sum sum = {};
    UNROLL for (int i = 0; i < kLoads; ++i) {
      UNROLL for (int word = 0; word < kLoadWords; word += kWords) {
        uint32_t left[kLines][kWords * kPairs];
        UNROLL for (int l = 0; l < kLines; ++l) {
          UNROLL for (int w = 0; w < kWords; ++w) {
            const int block = (word + w) * kBlocks / kLoadWords;
            lines_.dequantizer(columns.blocks[i][l][block], zero_point_bits_[i][block])
                .dequantize(columns.weights[i][l].v[word + w], left[l] + w * kPairs);
          }
        }
        UNROLL for (int j = 0; j < kWords * kPairs; j += Instruction::kPairs) {
          const auto weight = [&](int l, int pair) { return left[l][j + pair]; };
          const auto element = [&](int l, int pair) {
            return l < kRightLines ? right_[i][l].v[word * kPairs + j + pair] : 0;
          };
          const auto of_weights = Instruction::left_of(weight);
          if constexpr (kRows == 8) {
            Instruction::multiply_half(sum, of_weights, Instruction::right_of(element));
          } else {
            Instruction::multiply(sum, of_weights, Instruction::right_of(element));
          }
        }
      }
    }
    float* const to = sums_ + offset(args_, wave_id(), tile);
    UNROLL for (int s = 0; s < kSums; s += 4) {
      Pack<float> total = {};
      if (k >= kSlice * args_.waves) total = load_pack(to + s * kWave);
      UNROLL for (int e = 0; e < 4; ++e) total.v[e] += sum.v[s + e];
      store_pack(to + s * kWave, total);
    }
  }

  const NBitsRowsArgs& args_;
  PackedLines<kBits> lines_;
  float* sums_;
  int tiles_;
  // Of the slice of the next load.
  const uint8_t* weights_;
  int apart_;  // bytes from the first load of a line to the second one
  BlockAddresses blocks_[kLoads][kBlocks];
  // Of the current slice: the offsets of zero points in their bytes, and the elements of A in the order of dequantized
  // weights.
  int zero_point_bits_[kLoads][kBlocks];
  Elements right_[kLoads][kRightLines];
};

template <int kBits, int kBlocks, int kRows>
DEVICE void matmul_nbits_rows(const NBitsRowsArgs& args) {
  DYNAMIC_SHARED(sums, float);
  const int first_tile = block_x() * args.tiles;
  NBitsRows<kBits, kBlocks, kRows> rows(args, first_tile, sums);
  rows.run();
  barrier();
  rows.finish(first_tile, sums);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#if GRAPHOPT_MATRIX_F16
KERNEL_OF(matmul_nbits_rows_2x1_f16, (matmul_nbits_rows<2, 1, 16>), row_threads(1), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
KERNEL_OF(matmul_nbits_rows_2x2_f16, (matmul_nbits_rows<2, 2, 16>), row_threads(2), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
KERNEL_OF(matmul_nbits_rows_4x1_f16, (matmul_nbits_rows<4, 1, 16>), row_threads(1), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
KERNEL_OF(matmul_nbits_rows_4x2_f16, (matmul_nbits_rows<4, 2, 16>), row_threads(2), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
KERNEL_OF(matmul_nbits_rows_8x1_f16, (matmul_nbits_rows<8, 1, 16>), row_threads(1), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
#endif
#if defined(__CUDACC__)
KERNEL_OF(matmul_nbits_eight_rows_2x1_f16, (matmul_nbits_rows<2, 1, 8>), row_threads(1), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
KERNEL_OF(matmul_nbits_eight_rows_2x2_f16, (matmul_nbits_rows<2, 2, 8>), row_threads(2), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
KERNEL_OF(matmul_nbits_eight_rows_4x1_f16, (matmul_nbits_rows<4, 1, 8>), row_threads(1), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
KERNEL_OF(matmul_nbits_eight_rows_4x2_f16, (matmul_nbits_rows<4, 2, 8>), row_threads(2), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
KERNEL_OF(matmul_nbits_eight_rows_8x1_f16, (matmul_nbits_rows<8, 1, 8>), row_threads(1), NBitsRowsArgs, a, b,
          scales, zero_points, bias, y)
#endif
