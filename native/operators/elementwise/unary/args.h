// Arguments of unary_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kUnaryThreads = 256;  // with 16 bytes each

enum class UnaryOp : int32_t {
  kSin,
  kCos,
  kTan,
  kAtan,
  kSign,
  kCeil,
  kFloor,
  kRound,
  kSoftsign,
  kThresholdedRelu,
  kQuickGelu
};

struct UnaryArgs : Arguments<2, 32> {
  In x;
  Out y;
  uint32_t total;
  UnaryOp op;
  float alpha;      // of kThresholdedRelu and kQuickGelu
  int32_t vectors;  // both pointers are multiples of 16
};

}  // namespace graphopt::hip
