// Arguments of unary_*.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kUnaryThreads = 256;  // each work-item processes 16 bytes

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
  int32_t vectors;  // 1: both pointers are multiples of 16
};

}  // namespace graphopt::hip
