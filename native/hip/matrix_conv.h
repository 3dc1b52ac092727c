// What the kernels of the convolution on the matrix units (matrix_conv.hip) and their launch plan
// (gpu/winograd_conv_plan.cpp) share.
#pragma once

namespace graphopt::hip {

// Channels are padded to a multiple of it.
constexpr int kMatrixConvChannels = 32;

// Channels of a step of the product; lds_bytes: of a work-group.
constexpr int matrix_conv_depth(int lds_bytes) { return lds_bytes > 65536 ? 64 : 32; }

// A work-group of side x side is cut into parts of side / 2 rows and this many columns, one for each wave.
// The sums of 64 columns are 128 registers of a wave of 32, which leaves too few for the operands of RDNA 3.
constexpr int matrix_conv_columns(int wave, int lds_bytes) {
  return wave == 64 || lds_bytes > 65536 ? 64 : 32;
}
constexpr int matrix_conv_waves(int side, int wave, int lds_bytes) {
  return 2 * side / matrix_conv_columns(wave, lds_bytes);
}

// LDS of a work-group of side x side: two steps of both operands, rows in different banks.
constexpr int matrix_conv_lds(int side, int lds_bytes) {
  return 2 * 2 * side * (matrix_conv_depth(lds_bytes) + 8) * 2;
}

}  // namespace graphopt::hip
