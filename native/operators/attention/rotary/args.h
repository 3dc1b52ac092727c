// Arguments of the rotary_* kernels.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kRotaryThreads = 256;
constexpr int kRotaryTogether = 4;  // adjacent elements that a work-item of the *_together kernels rotates

// X and Y [B, rows, columns, H]: rows are tokens and columns are heads, or the reverse.
struct RotaryArgs : Arguments<5, 104> {
  In x;
  // Positions: int64_t [B, S], or one element, the position of token 0 of all sequences. Null: token s of sequence b
  // has the position b S + s.
  In ids;
  In cos, sin;  // [positions, half]
  Out y;
  uint32_t total;
  Divisor head, columns, rows;
  int32_t half;  // number of rotated pairs in a head; the elements after them are copied
  int32_t positions;
  int32_t columns_are_tokens;
  int32_t one_id;       // 1: ids has one element
  int32_t interleaved;  // the elements of a pair are adjacent; otherwise `half` elements apart
};

// Y [.., n1, n2, D]; strides are in elements, outermost axis first.
struct FusedRotaryArgs : Arguments<4, 112> {
  In x;
  Constant cos, sin;
  Out y;
  uint32_t total;
  Divisor D, n2, n1;
  uint32_t x_strides[3], cos_strides[3], sin_strides[3];
  int32_t interleaved;
};

}  // namespace graphopt::hip
