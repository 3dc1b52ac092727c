// Helpers for kernel files that instantiate a kernel for each row of a table of tiles.h. Such a file defines
// a macro for one row and passes it to the table. The macro makes the name of the kernel, which a template cannot do:
//   #define CONV_KERNEL(name, dense, ...) GEMM_ON_##dense(KERNEL_OF(channels_last_conv_##name##_f16, ...))
//   GEMM_ALIGNED_TILES(CONV_KERNEL)
#pragma once

#include "device/platform.h"
#include "gemm/pipelines/matrix.h"
#include "gemm/pipelines/vector.h"
#include "gemm/tiles.h"

namespace graphopt::hip {

using f32 = float;
using f16 = half_t;

// Selects the pipeline of a tile for operands of any layout.
template <GemmTile kTile, bool kVector = has_row(kVectorTiles, kTile)>
struct StridedPipeline {
  using Type = Sgemm<kTile>;
};
template <GemmTile kTile>
struct StridedPipeline<kTile, false> {
  using Type = HgemmOf<kTile>;
};
template <GemmTile kTile>
using StridedGemm = typename StridedPipeline<kTile>::Type;

}  // namespace graphopt::hip

// GEMM_ON_<targets>(kernel) expands to the kernel if <targets>, a value of Targets in a column of tiles.h,
// includes the target of this compilation. These are macros because their argument defines a kernel.
#define GEMM_ON_kNone(...)
#define GEMM_ON_kAll(...) __VA_ARGS__
#if defined(__CUDACC__)
#define GEMM_ON_kCopiesToLds(...) __VA_ARGS__
#define GEMM_ON_kThroughRegisters(...)
#else
#define GEMM_ON_kCopiesToLds(...)
#define GEMM_ON_kThroughRegisters(...) __VA_ARGS__
#endif
