// MatMulNBits for few rows on the matrix units, in float16.
//
// Memory-bound: the packed weights are read once, 16 bytes of a column at a time, whatever the number of rows. A
// work-item loads the weights of its lines of the left operand (gemm/pipelines/instruction.h), dequantizes them in
// registers, and multiplies them by the elements of A at the same indices k; nothing passes through LDS. The weights
// are on the left because NVIDIA's instruction then takes the elements of A from the registers that they were loaded
// to. The matrix units multiply 16 rows in the time of one. A work-group computes all rows of kNBitsColumns columns.
// Its waves take steps along K in turn, so that consecutive bytes of a column are read at the same time, and add up
// their sums in LDS.
#include "blocks/gpu/packed_weights.h"
#include "device/platform.h"
#include "gemm/loaders/packed.h"
#include "gemm/pipelines/instruction.h"
#include "operators/matmul/matmul_nbits/args.h"

namespace graphopt::hip {

// kRows: the most rows of A. With 8 rows, which only NVIDIA's instruction multiplies faster than 16, registers suffice
// to load the elements of A, too, a step in advance.
template <int kBits, int kBlocks, int kRows, class Unit = hip::Instruction<half_t>>
struct NBitsRows {
  using Instruction = Unit;
  static constexpr int kLines = Instruction::kLines, kPairs = Instruction::kPairs;
  static constexpr int kTiles = kNBitsColumns<kBits> / 16;
  static constexpr int kElements = 128 / kBits, kPacks = kElements / 8;  // of 16 bytes of weights
  static constexpr int kStep = kElements * Instruction::kParts;          // indices k of a wave
  static constexpr int kPacksAtOnce = kPairs > 4 ? kPairs / 4 : 1;       // packs for one multiplication
  static constexpr bool kTogether = kRows == 8;
  static constexpr int kRightLines = kTogether ? 1 : kLines;

  struct Words {
    uint32_t v[4];
  };
  // 16 bytes of weights of each line, and the elements of A at the same indices k.
  struct Step {
    Bits128 bits[kTiles][kLines];
    BlockBits blocks[kTiles][kLines][kBlocks];
    Words right[kRightLines][kPacks];
  };

  const NBitsRowsArgs& args;
  PackedLines<kBits> lines;
  const half_t* rows[kRightLines];
  typename Instruction::Sum sum[kTiles] = {};

  DEVICE NBitsRows(const NBitsRowsArgs& of, int first_n)
      : args(of), lines(of.weights, of.b, of.scales, of.points, first_n, of.N - first_n) {
    const half_t* const a = args.a;
    UNROLL for (int i = 0; i < kRightLines; ++i) {
      rows[i] = a + static_cast<ptrdiff_t>(min_int(Instruction::line(i), args.M - 1)) * args.K;
    }
  }

  DEVICE int block_of(int k, int block) const { return lines.block_of(k + kElements / kBlocks * block); }
  DEVICE void load_weights(Step& to, int k) const {
    UNROLL for (int t = 0; t < kTiles; ++t) {
      UNROLL for (int i = 0; i < kLines; ++i) {
        const int line = t * 16 + Instruction::line(i);
        to.bits[t][i] = lines.template load<Bits128>(line, k);
        UNROLL for (int b = 0; b < kBlocks; ++b) {
          to.blocks[t][i][b] = lines.load_block(line, block_of(k, b));
        }
      }
    }
  }

