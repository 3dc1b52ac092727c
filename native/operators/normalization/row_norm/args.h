// Arguments of row_norm_*.
#pragma once

#include "device/args.h"
#include "operators/normalization/row_norm/windows.h"

namespace graphopt::hip {

constexpr int kRowNormMaxThreads = 512;
constexpr int kRowNormVectors = 4;  // packs per work-item
constexpr int kRowNormAnyThreads = 1024;

// Rows of D elements. row_norm_any_* has one work-group for each row.
struct RowNormArgs : Arguments<7, 232> {
  In x, residual;        // residual may be null
  Constant gamma, beta;  // [images, D]; beta may be null
  Out y, sum;            // sum may be null
  Out statistics;        // float: the means of all rows, then 1 / sqrt(variance + epsilon); may be null
  uint32_t D;
  float epsilon;
  int32_t rms;          // 1: RMSNorm, without a mean
  uint32_t count;       // rows of the launch
  Divisor row_items;    // work-items of a row: a power of two up to the wave size, or all of the work-group
  uint32_t group_rows;  // rows of a work-group
  Divisor image;        // rows that share a gamma
  uint32_t first_row;
  uint32_t gamma_step;  // stride of gamma over images; 0 if all share one
  uint32_t rows;        // rows of all launches
  // For row_norm_windows_*. The rows of one tensor are in another order than those of the other tensors. This tensor is
  // x without a residual, y with a residual and `into`, and otherwise the residual. Its address is that of row 0 of all
  // launches.
  RowWindows windows;
  int32_t into;
  uint32_t unused;
};

}  // namespace graphopt::hip
