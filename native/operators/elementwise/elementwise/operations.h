// The operations of kernel.hip, for the kernel and for its launch plan.
#pragma once

#include "operators/activation.h"

namespace graphopt::hip {

enum ElementwiseOp : int32_t {
  // one input: the activations by elementwise_op, then other functions
  kErfOp = kActivationCount,
  kSoftplusOp,
  kExpOp,
  kLogOp,
  kSqrtOp,
  kReciprocalOp,
  kNegOp,
  kAbsOp,
  kEluOp,  // p is alpha
  // two inputs
  kAddOp,
  kSubOp,
  kMulOp,
  kDivOp,
  kPowOp,
  kMaxOp,
  kMinOp,
  kPReluOp,
  kFmodOp,
  // a mask and two inputs
  kWhereOp,
};

constexpr ElementwiseOp elementwise_op(ActivationKind kind) { return static_cast<ElementwiseOp>(kind); }
constexpr ElementwiseOp kCopyOp = elementwise_op(ActivationKind::kNone);

}  // namespace graphopt::hip
