// Arguments of concat_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kConcatThreads = 256, kConcatInputs = 8;
constexpr int kConcatVectors = 2;  // vectors per work-item

// Copies the rows of the inputs x0 to x7 one after another to each row of y, from vector `first` on. The size of a
// vector is that of the kernel's type.
struct ConcatArgs : Arguments<9, 136> {
  In x0, x1, x2, x3, x4, x5, x6, x7;  // those without elements may be null
  Out y;
  uint32_t total;  // vectors of all inputs
  uint32_t pitch;  // vectors of a row of y
  uint32_t first;
  Divisor width;  // vectors of a row of all inputs
  // The position of each input in a row of all inputs, in vectors, and the end of the last input.
  uint32_t begins[kConcatInputs + 1];
  uint32_t unused;
};

}  // namespace graphopt::hip
