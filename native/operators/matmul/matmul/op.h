// Built-in GEMM of any shape on a GPU.
#pragma once

#include <optional>

#include "device/launch.h"
#include "gemm/planner.h"
#include "operators/matmul/matmul/problem.h"

namespace graphopt::gpu {

// Inputs A, B, optional bias (input 2), optional R (input 3); output Y. `aligned`: all pointers are multiples of 16.
// `wanted` overrides the planner's tile if the device has a kernel for it. Throws std::invalid_argument if a size is
// too large.
Plan gemm_plan(const GemmProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<GemmTile> wanted = std::nullopt);

}  // namespace graphopt::gpu
