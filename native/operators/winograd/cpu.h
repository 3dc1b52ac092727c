// CPU kernel of WinogradConv. T is float or graphopt::half.
#pragma once

#include <cstddef>

#include "device/cpu/isa.h"
#include "device/cpu/parallel.h"
#include "operators/winograd/op.h"

namespace graphopt::cpu {

// How a 3x3 convolution is computed. kF4x4 and kF2x2 are Winograd's F(4x4, 3x3) and F(2x2, 3x3) (Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016); kDirect is a matrix product over
// gathered windows.
enum class ConvAlgorithm { kF4x4, kF2x2, kDirect };

// W in the layout that an algorithm wants, which depends on p.C and p.M alone: its bytes, and how these are
// written, at a cache line, from w, OIHW [M, C, 3, 3].
GRAPHOPT_CPU_KERNEL(size_t, winograd_weights, (const ConvolutionProblem& p, ConvAlgorithm algorithm),
                    (p, algorithm))
GRAPHOPT_CPU_KERNEL(void, winograd_prepare,
                    (const ConvolutionProblem& p, ConvAlgorithm algorithm, const T* w, void* weights),
                    (p, algorithm, w, weights))

// y [N, M, OH, OW] = act(conv(x, w) + bias + residual). residual is null unless p.has_residual. The result
// does not depend on the number of lanes.
GRAPHOPT_CPU_KERNEL(size_t, winograd_workspace,
                    (const ConvolutionProblem& p, ConvAlgorithm algorithm, size_t lanes),
                    (p, algorithm, lanes))
GRAPHOPT_CPU_KERNEL(void, winograd_conv,
                    (const ConvolutionProblem& p, ConvAlgorithm algorithm, const T* x, const void* weights,
                     const T* bias, const T* residual, T* y, Parallel& parallel, void* workspace),
                    (p, algorithm, x, weights, bias, residual, y, parallel, workspace))

}  // namespace graphopt::cpu
