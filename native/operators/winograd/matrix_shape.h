// What the kernels of the convolution on the matrix units (matrix.hip) and their launch plan
// (operators/winograd/plan.cpp) share.
#pragma once

#include "blocks/gpu/product_shape.h"
#include "device/traits.h"

namespace graphopt::hip {

// Channels are padded to a multiple of it.
constexpr int kMatrixConvChannels = 32;

// Channels of a step of the product; lds_bytes: of a work-group.
constexpr int matrix_conv_depth(int lds_bytes) { return lds_bytes > kAmdLdsBytes ? 64 : 32; }

// As product_columns; a device of so much LDS has the registers for 64.
constexpr int matrix_conv_columns(int wave, int lds_bytes) {
  return lds_bytes > kAmdLdsBytes ? 64 : product_columns(wave);
}
constexpr int matrix_conv_waves(int side, int wave, int lds_bytes) {
  return 2 * side / matrix_conv_columns(wave, lds_bytes);
}

// LDS of a work-group of side x side: two steps of both operands, rows in different banks.
constexpr int matrix_conv_lds(int side, int lds_bytes) {
  return 2 * 2 * side * (matrix_conv_depth(lds_bytes) + 8) * 2;
}

}  // namespace graphopt::hip
