// WinogradConv[Add][act] in float16 on the matrix units: an implicit GEMM over the nine taps and the channels, with
// float32 sums.
//
// X is first packed to [N, PH, PW, Cp], with its padding, and with channels padded to a multiple of 32. For each tap,
// 32 channels of a pixel are then 64 contiguous bytes. All copies to LDS move 16 bytes, without checks of the image's
// bounds. Y [M, pixels] = U [M, 9 Cp] patches [9 Cp, pixels]; gemm/pipelines/instruction.h multiplies.
//
// The kernels need 18 N OH OW C M FLOPs, for (2 H W C + 2 OH OW M) N bytes, and write and read the packed X once. They
// are compute-bound from about 64 channels on, and reach 200 of the 725 TFLOP/s of a large GEMM on an H200. Launch:
// operators/conv/winograd/plan.cpp.
#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "gemm/loaders/packs.h"
#include "gemm/pipelines/matrix.h"
#include "operators/conv/winograd/matrix_args.h"

namespace graphopt::hip {

DEVICE void matrix_filter(const MatrixFilterArgs& args) {
  const half_t* w = args.w;
  half_t* u = args.u;
  const int32_t M = args.M, C = args.C;
  const Divisor& channels = args.channels;
  const uint32_t i = work_item(kMatrixConvThreads);
  if (i >= args.total) return;
  const uint32_t line = divide(i, channels);
  const auto c = static_cast<int>(i - line * channels.d), m = static_cast<int>(line / 9),
             tap = static_cast<int>(line % 9);
  u[i] = m < M && c < C ? w[(static_cast<size_t>(m) * static_cast<size_t>(C) + static_cast<size_t>(c)) * 9 +
                            static_cast<size_t>(tap)]
                        : from_float<half_t>(0.0f);
}

DEVICE void matrix_pack(const MatrixPackArgs& args) {
  const half_t* x = args.x;
  half_t* packed = args.packed;
  const int32_t C = args.image.C, H = args.image.H, W = args.image.W;
  const Divisor &pixels = args.pixels, &across = args.across, &parts = args.parts;
  const uint32_t i = work_item(kMatrixConvThreads);
  if (i >= args.total) return;
  const uint32_t line = divide(i, pixels), pixel = i - line * pixels.d;
  const uint32_t n = divide(line, parts), part = line - n * parts.d;
  const uint32_t row = divide(pixel, across);
  const int h = static_cast<int>(row) - args.image.pad_top,
            w = static_cast<int>(pixel - row * across.d) - args.image.pad_left;
  const bool inside = h >= 0 && h < H && w >= 0 && w < W;
  const size_t plane = static_cast<size_t>(H) * static_cast<size_t>(W);
  const auto first = static_cast<int>(part * 16);
  const half_t* from =
      x + (static_cast<size_t>(n) * static_cast<size_t>(C) + static_cast<size_t>(first)) * plane +
      (inside ? static_cast<size_t>(h) * static_cast<size_t>(W) + static_cast<size_t>(w) : 0);
  half_t* to = packed + ((static_cast<size_t>(n) * pixels.d + pixel) * parts.d + part) * 16;
  UNROLL for (int half = 0; half < 2; ++half) {
    Pack<half_t> pack = {};
    UNROLL for (int e = 0; e < 8; ++e) {
      const int c = half * 8 + e;
      if (inside && first + c < C) pack.v[e] = from[static_cast<size_t>(c) * plane];
    }
    store_pack(to + half * 8, pack);
  }
}

// Copies U and the patches to LDS, one GEMM step at a time.
template <class Gemm>
struct MatrixOperands {
  typename Gemm::Lds& lds;
  const half_t *a, *packed;
  uint32_t line;
  int row, column, channels, depth;
  uint32_t b[Gemm::kPacksB];
  // The position of the next step along K: this work-item's packs begin at index `k`, which is channel `channel` of tap
  // `tap`.
  int k, channel, tap = 0;
  PacksToLds<kCopiesToLds, Gemm::kPacksA> packs_a;
  PacksToLds<kCopiesToLds, Gemm::kPacksB> packs_b;

  DEVICE MatrixOperands(const MatrixGemmArgs& args, int first_m, uint32_t first_n, typename Gemm::Lds& to)
      : lds(to),
        line(args.line),
        row(thread_x() / Gemm::kAcross),
        column(thread_x() % Gemm::kAcross * 8),
        channels(args.channels),
        depth(9 * args.channels),
        k(column),
        channel(column) {
    const half_t* u = args.u;
    a = u + static_cast<size_t>(first_m + row) * static_cast<size_t>(depth);
    packed = args.packed;
    UNROLL for (int i = 0; i < Gemm::kPacksB; ++i) {
      uint32_t n = first_n + static_cast<uint32_t>(i * Gemm::kRowsAtOnce + row);
      n = n < args.pixels ? n : args.pixels - 1;  // the sums of pixels beyond the last one are not stored
      const uint32_t at = divide(n, args.per_image), rest = n - at * args.per_image.d,
                     h = divide(rest, args.across);
      b[i] = at * args.image + h * line + (rest - h * args.across.d) * static_cast<uint32_t>(channels);
    }
  }

