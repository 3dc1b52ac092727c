// Launch plans of the built-in GPU kernels for convolutions of up to three spatial axes.
#pragma once

#include "gemm/planner.h"
#include "operators/conv/convolution/problem.h"

namespace graphopt::gpu {

// Computes any convolution by the direct algorithm (direct.hip). Inputs X, W, B if any; output Y. Throws
// std::invalid_argument if a size is too large.
Plan convolution_plan(const ConvolutionProblem& p, bool half);

// Computes a convolution that is not transposed, over the last two axes, as an implicit GEMM in channels first
// (implicit_gemm.hip). Inputs X, W, B if any; output Y. `aligned`: all pointers are multiples of 16 bytes. `wanted`:
// the tile, for tests and tuning; if it is unset or has no kernel on the device, the planner chooses.
Plan conv_plan(const ConvolutionProblem& p, bool half, bool aligned, const DeviceFacts& device,
               std::optional<GemmTile> wanted = std::nullopt);

// Computes a pointwise convolution of few channels and filters in channels first (few_channels.hip). Inputs X, W, B if
// any; output Y. refuse_few_channels returns why the convolution is not supported, or null. `wants_vectors`: whether
// work-items compute vectors of pixels, which requires aligned memory. If unset, the number of pixels decides.
const char* refuse_few_channels(const ConvolutionProblem& p);
Plan few_channels_plan(const ConvolutionProblem& p, bool half, bool aligned, const DeviceFacts& device,
                       std::optional<bool> wants_vectors = std::nullopt);

// Computes a float16 convolution in channels last with its epilogue, as an implicit GEMM on vectors of channels. The
// kernel is in channels_last.hip, or in halo.hip if `wanted` is unset and the estimated cost of halo.hip is lower. A
// transposed convolution is supported if its kernel size equals its stride. Inputs: 0 X, 1 W, 2 B if any, 3 the
// residual if any, all aligned to 16 bytes; output Y. Throws std::invalid_argument if a size is too large or the device
// has no matrix units. refuse_channels_last_conv returns why the convolution is not supported, or null.
const char* refuse_channels_last_conv(const ConvolutionProblem& p, const DeviceFacts& device);
Plan channels_last_conv_plan(const ConvolutionProblem& p, const DeviceFacts& device,
                             std::optional<GemmTile> wanted = std::nullopt);

// The same as channels_last_conv_plan, for strides and dilations of 1 and images of Y as large as those of X, on
// devices with direct copies to LDS. A tile copies its pixels of X to LDS once for each block of channels (halo.hip).
const char* refuse_conv_halo(const ConvolutionProblem& p, const DeviceFacts& device);
Plan conv_halo_plan(const ConvolutionProblem& p, const DeviceFacts& device,
                    std::optional<GemmTile> wanted = std::nullopt);

// Computes a float16 depthwise convolution over two axes in channels last with its epilogue (depthwise.hip). Inputs X,
// W, B, the residual if any, all aligned to 16 bytes; output Y. Throws std::invalid_argument if a size is too large.
// `wants_long`: whether work-items compute long strips of pixels, which requires a kernel for them. If unset, the
// number of short strips for each compute unit decides.
Plan depthwise_plan(const ConvolutionProblem& p, const DeviceFacts& device,
                    std::optional<bool> wants_long = std::nullopt);

}  // namespace graphopt::gpu
