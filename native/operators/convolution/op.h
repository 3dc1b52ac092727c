// Convolutions of up to three spatial axes on a GPU without the vendor's libraries.
#pragma once

#include "blocks/gpu/product_plan.h"
#include "operators/convolution/problem.h"

namespace graphopt::gpu {

// Any of them, directly (direct.hip). Inputs X, W, B if any; output Y. Throws std::invalid_argument.
Plan convolution_plan(const ConvolutionProblem& p, bool half);

// One that is not transposed and whose first axis is not used, as a product (product.hip). Inputs X, W, B if
// any; output Y. `aligned` and `wanted`: as gemm_plan (operators/matmul/op.h).
Plan conv_plan(const ConvolutionProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<ProductTile> wanted = std::nullopt);

}  // namespace graphopt::gpu