  DEVICE void begin(int buffer) {
    while (channel >= channels) {
      channel -= channels;
      ++tap;
    }
    // Channels are padded to kMatrixConvChannels. If a step is deeper, the last step may be half empty.
    const bool inside = Gemm::kDepth == kMatrixConvChannels || k < depth;
    const int r = tap / 3;
    const uint32_t patch =
        static_cast<uint32_t>(r) * line + static_cast<uint32_t>((tap - 3 * r) * channels + channel);
    const half_t* const at = a + (inside ? k : 0);
    const half_t* const at_tap = packed + (inside ? patch : 0);
    k += Gemm::kDepth;
    channel += Gemm::kDepth;
    UNROLL for (int i = 0; i < Gemm::kPacksA; ++i) {
      const half_t* from = at + static_cast<size_t>(i * Gemm::kRowsAtOnce) * static_cast<size_t>(depth);
      packs_a.begin(i, &lds.a[buffer][i * Gemm::kRowsAtOnce + row][column], from, inside);
    }
    UNROLL for (int i = 0; i < Gemm::kPacksB; ++i) {
      packs_b.begin(i, &lds.b[buffer][i * Gemm::kRowsAtOnce + row][column], at_tap + b[i], inside);
    }
  }

  DEVICE void finish(int buffer) {
    if constexpr (kCopiesToLds) wait_for_copies();
    UNROLL for (int i = 0; i < Gemm::kPacksA; ++i) {
      packs_a.finish(i, &lds.a[buffer][i * Gemm::kRowsAtOnce + row][column]);
    }
    UNROLL for (int i = 0; i < Gemm::kPacksB; ++i) {
      packs_b.finish(i, &lds.b[buffer][i * Gemm::kRowsAtOnce + row][column]);
    }
  }
};

template <class Gemm>
DEVICE void matrix_gemm(const MatrixGemmArgs& args) {
  LARGE_SHARED(lds, typename Gemm::Lds);
  const half_t *bias = args.bias, *residual = args.residual;
  half_t* y = args.y;
  const int32_t M = args.M;
  const uint32_t pixels = args.pixels;
  const Divisor& per_image = args.per_image;
  using Instruction = typename Gemm::Instruction;
  const int first_m = block_y() * Gemm::kM;
  const uint32_t first_n = static_cast<uint32_t>(block_x()) * Gemm::kN;
  MatrixOperands<Gemm> operands(args, first_m, first_n, lds);
  Gemm gemm;
  gemm.run(
      lds, operands.depth, [&](int, int buffer) { operands.begin(buffer); },
      [&](int buffer) { operands.finish(buffer); });

  gemm.for_each([&](const auto& m, const auto& n, float (&values)[Instruction::kSums]) {
    size_t at[Instruction::kSums];
    bool inside[Instruction::kSums];
    UNROLL for (int i = 0; i < Instruction::kSums; ++i) {
      const uint32_t pixel = first_n + static_cast<uint32_t>(n(i));
      const int filter = first_m + m(i);
      const uint32_t in = divide(pixel, per_image);
      at[i] = (static_cast<size_t>(in) * static_cast<size_t>(M) + static_cast<size_t>(filter)) * per_image.d +
              (pixel - in * per_image.d);
      inside[i] = pixel < pixels && filter < M;
      if (inside[i]) {
        values[i] += to_float(bias[filter]);
        if (residual != nullptr) values[i] += to_float(residual[at[i]]);
      }
    }
    activate(args.act, values);
    UNROLL for (int i = 0; i < Instruction::kSums; ++i) {
      if (inside[i]) y[at[i]] = from_float<half_t>(values[i]);
    }
  });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#if GRAPHOPT_MATRIX_F16

KERNEL_OF(matrix_filter_f16, matrix_filter, kMatrixConvThreads, MatrixFilterArgs, w, u)
KERNEL_OF(matrix_pack_f16, matrix_pack, kMatrixConvThreads, MatrixPackArgs, x, packed)

// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define MATRIX_GEMM(name, type, groups, ...)                                                            \
  KERNEL_OF(matrix_gemm_##name##_f16, (matrix_gemm<HgemmOf<GemmTile::k##name##_##type, kCopiesToLds>>), \
            LaunchBounds(HgemmOf<GemmTile::k##name##_##type, kCopiesToLds>::kThreads, groups),          \
            MatrixGemmArgs, u, packed, bias, residual, y)
GEMM_STRIDED_TILES(MATRIX_GEMM)

#endif
