// What rotary_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kRotaryThreads = 256;
constexpr int kRotaryTogether = 4;  // neighbours of a work-item of the kernels named so

// X and Y [B, rows, columns, H]: rows are tokens and columns heads, or the other way round.
struct RotaryArgs : Arguments<5, 104> {
  // ids: int64_t, [B, S], or the first position of every sequence; null: tokens are counted through
  In x, ids;
  In cos, sin;  // [positions, half]
  Out y;
  uint32_t total;
  Divisor head, columns, rows;
  int32_t half;  // numbers of a head from 2 half on stay
  int32_t positions;
  int32_t tokens_inside;  // the columns are the tokens
  int32_t one_id;
  int32_t interleaved;  // the numbers of a pair stand beside each other, else half apart
};

// Y [.., n1, n2, D]; steps are in elements, from the outermost axis on.
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
