// Arguments of integer_matmul_*, integer_window_matmul and scale_sums, and of the kernels for 8-bit elements:
// integer_gemm_*, integer_conv_*, integer_warpgroups_*, integer_depthwise, integer_lines, integer_blocks and
// integer_columns.
#pragma once

#include "device/args.h"
#include "gemm/args.h"
#include "gemm/loaders/im2col_args.h"

namespace graphopt::hip {

constexpr int kIntegerThreads = 256;
constexpr int kIntegerTile = 64;   // rows and columns of Y that a work-group computes
constexpr int kIntegerDepth = 16;  // depth of a step along K

// Y [z, M, N] = (L [.., M, K] - left_zero) (R [.., K, N] - right_zero) + bias. The operands and the bias have any
// strides. The grid's third axis counts matrices from `first` on; a launch has at most kMaxGrid of them.
struct IntegerMatmulArgs : Arguments<6, 192> {
  In left, right, left_zero, right_zero, bias;  // the last three may be null
  Out y;
  int32_t M, N, K;
  int32_t left_signed, right_signed;  // for 8-bit elements
  int32_t left_zero_step;             // 1: a zero point for each row; 0: one for all
  int32_t right_zero_step;            // 1: a zero point for each column; 0: one for all
  int32_t left_m, left_k, right_k, right_n, bias_m, bias_n;
  uint32_t first;
  Axes batch;
  Strides left_batch, right_batch;
};

// The same for convolutions. L is W [groups M, C, taps..]. R consists of the windows of X [N, groups C, in..]:
// a column of R is the window of a pixel of Y. z counts images and their groups. The bias has one element for
// each filter.
struct IntegerWindowArgs : Arguments<6, 200> {
  In left, right, left_zero, right_zero, bias;
  Out y;
  int32_t M, N, K, C;
  int32_t left_signed, right_signed;
  int32_t left_zero_step;
  Divisor groups;
  int32_t in[3], step[3], pad[3], tap[3];  // for each axis: size, stride, padding before it, dilation
  Divisor rows, columns;                   // sizes of the second and third spatial axis of Y
  Divisor taps, taps_b, taps_c;            // taps of a window, and of its second and third axis
};

// Copies the lines of matrices with any strides to rows of `row` bytes, and inverts bits. A line has K elements for
// each tap; in a row, the elements of each tap are padded with zeros. packed: [matrices, lines, row]; sums: [matrices,
// lines], the sums of the signed elements of packed. packed or sums may be null. The grid has a work-group for each
// kIntegerTile lines of a matrix.
struct IntegerLinesArgs : Arguments<3, 80> {
  In x;
  Out packed, sums;
  int32_t lines, K, row;
  int32_t line, k, tap, matrix;  // strides
  uint32_t inverted_bits;
  Divisor tap_bytes;  // bytes of a tap in a row, with padding
  Divisor groups;     // number of work-groups for a matrix
};

constexpr int kIntegerBlock = 16;  // bytes of a block of space_to_depth (op.h)

// Converts images to blocks of stride_h x stride_w pixels with at most kIntegerBlock bytes. packed [images, rows,
// columns, kIntegerBlock] has the pixels of each block, with C channels each. Pixels outside of X are equal to the zero
// point of X. A work-item writes a block.
struct IntegerBlocksArgs : Arguments<3, 88> {
  In x, columns;
  Out packed;
  uint32_t total;
  Divisor across, down;  // blocks of a row, rows of blocks of an image
  int32_t C, H, W, stride_h, stride_w;
  int32_t x_channel, x_row, x_column, x_image;  // strides
};

// Computes the operands of the epilogue of an int8 GEMM. sums: [matrices, N] of the packed right operand; bias: int32_t
// [N] or float [N] if is_float_bias. All inputs except `sums` may be null. From the zero points of unsigned left and
// right elements the kernel subtracts 128, because these elements are multiplied as x - 128; y_zero is used unchanged.
// The grid has a work-item for each column of all matrices, including the columns of the padding.
struct IntegerColumnsArgs : Arguments<9, 136> {
  In sums, bias, left_zero, right_zero, left_scale, right_scale, y_scale, y_zero;
  Out columns;
  uint32_t total;
  int32_t N, K;
  Divisor padded;  // columns
  int32_t left_signed, right_signed, y_signed;
  int32_t bias_step, right_zero_step, right_scale_step;  // 1: an element for each column; 0: one for all
  int32_t is_float_bias, has_activation;
  float alpha;
};

// In the arguments of int8 kernels, residual and table may be null. A residual has the shape and type of Y.

// Y [z, M, N] = the int8 GEMM of a [.., M, K] and packed b [.., N, K]. K counts pairs of elements, and rows of a and b
// consist of packs. a_batch and b_batch are strides in matrices. The grid has `down` rows of `across` tiles.
struct IntegerGemmArgs : Arguments<8, 248> {
  In a, b, columns, row_sums, residual, table;  // row_sums: [.., M] or null if b has no zero points
  Out y;
  Out partial;  // int32_t [matrices, splits, M, N]; null with one split
  int32_t M, N, K, down;
  Divisor across;
  Axes batch;
  Strides a_batch, b_batch;
  Splits splits;
  IntegerEpilogue epilogue;
};

// Y [M, N]: M pixels in all images, N filters in all groups. x [images, H, W, groups, C] and packed w [N, taps, C]. C
// and K count pairs of elements, and C is a multiple of a pack. The grid of integer_conv_* has `down` rows of `across`
// tiles; in each row, `tiles` tiles belong to each group. A work-group of integer_conv_direct computes several tiles,
// and `down` is not set. ChannelsLastConvArgs and IntegerGemmArgs describe the other members.
struct IntegerConvArgs : Arguments<7, 264> {
  In x, w, columns, residual, table;
  Out y, partial;
  int32_t M, N, K, H, W, down;
  Divisor across, channels, kernel_w;
  Divisor per_image, columns_of_y;  // pixels of an image of Y; pixels of a row of Y
  ConvWindow window;
  Splits splits;
  IntegerEpilogue epilogue;
  Divisor filters, tiles;  // of a group
  int32_t pixel;           // bytes of a pixel of x; integer_conv_direct accepts any multiple of 8
};

// Y [M, N] on NVIDIA's warpgroups (warpgroup.hip), for convolutions with one group and for GEMMs. The members are those
// of IntegerConvArgs; a GEMM has only those of a GEMM. The epilogue is simple (IntegerColumns::is_simple), and N is a
// multiple of 2 kIntegerPack. Work-group i computes the tiles i, i + work_groups, ..., of `tiles` in rows of `across`.
struct IntegerWarpgroupArgs : Arguments<6, 224> {
  In x, w, columns, residual, table;  // table: null
  Out y;
  int32_t M, N, K, H, W, pixel, tiles, work_groups;
  Divisor across, channels, kernel_w, per_image, columns_of_y;
  ConvWindow window;
  IntegerEpilogue epilogue;
};

constexpr int kIntegerDirectThreads = 128;
constexpr int kIntegerDirectTiles = 2;  // tiles of 16 pixels that a wave of integer_conv_direct computes

constexpr int kIntegerDepthwiseThreads = 128;
// Adjacent pixels in a row of Y that a work-item computes: for any window, and for a square window.
constexpr int kIntegerDepthwiseStrip = 4, kIntegerDepthwiseSquareStrip = 2;

// x [N, H, W, channels], w [taps, row], y [N, OH, OW, channels]. A work-item computes kIntegerPack channels of a strip
// of y.
struct IntegerDepthwiseArgs : Arguments<6, 192> {
  In x, w, columns, residual, table;
  Out y;
  uint32_t total;
  int32_t channels, row;
  Divisor packs, strips, rows;  // packs of a pixel, strips of a row, rows of an image
  int32_t H, W, OW;
  ConvWindow window;
  IntegerEpilogue epilogue;
};

constexpr int kIntegerSumThreads = 128;

// Adds the partial sums of IntegerGemmArgs or IntegerConvArgs. One work-item for each pack of a row of Y: `packs` in
// total, `across` in a row. A matrix has `rows` rows.
struct IntegerSumArgs : Arguments<6, 224> {
  In partial, columns, row_sums, residual, table;
  Out y;
  int32_t N, splits;
  uint32_t packs;
  Divisor across, rows;
  Axes batch;
  Strides a_batch, b_batch;
  IntegerEpilogue epilogue;
};

constexpr int kScaleThreads = 256;

// Computes Y [.., M, N] with `total` elements from the sums x. Y is 8-bit, or float if y_scale is null.
struct ScaleSumsArgs : Arguments<7, 112> {
  In x, left_scale, right_scale, y_scale, y_zero,
      bias;  // bias: float [N]; y_scale, y_zero and bias may be null
  Out y;
  uint32_t total;
  Divisor M, N;
  int32_t left_step, right_step;  // 1: a scale for each row, for each column; 0: one for all
  int32_t is_signed;              // whether the elements of Y are signed
  float alpha;                    // factor of the sums
  Activation act;                 // of 8-bit Y
};

}  // namespace graphopt::hip
