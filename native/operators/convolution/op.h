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

// A depthwise one of two axes in float16 and channels last, its channels whole vectors, with what follows it
// (depthwise.hip). Inputs X, W, B, the residual if any, all of them at multiples of 16 bytes; output Y.
// Throws std::invalid_argument.
Plan depthwise_plan(const ConvolutionProblem& p);

}  // namespace graphopt::gpu
