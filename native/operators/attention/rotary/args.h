// Arguments of the rotary_* kernels.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kRotaryThreads = 256;
constexpr int kRotaryTogether = 4;  // adjacent elements of a work-item in the *_together kernels

// X and Y [B, rows, columns, H]: rows are tokens and columns are heads, or the reverse.
struct RotaryArgs : Arguments<5, 104> {
  // ids: int64_t [B, S], or one start position for all sequences; null: token s of sequence b has position b S + s
  In x, ids;
  In cos, sin;  // [positions, half]
  Out y;
  uint32_t total;
  Divisor head, columns, rows;
  int32_t half;  // elements of a head from 2 half on are copied
  int32_t positions;
  int32_t tokens_inside;  // the columns are the tokens
  int32_t one_id;
  int32_t interleaved;  // the elements of a pair are adjacent, else half apart
};

// Y [.., n1, n2, D]; strides are in elements, outermost axis first.
struct FusedRotaryArgs : Arguments<4, 112> {
  In x;
  Constant cos, sin;
  Out y;
  uint32_t total;
  Divisor D, n2, n1;
  uint32_t x_steps[3], cos_steps[3], sin_steps[3];
  int32_t interleaved;
};

}  // namespace graphopt::hip