  DEVICE Words load_row(int i, int k) const {
    const Bits128 bits = *reinterpret_cast<const Bits128*>(rows[i] + k);
    return bit_cast<Words>(bits);
  }
  // `whole`: the step of this wave ends before K.
  DEVICE void load_rows(Step& to, int k, bool whole) const {
    UNROLL for (int i = 0; i < kRightLines; ++i) {
      if (whole) {
        UNROLL for (int p = 0; p < kPacks; ++p) to.right[i][p] = load_row(i, k + 8 * p);
      } else {
        UNROLL for (int p = 0; p < kPacks; ++p) {
          to.right[i][p] = k + 8 * p < args.K ? load_row(i, k + 8 * p) : Words{};
        }
      }
    }
  }
  // Returns k when a step has arrived (PackedLines::after).
  DEVICE int after(const Step& step, int k) const {
    uint32_t some = step.right[kRightLines - 1][kPacks - 1].v[3];
    UNROLL for (int t = 0; t < kTiles; ++t) {
      UNROLL for (int i = 0; i < kLines; ++i) some |= bit_cast<Words>(step.bits[t][i]).v[3];
    }
    return lines.after(some, k);
  }
  // Adds the products of the weights from index k on and the rows of A.
  DEVICE void multiply(const Step& from, int k) {
    UNROLL for (int t = 0; t < kTiles; ++t) {
      UNROLL for (int p = 0; p < kPacks; p += kPacksAtOnce) {
        Words left[kLines][kPacksAtOnce];
        UNROLL for (int i = 0; i < kLines; ++i) {
          const auto packed = bit_cast<Words>(from.bits[t][i]);
          UNROLL for (int at = 0; at < kPacksAtOnce; ++at) {
            const int block = (p + at) * kBlocks / kPacks;
            const auto dequantizer = lines.dequantizer(from.blocks[t][i][block], block_of(k, block));
            left[i][at] = bit_cast<Words>(dequantizer.eight(packed.v, p + at));
          }
        }
        UNROLL for (int j = 0; j < 4 * kPacksAtOnce; j += kPairs) {
          const auto weight = [&](int i, int pair) { return left[i][(j + pair) / 4].v[(j + pair) % 4]; };
          const auto element = [&](int i, int pair) {
            return i < kRightLines ? from.right[i][p + (j + pair) / 4].v[(j + pair) % 4] : 0;
          };
          const auto of_weights = Instruction::left_of(weight);
          if constexpr (kTogether) {
            Instruction::multiply_half(sum[t], of_weights, Instruction::right_of(element));
          } else {
            Instruction::multiply(sum[t], of_weights, Instruction::right_of(element));
          }
        }
      }
    }
  }
};

template <int kBits, int kBlocks, int kRows>
DEVICE void matmul_nbits_rows(const NBitsRowsArgs& args) {
  using Rows = NBitsRows<kBits, kBlocks, kRows>;
  using Instruction = typename Rows::Instruction;
  using Step = typename Rows::Step;
  DYNAMIC_SHARED(sums, float);
  constexpr int kColumns = kNBitsColumns<kBits>;
  const int first_n = block_x() * kColumns, distance = Rows::kStep * args.waves;
  Rows product(args, first_n);
  int first = wave_id() * Rows::kStep;
  const int own = Instruction::part() * Rows::kElements;
  const auto load = [&](Step& to) {
    product.load_weights(to, first + own);
    if (Rows::kTogether) product.load_rows(to, first + own, first + Rows::kStep <= args.K);
  };
  Step steps[2];
  // Multiplies `now` and loads the next step of this wave. Returns whether there is one.
  const auto run = [&](Step& now, Step& next) {
    const int k = first;
    if (!Rows::kTogether) product.load_rows(now, k + own, k + Rows::kStep <= args.K);
    first = product.after(now, first + distance);
    if (first < args.K) load(next);
    product.multiply(now, k + own);
    return first < args.K;
  };
  if (first < args.K) {
    load(steps[0]);
    while (run(steps[0], steps[1]) && run(steps[1], steps[0])) {
    }
  }
  UNROLL for (int t = 0; t < Rows::kTiles; ++t) {
    UNROLL for (int s = 0; s < Instruction::kSums; ++s) {
      const int n = t * 16 + Instruction::row(Instruction::row_of(s)), m = Instruction::column(s);
      if (m < args.M) sums[(wave_id() * args.M + m) * kColumns + n] = product.sum[t].v[s];
    }
  }
  barrier();
  const half_t* const bias = args.bias;
  half_t* const y = args.y;
  const int count = args.M * kColumns;
  for (int i = thread_x(); i < count; i += args.waves * kWave) {
    const int m = i / kColumns, n = first_n + i % kColumns;
    if (n >= args.N) continue;
    float total = bias != nullptr ? to_float(bias[n]) : 0.0f;
    for (int wave = 0; wave < args.waves; ++wave) total += sums[wave * count + i];
    y[static_cast<ptrdiff_t>(m) * args.N + n] = from_float<half_t>(total);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#if GRAPHOPT_MATRIX_F16
KERNEL_OF(matmul_nbits_rows_2x1_f16, (matmul_nbits_rows<2, 1, 16>), (kNBitsMaxThreads<2, 1>), NBitsRowsArgs,
          a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_rows_2x2_f16, (matmul_nbits_rows<2, 2, 16>), (kNBitsMaxThreads<2, 2>), NBitsRowsArgs,
          a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_rows_2x4_f16, (matmul_nbits_rows<2, 4, 16>), (kNBitsMaxThreads<2, 4>), NBitsRowsArgs,
          a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_rows_4x1_f16, (matmul_nbits_rows<4, 1, 16>), (kNBitsMaxThreads<4, 1>), NBitsRowsArgs,
          a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_rows_4x2_f16, (matmul_nbits_rows<4, 2, 16>), (kNBitsMaxThreads<4, 2>), NBitsRowsArgs,
          a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_rows_8x1_f16, (matmul_nbits_rows<8, 1, 16>), (kNBitsMaxThreads<8, 1>), NBitsRowsArgs,
          a, b, scales, points, bias, y)
#endif
#if defined(__CUDACC__)
KERNEL_OF(matmul_nbits_eight_rows_2x1_f16, (matmul_nbits_rows<2, 1, 8>), (kNBitsMaxThreads<2, 1>),
          NBitsRowsArgs, a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_eight_rows_2x2_f16, (matmul_nbits_rows<2, 2, 8>), (kNBitsMaxThreads<2, 2>),
          NBitsRowsArgs, a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_eight_rows_2x4_f16, (matmul_nbits_rows<2, 4, 8>), (kNBitsMaxThreads<2, 4>),
          NBitsRowsArgs, a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_eight_rows_4x1_f16, (matmul_nbits_rows<4, 1, 8>), (kNBitsMaxThreads<4, 1>),
          NBitsRowsArgs, a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_eight_rows_4x2_f16, (matmul_nbits_rows<4, 2, 8>), (kNBitsMaxThreads<4, 2>),
          NBitsRowsArgs, a, b, scales, points, bias, y)
KERNEL_OF(matmul_nbits_eight_rows_8x1_f16, (matmul_nbits_rows<8, 1, 8>), (kNBitsMaxThreads<8, 1>),
          NBitsRowsArgs, a, b, scales, points, bias, y)
#endif
