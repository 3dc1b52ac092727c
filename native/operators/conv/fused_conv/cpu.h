// CPU kernels of FusedConv and DynamicQuantizedConv. T is float or graphopt::half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "operators/conv/convolution/problem.h"
#include "operators/packed.h"

namespace graphopt::cpu {

// The axis of y along which the implicit GEMM vectorizes: pixels, or output channels if there are few pixels. kTiles:
// AMX tiles of pixels and output channels, in bfloat16 only.
enum class FusedConvVectors { kPixels, kChannels, kTiles };

// Returns the fastest choice. Unknown sizes p.in are 0.
GRAPHOPT_BFLOAT16_KERNEL(FusedConvVectors, fused_conv_choose, (const ConvolutionProblem& p), (p))

// y = act(conv(x, w) + b + r), summed in float32. With p.bfloat16, x and w are rounded to bfloat16 first. The packed
// form of w depends on p.groups, p.M, p.C, p.kernel and p.bfloat16.
GRAPHOPT_PACKED_KERNELS(GRAPHOPT_BFLOAT16_KERNEL, fused_conv, ConvolutionProblem, FusedConvVectors)

// Tables that runs with the same shapes and number of threads reuse. One run at a time may use them.
struct ConvSchedule {
  virtual ~ConvSchedule() = default;
};
// Returns null if there is nothing to reuse.
GRAPHOPT_BFLOAT16_KERNEL(std::unique_ptr<ConvSchedule>, conv_schedule,
                         (const ConvolutionProblem& p, FusedConvVectors vectors, size_t workers),
                         (p, vectors, workers))

// fused_conv with a schedule, which may be null.
GRAPHOPT_BFLOAT16_KERNEL(void, scheduled_conv,
                         (const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule,
                          const T* x, const void* weights, const T* b, const T* r, const T* slopes, T* y,
                          Parallel& parallel, void* workspace),
                         (p, vectors, schedule, x, weights, b, r, slopes, y, parallel, workspace))

GRAPHOPT_BFLOAT16_KERNEL(size_t, nchw2c_conv_workspace,
                         (const ConvolutionProblem& p, FusedConvVectors vectors, size_t workers),
                         (p, vectors, workers))

// scheduled_conv in bfloat16 for the NCHW2c bf16 layout. Each group has an even number of channels, or there is an even
// number of groups with one input and one output channel each. x is NCHW2c if p.x_nchw2c, otherwise NCHW; r is NCHW2c
// if p.residual_nchw2c, otherwise NCHW. y and `nchw2c` receive the result in NCHW and NCHW2c; one of them may be null.
GRAPHOPT_BFLOAT16_KERNEL(void, nchw2c_conv,
                         (const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule,
                          const void* x, const void* weights, const T* b, const void* r, T* y, void* nchw2c,
                          Parallel& parallel, void* workspace),
                         (p, vectors, schedule, x, weights, b, r, y, nchw2c, parallel, workspace))

// The functions of DynamicQuantizedConv. p.quantized is true, and T is float. W is packed minus its zero point.
GRAPHOPT_BFLOAT16_KERNEL(FusedConvVectors, dynamic_conv_choose, (const ConvolutionProblem& p), (p))
GRAPHOPT_BFLOAT16_KERNEL(size_t, dynamic_conv_weights,
                         (const ConvolutionProblem& p, FusedConvVectors vectors), (p, vectors))
GRAPHOPT_BFLOAT16_KERNEL(void, dynamic_conv_prepare,
                         (const ConvolutionProblem& p, FusedConvVectors vectors, const uint8_t* w,
                          uint8_t zero, void* weights),
                         (p, vectors, w, zero, weights))
GRAPHOPT_BFLOAT16_KERNEL(size_t, dynamic_conv_workspace,
                         (const ConvolutionProblem& p, FusedConvVectors vectors, size_t workers),
                         (p, vectors, workers))
GRAPHOPT_BFLOAT16_KERNEL(std::unique_ptr<ConvSchedule>, dynamic_conv_schedule,
                         (const ConvolutionProblem& p, FusedConvVectors vectors, size_t workers),
                         (p, vectors, workers))
GRAPHOPT_BFLOAT16_KERNEL(void, dynamic_conv,
                         (const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule,
                          const T* x, const void* weights, const T* w_scale, const T* b, T* y,
                          Parallel& parallel, void* workspace),
                         (p, vectors, schedule, x, weights, w_scale, b, y, parallel, workspace))

}  // namespace graphopt::cpu
