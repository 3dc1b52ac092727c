// The operations of kernel.hip, for the kernel and for its launch plan.
#pragma once

#include "operators/activation.h"

namespace graphopt::hip {

enum ElementwiseOp : int32_t {
// one input: the activations in the order of ActivationKind, then other functions
#define GRAPHOPT_KIND(name, a, b) k##name##Op,
  GRAPHOPT_ACTIVATIONS(GRAPHOPT_KIND)
#undef GRAPHOPT_KIND
      kErfOp,
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
constexpr ElementwiseOp kCopyOp = kNoneOp;

}  // namespace graphopt::hip
