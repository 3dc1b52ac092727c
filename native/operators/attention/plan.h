// How FusedAttention[...] runs on a GPU: operators/attention/kernel.hip.
#pragma once

#include <optional>

#include "device/launch.h"
#include "operators/attention/op.h"
#include "operators/attention/shape.h"

namespace graphopt::gpu {

// Inputs Q, K, V, then bias and mask where the problem has them; output O. `aligned`: all pointers are
// multiples of 16. Throws std::invalid_argument when a head has more than 256 elements, or a dimension or the
// stride of a row 2^31 or more. `rows`: instead of the plan's own choice, where there is one.
Plan fused_attention_plan(const AttentionProblem& p, bool half, bool aligned, const DeviceFacts& device,
                          std::optional<hip::AttentionRows> rows = {});

}  // namespace graphopt::gpu
