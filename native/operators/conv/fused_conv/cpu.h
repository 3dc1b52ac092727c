// CPU kernel of FusedConv. T is float or graphopt::half.
#pragma once

#include <cstddef>
#include <memory>

#include "operators/conv/convolution/problem.h"
#include "operators/packed.h"

namespace graphopt::cpu {

// What the vectors of a product are: pixels of y, or output channels, which fill them where pixels are few. In bfloat16
// on machines with AMX: tiles of both.
enum class FusedConvVectors { kPixels, kChannels, kTiles };

// The faster one; p.in is 0 where it is not known.
GRAPHOPT_PRODUCT_KERNEL(FusedConvVectors, fused_conv_choose, (const ConvolutionProblem& p), (p))

// y = act(conv(x, w) + b + r), summed in float32; where p.bfloat16 both factors are rounded to
// bfloat16 before. What w is packed to depends on p.groups, p.M, p.C, p.kernel and p.bfloat16.
GRAPHOPT_PACKED_KERNELS(GRAPHOPT_PRODUCT_KERNEL, fused_conv, ConvolutionProblem, FusedConvVectors)

// What runs of the same shapes on as many lanes share, which one run at a time may use.
struct ConvSchedule {
  virtual ~ConvSchedule() = default;
};
// Null where there is nothing to keep.
GRAPHOPT_PRODUCT_KERNEL(std::unique_ptr<ConvSchedule>, conv_schedule,
                        (const ConvolutionProblem& p, FusedConvVectors vectors, size_t lanes),
                        (p, vectors, lanes))

// The same as fused_conv by a schedule, which may be null.
GRAPHOPT_PRODUCT_KERNEL(void, scheduled_conv,
                        (const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule,
                         const T* x, const void* weights, const T* b, const T* r, const T* slopes, T* y,
                         Parallel& parallel, void* workspace),
                        (p, vectors, schedule, x, weights, b, r, slopes, y, parallel, workspace))

GRAPHOPT_PRODUCT_KERNEL(size_t, pairs_conv_workspace,
                        (const ConvolutionProblem& p, FusedConvVectors vectors, size_t lanes),
                        (p, vectors, lanes))

// The same in bfloat16 for what lies in pairs of channels, of which there is an even number in each group, or
// one in and one out of each of an even number of groups. x: numbers, or pairs where p.pairs; r: the same where
// p.residual_pairs; y and `pairs`: the result as numbers and as pairs, null where it is not wanted.
GRAPHOPT_PRODUCT_KERNEL(void, pairs_conv,
                        (const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule,
                         const void* x, const void* weights, const T* b, const void* r, T* y, void* pairs,
                         Parallel& parallel, void* workspace),
                        (p, vectors, schedule, x, weights, b, r, y, pairs, parallel, workspace))

}  // namespace graphopt::cpu
