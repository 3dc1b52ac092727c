// The tiles that products of any shape (matmul, convolution) come in.
#pragma once

#include "blocks/gpu/hgemm.h"
#include "blocks/gpu/product_shape.h"
#include "blocks/gpu/sgemm.h"

namespace graphopt::hip {

using ProductLarge = SgemmOf<SgemmTile::kLarge>;
using ProductSmall = SgemmOf<SgemmTile::kSmall>;
template <int kSide>
using MatrixTile = Hgemm<kSide, kSide, 32, kSide / 2, product_columns(kWave)>;
using MatrixLarge = MatrixTile<128>;
using MatrixSmall = MatrixTile<64>;
static_assert(MatrixLarge::kThreads == product_waves(128, kWave) * kWave &&
                  MatrixSmall::kThreads == product_waves(64, kWave) * kWave,
              "what plans ask for");
using ProductVector = SgemmOf<SgemmTile::kWide>;

}  // namespace graphopt::hip

// KERNEL_OF(type, product, suffix of the name)
#define FOR_PRODUCT_TILES(KERNEL_OF)          \
  KERNEL_OF(float, ProductLarge, 128x128_f32) \
  KERNEL_OF(float, ProductSmall, 64x32_f32)   \
  FOR_MATRIX_F16_TILES(KERNEL_OF)             \
  FOR_VECTOR_F16_TILES(KERNEL_OF)
#if GRAPHOPT_MATRIX_F16
#define FOR_MATRIX_F16_TILES(KERNEL_OF)       \
  KERNEL_OF(half_t, MatrixLarge, 128x128_f16) \
  KERNEL_OF(half_t, MatrixSmall, 64x64_f16)
#else
#define FOR_MATRIX_F16_TILES(KERNEL_OF)
#endif
#if !GRAPHOPT_MATRIX_F16 || GRAPHOPT_ON_CPU
#define FOR_VECTOR_F16_TILES(KERNEL_OF) KERNEL_OF(half_t, ProductVector, vector_f16)
#else
#define FOR_VECTOR_F16_TILES(KERNEL_OF)
#endif
