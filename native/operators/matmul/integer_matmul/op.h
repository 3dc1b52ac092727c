// Matrix multiplication of integers on a GPU.
#pragma once

#include <optional>
#include <vector>

#include "device/launch.h"
#include "gemm/args.h"
#include "gemm/planner.h"
#include "operators/conv/convolution/problem.h"
#include "operators/matmul/matmul/problem.h"

namespace graphopt::gpu {

// Whether 8-bit elements have a zero point (`given`), and whether each row, column or filter has its own (`many`).
struct ZeroPoint {
  bool given = false, many = false;
};

struct IntegerProblem {
  // Both have 8 bits, or both have the same type: int16 or a type of 32 or 64 bits.
  ElementType left = ElementType::kUint8, right = ElementType::kUint8;
  ZeroPoint left_zero, right_zero;
  bool has_bias = false;
  int64_t bias_m = 1, bias_n = 0;  // strides of the bias over rows and columns
};

// Inputs L, R, their zero points, the bias. Output Y: int32 for 8 and 16 bits, otherwise the type of L. Ignores p.alpha
// and p.beta. Throws std::invalid_argument if a size is too large.
Plan integer_matmul_plan(const GemmProblem& p, const IntegerProblem& integers);

// Computes a convolution with W as L and X as R; the bias has one element for each filter. Y is int32.
Plan integer_window_plan(const ConvolutionProblem& p, const IntegerProblem& integers);

// --- On the matrix units

// Lines of 8-bit elements in contiguous matrices: [matrices, lines, K, taps], [matrices, lines, taps, K] if
// `taps_first`, or [matrices, K, lines] if `transposed`.
struct IntegerLines {
  int64_t matrices = 1, lines = 1, K = 1, taps = 1;
  bool transposed = false, taps_first = false;
  bool is_signed = false;  // if false, packed elements are the elements minus 128

  // Returns the elements of a packed line: the taps, each with K elements and zeros up to a multiple of 16.
  int64_t row() const { return taps * round_up(K, 16); }
  int64_t packed_bytes() const { return matrices * lines * row(); }
  int64_t sum_bytes() const { return matrices * lines * 4; }
};

// Input: the matrices. Outputs: packed lines of signed elements [matrices, lines, taps, padded K], and the sum of each
// line (int32_t). One of the outputs may be null.
Plan integer_lines_plan(const IntegerLines& p);

// The operands of the epilogue of an int8 GEMM with `columns` columns and K products.
struct IntegerColumnsProblem {
  int64_t matrices = 1, columns = 1, K = 1;
  ElementType left = ElementType::kUint8, right = ElementType::kUint8, y = ElementType::kInt32;
  ZeroPoint left_zero, right_zero;
  bool has_scales = false, right_scales = false;  // right_scales: one for each column
  bool has_bias = false;
  bool many_biases = false;  // one for each column
  bool float_bias = false;   // else int32_t
  bool has_y_zero = false;
  float alpha = 1;
  Activation act;
  // Applied to bytes of Y (gemm/args.h). The residual and the table are further inputs of the kernel.
  bool has_table = false;
  hip::IntegerSum sum = {};

