// Arguments of quantized_*.
#pragma once

#include "device/args.h"
#include "operators/activation.h"

namespace graphopt::hip {

constexpr int kQuantizedThreads = 256;   // work-group size
constexpr int kQuantizedLineItems = 32;  // work-items that share a line, or several adjacent lines
constexpr int kQuantizedAdjacent = 4;    // adjacent lines in a word
constexpr int kQuantizedWords = 8;       // adjacent words that kQuantizedLineItems work-items process

enum class QuantizedOp : int32_t {
  kActivate,  // one input
  kAdd,
  kMul,
  kTable,  // y = table[a]
};

// A work-item processes 16 elements. A null zero point means 0. Only kTable reads `table`; it reads no scales.
struct QuantizedArgs : Arguments<10, 200> {
  In a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, table;
  Out y;
  uint32_t total;
  Axes axes;
  Strides a_strides, b_strides;
  Activation act;
  QuantizedOp op;
  int32_t is_signed;
  // All addresses (in bytes), the innermost size and the strides of the outer axes are multiples of 16. The stride of
  // the innermost axis is 1, or 0 for a broadcast input.
  int32_t vectors;
  int32_t unused;
};

// Lines of x [outer, size, inner] along `size`. quantized_mean_adjacent requires that x and y are aligned to 4 bytes,
// and that inner is a multiple of kQuantizedAdjacent.
struct QuantizedMeanArgs : Arguments<6, 72> {
  In x, x_scale, x_zero, y_scale, y_zero;
  Out y;
  uint32_t lines;
  Divisor inner;
  uint32_t size;
  int32_t is_signed;
};

constexpr int kExponentials = 256;  // one for each difference of two bytes

struct ExponentialsArgs : Arguments<2, 24> {
  In x_scale;
  Out table;
  double largest;  // table[d] = e^(largest - d scale)
};

struct QuantizedSoftmaxArgs : Arguments<5, 64> {
  In x, table, y_scale, y_zero;
  Out y;
  uint32_t lines;
  Divisor inner;
  uint32_t size;
  int32_t is_signed;
};

}  // namespace graphopt::hip
