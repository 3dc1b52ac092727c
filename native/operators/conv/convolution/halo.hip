// The convolutions of channels_last.hip with strides and dilations of 1 and images of Y as large as those of X. The
// pixels of X that a tile needs are copied to LDS once for each block of channels, not once for each tap.
//
// FLOPs and memory traffic are the same as in channels_last.hip. With nine taps, a tile of 192 x 160 reads little more
// than half as much from the L2 cache. The kernels require direct copies from memory to LDS (the CPU emulates them for
// tests), and LDS for two blocks of channels. Launch: operators/conv/convolution/plan.cpp.
#include "device/platform.h"
#include "gemm/epilogue.h"
#include "gemm/kernels.h"
#include "gemm/loaders/halo.h"

namespace graphopt::hip {

template <GemmTile kTile>
DEVICE void conv_halo(const ConvHaloArgs& args) {
  using P = HaloGemm<AlignedGemm<kTile, false>>;
  DYNAMIC_SHARED(memory, half_t);
  auto& lds = *reinterpret_cast<typename P::Lds*>(memory);
  half_t* const pixels = memory + sizeof(typename P::Lds) / sizeof(half_t);
  const int part = block_z();
  const int per_part = args.splits.depth / P::kDepth;
  const int all = (args.C + P::kDepth - 1) / P::kDepth * static_cast<int>(args.taps.d);
  const int first_step = part * per_part, steps = min_int(per_part, all - first_step);
  const TilePosition place = tile_position(args.across, args.down);
  const int first_m = args.first + place.down * P::kM, first_n = place.across * P::kN;
  HaloCopies<P> copies(args, lds, pixels, first_m, first_n, first_step, steps);
  typename P::Gemm gemm(args, pixels, lds.inside, first_m, copies.tap);
  run_steps_ahead(gemm, lds, steps * P::kDepth, [&](int buffer, int of) { copies.begin(buffer, of); });
  static_assert(P::Gemm::kExchanged * sizeof(float) <=
                    sizeof lds + (kHaloZeros + 2 * P::kM) * P::Gemm::kRow * sizeof(half_t),
                "the exchanged sums must fit into the LDS that the plan requests");
  gemm.reduce_splits(reinterpret_cast<float*>(&lds));
  store_tile<P>(args, lds, gemm, static_cast<uint32_t>(part), 0, first_m, first_n);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#if defined(__CUDACC__) || GRAPHOPT_WAVE == 32
// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define HALO_KERNEL(name, dense, halo, packed, int8, groups, ...)                                        \
  GEMM_ON_##halo(KERNEL_OF(conv_halo_##name##_f16, conv_halo<GemmTile::kAligned##name>,                  \
                           LaunchBounds(AlignedGemm<GemmTile::kAligned##name, false>::kThreads, groups), \
                           ConvHaloArgs, x, w, bias, residual, y, partial))
GEMM_ALIGNED_TILES(HALO_KERNEL)
#endif
