// Arguments that the GEMM kernels share: operands, splits of K, epilogue.
#pragma once

#include "device/args.h"
#include "device/integers.h"
#include "operators/activation.h"

namespace graphopt::hip {

// The strides of a GEMM operand, in elements: `line` from one line to the next, `k` from one index k to the
// next; one of the two is 1. A line is a row of the left operand or a column of the right one. `is_aligned`:
// the axis of stride 1 consists of packs of 16 bytes that start at multiples of 16 bytes.
struct OperandLayout {
  int32_t line, k, is_aligned;
};

// K is split among `count` work-groups. Each work-group adds the products of `depth` indices k.
struct Splits {
  Divisor count;
  int32_t depth;
};

// The operations on the sums of a GEMM: Y = act(alpha * sums + bias + beta * R), with the residual R. R and Y
// are batches of consecutive [M, N] matrices; R may be Y. A bias has N elements; the bias of matrix i starts
// at element i * bias_step. `is_aligned`: pointers and the sizes of rows are multiples of 16 bytes.
struct Epilogue {
  float alpha, beta;
  int32_t is_aligned, bias_step;
  Activation act;
};
// Returns the size of arguments that have `before` bytes of other members and end with an epilogue.
constexpr size_t size_with_epilogue(size_t before) { return (before + sizeof(Epilogue) + 7) / 8 * 8; }

enum class IntegerOutput : int32_t { kInt32, kFloat, kInt8, kUint8 };

// Precomputed operands of the epilogue of an int8 GEMM: this header, and then kIntegerArrays arrays for each matrix of
// the right operand: float scale, float shift, int32_t offset, int32_t zero point, and int32_t offset for kernels that
// multiply unsigned elements of A without conversion. An array has an element for each column and is padded to a
// multiple of kIntegerPack columns.
struct IntegerColumnsHeader {
  uint32_t outside[4];    // 16 elements of A that are equal to its zero point
  float y_scale, y_zero;  // of Y; the scale is only used with an activation other than Relu
  int32_t unused[2];
};
constexpr int kIntegerPack = 8, kIntegerArrays = 5;

// Inverting these bits of a word converts its four unsigned elements x to signed elements x - 128.
constexpr uint32_t kUnsignedBits = 0x80808080;

// Whether and how an int8 GEMM adds a residual to its result.
enum class IntegerResidual : int32_t {
  kNone,
  kToRounded,  // the residual is added to the result after its requantization and table
  kToExact,    // the residual is added to the result before the rounding to a byte
};

// Adds a residual r, a byte, to a result x: y = max(left * x + right * r + shift, least), rounded to a byte. The
// factors are quotients of scales.
struct IntegerSum {
  IntegerResidual kind;
  float left, right, shift, least;
};

// The operations on a sum s of an int8 GEMM, in row m and column n; the kernels multiply signed elements. The exact sum
// of products is s + offset[n] - zero[n] * (sum of row m of A). A float output is this sum times scale[n], plus
// shift[n]. For a byte output, the sum is multiplied by scale[n], activated, divided by the scale of Y, rounded, and
// the zero point of Y is added. With no activation or Relu, scale[n] includes the division. If there is a table, a byte
// x becomes table[x]. `sum` adds a residual. `whole_packs`: rows of Y are multiples of kIntegerPack elements.
struct IntegerEpilogue {
  IntegerOutput output;
  int32_t columns;  // N, padded to a multiple of kIntegerPack
  int32_t whole_packs;
  uint32_t inverted_bits;  // kUnsignedBits if the elements of A are unsigned
  Activation act;
  IntegerSum sum;
};

}  // namespace graphopt::hip
