// Convolutions of up to three spatial axes on a GPU without the vendor's libraries.
#pragma once

#include "gemm/planner.h"
#include "operators/conv/convolution/problem.h"

namespace graphopt::gpu {

// Any of them, directly (direct.hip). Inputs X, W, B if any; output Y. Throws std::invalid_argument.
Plan convolution_plan(const ConvolutionProblem& p, bool half);

// One that is not transposed and whose first axis is not used, as a product (product.hip). Inputs X, W, B if
// any; output Y. `aligned` and `wanted`: as gemm_plan (operators/matmul/matmul/op.h).
Plan conv_plan(const ConvolutionProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<GemmTile> wanted = std::nullopt);

// One in float16 and channels last as a product of whole packs, with what follows it (last.hip), its pixels being
// whole vectors; transposed where its kernel is its stride. Inputs X, W, B if any, the residual if any (always number
// 3), all of them at multiples of 16 bytes; output Y. Throws std::invalid_argument. refuse_conv_last: why not, or
// null.
const char* refuse_conv_last(const ConvolutionProblem& p, const DeviceFacts& device);
Plan conv_last_plan(const ConvolutionProblem& p, const DeviceFacts& device,
                    std::optional<GemmTile> wanted = std::nullopt);

// The same where the taps of consecutive pixels of Y are consecutive pixels of X, which each tile copies to LDS once
// (halo.hip): what conv_last_plan takes where it costs less.
const char* refuse_conv_halo(const ConvolutionProblem& p, const DeviceFacts& device);
Plan conv_halo_plan(const ConvolutionProblem& p, const DeviceFacts& device,
                    std::optional<GemmTile> wanted = std::nullopt);

// A depthwise one of two axes in float16 and channels last, its channels whole vectors, with what follows it
// (depthwise.hip). Inputs X, W, B, the residual if any, all of them at multiples of 16 bytes; output Y.
// Throws std::invalid_argument.
Plan depthwise_plan(const ConvolutionProblem& p);

}  // namespace graphopt::gpu
