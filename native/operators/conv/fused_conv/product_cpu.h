// A convolution with several input or output channels in each group (product_cpu.cpp).
// For kernel files only (see cpu/isa.h).
#pragma once

#include <cstddef>

#include "cpu/parallel.h"
#include "operators/conv/fused_conv/cpu.h"
#include "operators/conv/fused_conv/finish.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Blocks of output channels, which are the rows of a register tile.
inline int64_t blocks_of(int64_t outputs) { return ceil_div(outputs, kMaxRows); }
// The first channel of a block. Two channels of a pair are in the same block.
inline int64_t first_of(int64_t outputs, int64_t block) {
  const int64_t together = outputs % 2 == 0 ? 2 : 1;
  return outputs / together * block / blocks_of(outputs) * together;
}

FusedConvVectors conv_product_vectors(const ConvolutionProblem& p);

// Bytes of the packed weights (weights_cpu.cpp), and of the memory of a run.
size_t conv_product_weights(const ConvolutionProblem& p, FusedConvVectors vectors);
size_t conv_product_workspace(const ConvolutionProblem& p, FusedConvVectors vectors, size_t workers);
std::unique_ptr<ConvSchedule> conv_product_schedule(const ConvolutionProblem& p, FusedConvVectors vectors,
                                                    size_t workers);

// `weights` must be zero-initialized.
template <class T>
void conv_product_prepare(const ConvolutionProblem& p, FusedConvVectors vectors, const T* w, void* weights);

// The schedule may be null. x: elements of T, or words if p.pairs. If a result or the residual has the NCHW2c layout, T
// is float and p.bfloat16 is true.
template <class T>
void conv_product(const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule,
                  const void* x, const void* weights, const T* b, Residual<T> residual, Outputs<T> to,
                  Parallel& parallel, void* workspace);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