  // Returns the bytes of the output.
  int64_t bytes() const;
};

// Inputs: the sums of the packed lines of the right operand, bias, zero points and scales of L and R, scale and zero
// point of Y. Output: the operands of the epilogue.
Plan integer_columns_plan(const IntegerColumnsProblem& p);

// Returns whether the device multiplies 8-bit elements on matrix units.
bool has_integer_gemm(const DeviceFacts& device);

// Inputs: L, packed columns of R, the output of integer_columns_plan, and with `has_row_sums` the sums of the rows of
// L. Output Y. The sums are not needed if the zero points of R are 0. L is packed, or row-major with K a multiple of
// 16; `unsigned_left`: it is row-major and unsigned. a_batch and b_batch are strides in matrices. All pointers are
// multiples of 16. Throws std::invalid_argument if a size is too large.
Plan integer_gemm_plan(const GemmProblem& p, const IntegerColumnsProblem& columns, bool has_row_sums,
                       bool unsigned_left, const DeviceFacts& device,
                       std::optional<GemmTile> wanted = std::nullopt);

// Returns the convolution that the kernels compute. It merges adjacent groups of p until a group has a multiple of 16
// channels and at least as many filters as the smallest tile has columns. If the groups of p do not divide into such
// groups, the result has one group. Filters are 0 for channels of other groups of p.
ConvolutionProblem with_merged_groups(ConvolutionProblem p);

// Returns the packed filters of with_merged_groups(p). `w`: [filters, C, taps], or [filters, taps, C] if
// `channels_last`.
std::vector<uint8_t> pack_filters_of_groups(const ConvolutionProblem& p, const uint8_t* w, bool channels_last,
                                            bool is_signed);

// Returns why the device or the kernels do not support a convolution of 8-bit elements in channels last, or null.
const char* refuse_integer_conv(const ConvolutionProblem& p, const DeviceFacts& device);

// Returns the equivalent convolution with stride 1 after a space-to-depth transform. A pixel of the new image is a
// block of stride x stride pixels of X, with the channels of all of them. The kernels process 16 channels at a time, so
// an X with few channels needs fewer multiplications by zeros in this form. Returns no value if a block has more than
// 16 channels or only one pixel, or if p has groups, dilation or three spatial axes.
std::optional<ConvolutionProblem> space_to_depth(const ConvolutionProblem& p);

// Returns the packed filters of space_to_depth(p). `w`: [filters, C, taps], or [filters, taps, C] if `channels_last`.
std::vector<uint8_t> pack_space_to_depth_filters(const ConvolutionProblem& p, const uint8_t* w,
                                                 bool channels_last, bool is_signed);

// Inputs: X, the output of integer_columns_plan. Output: X of space_to_depth(p).
Plan integer_blocks_plan(const ConvolutionProblem& p, bool channels_last);

// Inputs: X in channels last with a multiple of 16 channels, packed filters (with several groups, those of
// pack_filters_of_groups), the output of integer_columns_plan, the residual, the table. Output Y in channels last. Zero
// points of the packed filters must be 0. All pointers are multiples of 16. Throws std::invalid_argument if a size is
// too large.
Plan integer_conv_plan(const ConvolutionProblem& p, const IntegerColumnsProblem& columns,
                       const DeviceFacts& device, std::optional<GemmTile> wanted = std::nullopt);

// Plans the same convolution for X with a multiple of 8 channels, by the kernel with operands in registers
// (direct.hip). Also throws std::invalid_argument if has_integer_conv_direct is false.
Plan integer_conv_direct_plan(const ConvolutionProblem& p, const IntegerColumnsProblem& columns,
                              const DeviceFacts& device);
// Returns whether the device has this kernel.
bool has_integer_conv_direct(const DeviceFacts& device);
// Returns whether this kernel is faster than the kernels of integer_conv_plan. It is faster if there are several
// groups, because the columns of a group fill a tile only in part, and if there is work for all compute units.
bool prefers_integer_conv_direct(const ConvolutionProblem& p, const DeviceFacts& device);

// A depthwise convolution with one filter for each channel. The packed filters are [taps, channels padded to a multiple
// of 16], and the number of channels is a multiple of kIntegerPack.
const char* refuse_integer_depthwise(const ConvolutionProblem& p);
Plan integer_depthwise_plan(const ConvolutionProblem& p, const IntegerColumnsProblem& columns);

struct ScaleProblem {
  int64_t outer = 1, M = 1, N = 1;
  bool left_many = false, right_many = false;  // a scale for each row, for each column; otherwise one for all
  bool has_bias = false;                       // float [N]
  std::optional<ElementType> quantized;        // the 8-bit type of Y; empty: float
  bool has_zero = false;                       // Y has a zero point
  float alpha = 1;
  Activation act;  // of quantized Y
};

// Inputs: sums [outer, M, N], the scales of L and R, scale and zero point of Y, bias; output Y.
Plan scale_sums_plan(const ScaleProblem& p);

}  // namespace graphopt::gpu
