// Instantiates kernels for the rows of tiles.h. A kernel file defines one kernel and lists a table:
//   #define CONV_LAST_KERNEL(name, dense, halo, groups, ...) GEMM_ON_##dense(KERNEL_SHARING(conv_last_##name##_f16, ...))
//   GEMM_ALIGNED_TILES(CONV_LAST_KERNEL)
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

// GEMM_ON_column(kernel): the kernel, if that column of the table includes this target. Macros, because the
// name of a kernel cannot depend on a template argument.
#define GEMM_ON_kNone(...)
#define GEMM_ON_kAll(...) __VA_ARGS__
#if defined(__CUDACC__)
#define GEMM_ON_kCopiesToLds(...) __VA_ARGS__
#else
#define GEMM_ON_kCopiesToLds(...)
#endif
