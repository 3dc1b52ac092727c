// Arguments of recurrent_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kRecurrentThreads = 512, kStepThreads = 128, kStateThreads = 256;
// Sequences that a work-group of recurrent_step_* processes at once.
constexpr int kStepSequences = 8;
// Maximum numbers of hidden units for recurrent_persistent_*, which keeps the weights in the registers and LDS of a
// work-group: for any kind, and for kinds with fewer gates than LSTM.
constexpr int kPersistentUnits = 64, kPersistentUnitsWithFewGates = 128;
constexpr int kMaxGates = 4;

// kGruReset: the reset gate is applied to h before the matrix multiplication instead of after it. This needs two
// multiplications: the first for the gates, the second for the hidden units.
enum class RecurrentKind : int32_t { kRnn, kGru, kGruReset, kLstm };

// D directions, B sequences of S elements, H hidden units, G gates (LSTM i, o, f, c; GRU z, r, h). projection
// [rows, D, G H] is X W^T; r [D, G H, H]; bias [D, 2 G H]; peepholes [D, 3 H] (i, o, f); lengths [B]. bias,
// peepholes, lengths and y may be null. `state` has parts of [D, B, H] floats. Even steps read h from part 0 and write
// it to part 1, odd steps the reverse. Part 2 is c for kLstm; for kGruReset, part 2 is the reset gate times h, and part
// 3 is the update gate.
struct RecurrentArgs : Arguments<7, 128> {
  In projection, r, bias, peepholes, lengths;
  Out state, y;
  int64_t y_step_stride, y_sequence_stride, y_direction_stride;
  int32_t D, B, H, S;
  int32_t step, second;  // recurrent_step_*: the step; for kGruReset, whether it is the second multiplication
  int32_t step_rows, sequence_rows;  // strides in rows of `projection`
  int32_t first_backward;            // directions with this index or a higher one are processed backward
  RecurrentKind kind;
  float clip;  // limit of the gates' inputs; 0: none
};

// Copies one part of the state, [D, B, H] floats, from or to a tensor [D, B, H] or [B, D, H]. One work-item for
// each element.
struct RecurrentStateArgs : Arguments<2, 64> {
  In from;  // null: zeros
  Out to;
  int64_t state;  // offset in the state, in elements
  uint32_t total;
  Divisor H, B;
  int32_t D;
  int32_t batch_first;
};

}  // namespace graphopt::hip
