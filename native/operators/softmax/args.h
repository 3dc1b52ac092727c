// What softmax_* take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

// x and y [rows, D], a work-group for each row.
struct SoftmaxArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  uint32_t D;
  int32_t log;  // LogSoftmax
  int32_t threads;
};
static_assert(is_args<SoftmaxArgs>(32), "one layout for all compilers");

// x and y [outer, D, inner]: a work-group for kSoftmaxColumns neighbouring columns, each of which
// kSoftmaxParts work-items share.
constexpr int kSoftmaxColumns = 32, kSoftmaxParts = 8;

struct SoftmaxColumnsArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  Divisor groups;  // work-groups for each of `outer`
  uint32_t D, inner;
  int32_t log;
};
static_assert(is_args<SoftmaxColumnsArgs>(40), "one layout for all compilers");

}  // namespace graphopt::hip
