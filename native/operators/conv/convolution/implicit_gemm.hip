// Conv with any kernel size, stride, padding, dilation and number of groups as an implicit GEMM: Y [M, pixels] = W [M,
// C taps] patches [C taps, pixels], with float32 sums, in channels first (NCHW). This kernel runs if no vendor's
// library accepts the convolution, for example because of asymmetric padding.
//
// The kernel needs 2 N OH OW M C taps FLOPs for N C H W + N M OH OW elements. It is compute-bound from about 32
// channels on. W is loaded 16 bytes at a time if its rows are aligned to 16 bytes; patches are gathered one element at
// a time. operators/matmul/matmul/kernel.hip has the same GEMM pipeline. scripts/gpu_bench.py compares the kernel with
// cuDNN. Launch: operators/conv/convolution/plan.cpp.
#include "device/platform.h"
#include "gemm/kernels.h"
#include "gemm/loaders/im2col.h"
#include "gemm/loaders/strided.h"

namespace graphopt::hip {

// Stores Y from the sums of the tile that begins at filter first_m and pixel first_n.
template <class Gemm, class T>
DEVICE void store_conv(const ConvArgs& args, int group, int first_m, uint32_t first_n, Gemm& gemm,
                       typename Gemm::Lds& lds) {
  constexpr int kSize = Pack<T>::kSize;
  const T* bias = args.bias;
  T* y = args.y;
  const int32_t M = args.M;
  const uint32_t pixels = args.pixels;
  const Divisor& per_image = args.per_image;
  gemm.template for_each_pack<kSize>(lds, [&](int m, int column_in_tile, auto& values) {
    m += first_m;
    const uint32_t n = first_n + static_cast<uint32_t>(column_in_tile);
    if (m >= M || n >= pixels) return;
    const size_t channel = static_cast<size_t>(group) * static_cast<size_t>(M) + static_cast<size_t>(m);
    const size_t channels = static_cast<size_t>(args.groups) * static_cast<size_t>(M);
    const float b = bias != nullptr ? to_float(bias[channel]) : 0.0f;
    const uint32_t image = divide(n, per_image), pixel = n - image * per_image.d;
    T* const at = y + (image * channels + channel) * per_image.d + pixel;
    Pack<T> out;
    UNROLL for (int i = 0; i < kSize; ++i) out.v[i] = from_float<T>(values[i] + b);
    if (args.packs_of_y != 0) {
      store_pack(at, out);
    } else {
      // The elements between the end of a channel and the start of the same channel in the next image.
      const size_t next = (channels - 1) * per_image.d;
      UNROLL for (int i = 0; i < kSize; ++i) {
        const auto step = static_cast<uint32_t>(i);
        if (n + step < pixels) at[step + divide(pixel + step, per_image) * next] = out.v[i];
      }
    }
  });
}

template <class Gemm, class T>
DEVICE void conv(const ConvArgs& args) {
  SHARED(lds, typename Gemm::Lds);
  const T* w = args.w;
  const int32_t M = args.M;
  const int group = block_z();
  const int first_m = block_y() * Gemm::kM;
  const uint32_t first_n = static_cast<uint32_t>(block_x()) * Gemm::kN;
  const int K = args.C * static_cast<int>(args.taps.d);
  const OperandLayout layout = {K, 1, args.packs_of_w};
  OperandPart<T, Gemm::kM, Gemm::kDepth, Gemm::kThreads, Gemm::kByLine> filters(
      w + (static_cast<size_t>(group) * static_cast<size_t>(M) + static_cast<size_t>(first_m)) *
              static_cast<size_t>(K),
      layout, M - first_m, K);
  ConvPatches<Gemm, T> patches(args, group, first_n, K);
  Gemm gemm;
  // always_inline: clang 22 would otherwise keep the captured variables in scratch memory.
  gemm.run(
      lds, K,
      [&](int first_k, int) __attribute__((always_inline)) {
        filters.load(first_k);
        patches.load(first_k);
      },
      [&](int buffer) __attribute__((always_inline)) {
        filters.store(lds.a[buffer]);
        patches.store(lds, buffer);
      });
  store_conv<Gemm, T>(args, group, first_m, first_n, gemm, lds);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define CONV_KERNEL(name, type, ...)                                                     \
  KERNEL_OF(conv_##name##_##type, (conv<StridedGemm<GemmTile::k##name##_##type>, type>), \
            StridedGemm<GemmTile::k##name##_##type>::kThreads, ConvArgs, x, w, bias, y)

GEMM_VECTOR_TILES(CONV_KERNEL)
#if !GRAPHOPT_MATRIX_F16 || GRAPHOPT_WAVE
GEMM_VECTOR_F16_TILES(CONV_KERNEL)
#endif
#if GRAPHOPT_MATRIX_F16
GEMM_STRIDED_TILES(CONV_KERNEL)
#endif
