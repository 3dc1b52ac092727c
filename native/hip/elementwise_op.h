// What elementwise.hip computes, for the kernel and for its launch plan.
#pragma once

namespace graphopt::hip {

enum ElementwiseOp {
  // of one input
  kCopyOp,
  kReluOp,
  kLeakyReluOp,  // a
  kClipOp,       // a, b
  kSigmoidOp,
  kHardSigmoidOp,  // a, b
  kHardSwishOp,
  kTanhOp,
  kErfOp,
  kGeluOp,
  kGeluTanhOp,
  kSoftplusOp,
  kExpOp,
  kLogOp,
  kSqrtOp,
  kReciprocalOp,
  kNegOp,
  kAbsOp,
  kEluOp,  // a
  // of two inputs
  kAddOp,
  kSubOp,
  kMulOp,
  kDivOp,
  kPowOp,
  kMaxOp,
  kMinOp,
  kPReluOp,
  // of a mask and two inputs
  kWhereOp,
};

}  // namespace graphopt::hip
