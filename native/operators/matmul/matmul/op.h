// Matrix products of any shape on a GPU without the vendor's libraries.
#pragma once

#include <optional>

#include "device/launch.h"
#include "gemm/planner.h"
#include "operators/matmul/matmul/problem.h"

namespace graphopt::gpu {

// Inputs A, B, bias, R, as far as the problem has them (R is always number 3); output Y. `aligned`: all of
// them are multiples of 16. `wanted` instead of the plan's own choice, if the device has it. Throws
// std::invalid_argument.
Plan gemm_plan(const GemmProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<GemmTile> wanted = std::nullopt);

}  // namespace graphopt::gpu
