// CPU kernel of FusedAttention.
#pragma once

#include "device/cpu/parallel.h"
#include "device/cpu/workspace.h"
#include "operators/attention/op.h"

namespace graphopt::cpu {

// T is float or graphopt::half; accumulation and softmax in float. bias and mask are null unless the problem
// has them.
template <class T>
void fused_attention(const AttentionProblem& p, const T* q, const T* k, const T* v, const T* bias,
                     const bool* mask, T* o, Parallel& parallel, Workspace& workspace);

}  // namespace graphopt::cpu
