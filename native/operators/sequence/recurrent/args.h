// Arguments of recurrent_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kRecurrentThreads = 512, kStepThreads = 128, kStateThreads = 256;
// Sequences that a work-group of the kernel of one step processes at once.
constexpr int kStepCells = 8;
// The most units for which the kernel of all steps can keep the weights: for any kind, and for kinds with fewer gates
// than LSTM.
constexpr int kKeptUnits = 64, kKeptUnitsOfFew = 128;
constexpr int kMostGates = 4;

// kGruReset: the reset gate is applied to h before the matrix multiplication instead of after it. This needs two
// multiplications: for the gates, then for the hidden unit.
enum class RecurrentKind : int32_t { kRnn, kGru, kGruReset, kLstm };

// D directions, B sequences of S elements, H hidden units, G gates (LSTM i, o, f, c; GRU z, r, h).
// product [rows, D, G H] is X W^T; r [D, G H, H]; bias [D, 2 G H]; peepholes [D, 3 H] (i, o, f); lengths [B].
// All but product and r may be null. state: parts of [D, B, H] floats: h before and after a step, which
// alternate; then c for kLstm, or reset gate times h and the update gate for kGruReset.
struct RecurrentArgs : Arguments<7, 128> {
  In product, r, bias, peepholes, lengths;
  Out state, y;
  int64_t y_of_step, y_of_cell, y_of_direction;  // strides
  int32_t D, B, H, S;
  int32_t step, second;  // kernel of one step: the step; for kGruReset also the matrix multiplication
  int32_t row_of_step, row_of_cell;  // rows of `product`
  int32_t backward;                  // directions from this one on go backward
  RecurrentKind kind;
  float clip;  // limit of the gates' inputs; 0: none
};

// Copies [D, B, H] floats of the state from or to a tensor [D, B, H] or [B, D, H]; one work-item for each element.
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
