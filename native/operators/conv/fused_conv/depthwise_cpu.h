// Depthwise convolutions: one input and one output channel in each group. depthwise_planes_cpu.cpp defines
// depthwise_planes, and depthwise_cpu.cpp the other functions. For kernel files only (see cpu/isa.h).
#pragma once

#include <cstddef>

#include "cpu/parallel.h"
#include "operators/conv/fused_conv/finish.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Rounds x to the nearest bfloat16 values.
inline Vec rounded(Vec x) {
  return reinterpret_cast<Vec>(Bfloat16Pairs::make_words(x, x) & (Words{} + 0xffff0000u));
}

// Returns the bytes of the packed weights, which depthwise_planes and depthwise_pairs share.
size_t depthwise_weights(const ConvolutionProblem& p);
template <class T>
void depthwise_prepare(const ConvolutionProblem& p, const T* w, float* weights);

// Computes y in NCHW from x in NCHW. Packs and convolves one plane of x at a time.
size_t depthwise_planes_workspace(const ConvolutionProblem& p, size_t workers);
template <class T>
void depthwise_planes(const ConvolutionProblem& p, const T* x, const float* weights, const T* b,
                      Residual<T> residual, T* y, Parallel& parallel, void* workspace);

// Computes a result in NCHW, NCHW2c or both; x is NCHW2c if p.x_nchw2c, otherwise NCHW. p.groups must be even, because
// two groups are computed at a time.
size_t depthwise_pairs_workspace(const ConvolutionProblem& p, size_t workers);
void depthwise_pairs(const ConvolutionProblem& p, const void* x, const float* weights, const float* b,
                     Residual<float> residual, Outputs<float> to, Parallel& parallel, void* workspace);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
