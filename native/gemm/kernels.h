// Instantiates kernels for the rows of tiles.h that this target has. A kernel file defines one kernel, then lists all:
//   #define STRIDED_KERNEL(Product, type, name) KERNEL(gemm_##name, ...) { ... }     type: f32 or f16
//   GEMM_STRIDED_KERNELS
//   #define DENSE_KERNEL(tile, groups, name) ...
//   GEMM_DENSE_KERNELS
//   #define HALO_KERNEL(tile, groups, name) ...
//   GEMM_HALO_KERNELS
#pragma once

#include "device/platform.h"
#include "gemm/pipelines/matrix.h"
#include "gemm/pipelines/vector.h"
#include "gemm/tiles.h"

namespace graphopt::hip {

using f32 = float;
using f16 = half_t;

}  // namespace graphopt::hip

// GEMM_ON_column(kernel): the kernel, on the targets that a column of the table names.
#define GEMM_ON_f32(...) __VA_ARGS__
#if !GRAPHOPT_MATRIX_F16 || GRAPHOPT_ON_CPU
#define GEMM_ON_f16(...) __VA_ARGS__
#else
#define GEMM_ON_f16(...)
#endif
#define GEMM_ON_kNone(...)
#if GRAPHOPT_MATRIX_F16
#define GEMM_ON_kAll(...) __VA_ARGS__
#else
#define GEMM_ON_kAll(...)
#endif
#if GRAPHOPT_MATRIX_F16 && GRAPHOPT_ON_NVIDIA
#define GEMM_ON_kCopying(...) __VA_ARGS__
#else
#define GEMM_ON_kCopying(...)
#endif
#if GRAPHOPT_WAVE == 32
#define GEMM_ON_kTested(...) __VA_ARGS__
#else
#define GEMM_ON_kTested GEMM_ON_kCopying
#endif

#define GEMM_OF_VECTOR_TILE(name, type, ...) \
  GEMM_ON_##type(STRIDED_KERNEL(Sgemm<GemmTile::kVector##name>, type, name##_##type))
#define GEMM_OF_STRIDED_TILE(name, ...) \
  GEMM_ON_kAll(STRIDED_KERNEL(HgemmOf<GemmTile::kStrided##name>, f16, name##_f16))
#define GEMM_STRIDED_KERNELS GEMM_VECTOR_TILES(GEMM_OF_VECTOR_TILE) GEMM_STRIDED_TILES(GEMM_OF_STRIDED_TILE)
#define GEMM_OF_DENSE_TILE(name, dense, halo, groups, ...) \
  GEMM_ON_##dense(DENSE_KERNEL(GemmTile::kAligned##name, groups, name##_f16))
#define GEMM_DENSE_KERNELS GEMM_ALIGNED_TILES(GEMM_OF_DENSE_TILE)
#define GEMM_OF_HALO_TILE(name, dense, halo, groups, ...) \
  GEMM_ON_##halo(HALO_KERNEL(GemmTile::kAligned##name, groups, name##_f16))
#define GEMM_HALO_KERNELS GEMM_ALIGNED_TILES(GEMM_OF_HALO_TILE)
