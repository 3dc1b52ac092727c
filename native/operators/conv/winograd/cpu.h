// CPU kernel of WinogradConv. T is float or graphopt::half.
#pragma once

#include "operators/conv/winograd/op.h"
#include "operators/packed.h"

namespace graphopt::cpu {

// How a 3x3 convolution is computed. kF4x4 and kF2x2 are Winograd's F(4x4, 3x3) and F(2x2, 3x3) (Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks", CVPR 2016). kF4x4Rows is F(4x4, 3x3) with weights that are stored
// transformed along one axis: half as many values. Each run transforms the other axis. kDirect is an im2col GEMM.
enum class ConvAlgorithm { kF4x4, kF4x4Rows, kF2x2, kDirect };

// y [N, M, OH, OW] = act(conv(x, w) + b + r). w is OIHW [M, C, 3, 3]; its packed form depends on p.C and p.M.
GRAPHOPT_PACKED_KERNELS(GRAPHOPT_CPU_KERNEL, winograd_conv, ConvolutionProblem, ConvAlgorithm)

}  // namespace graphopt::cpu
