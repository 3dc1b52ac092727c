// Convolutions with several input or output channels in each group, as implicit GEMMs (gemm_cpu.cpp). For kernel files
// only (see cpu/isa.h).
#pragma once

#include <cstddef>

#include "cpu/parallel.h"
#include "operators/conv/fused_conv/cpu.h"
#include "operators/conv/fused_conv/finish.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Returns the number of blocks of output channels. The channels of a block are the rows of a register tile.
inline int64_t blocks_of(int64_t outputs) { return ceil_div(outputs, kMaxRows); }
// Returns the first channel of a block. If `outputs` is even, channels 2 i and 2 i + 1 are in the same block.
inline int64_t first_of(int64_t outputs, int64_t block) {
  const int64_t together = outputs % 2 == 0 ? 2 : 1;
  return outputs / together * block / blocks_of(outputs) * together;
}

// Merges adjacent axes along which the kernel size and the stride are 1 and there is no padding.
inline ConvolutionProblem with_merged_axes(ConvolutionProblem p) {
  const auto is_pointwise = [&](size_t axis) {
    return p.kernel[axis] == 1 && p.stride[axis] == 1 && p.in[axis] == p.out[axis] && p.pad[axis] == 0;
  };
  for (size_t axis = 1; axis < 3; ++axis) {
    if (!is_pointwise(axis - 1) || !is_pointwise(axis)) continue;
    for (auto* sizes : {&p.in, &p.out}) {
      (*sizes)[axis] *= (*sizes)[axis - 1];
      (*sizes)[axis - 1] = 1;
    }
  }
  return p;
}

FusedConvVectors conv_gemm_vectors(const ConvolutionProblem& p);

// Return the bytes of the packed weights (weights_cpu.cpp), and of the workspace of a run.
size_t conv_gemm_weights(const ConvolutionProblem& p, FusedConvVectors vectors);
size_t conv_gemm_workspace(const ConvolutionProblem& p, FusedConvVectors vectors, size_t workers);
std::unique_ptr<ConvSchedule> conv_gemm_schedule(const ConvolutionProblem& p, FusedConvVectors vectors,
                                                 size_t workers);

// `weights` must be zero-initialized.
template <class T>
void conv_gemm_prepare(const ConvolutionProblem& p, FusedConvVectors vectors, const T* w, void* weights);

// The schedule may be null. x: elements of T, or words if p.x_nchw2c. If a result or the residual is NCHW2c, T is float
// and p.bfloat16 is true.
template <class T>
void conv_gemm(const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule, const void* x,
               const void* weights, const T* b, Residual<T> residual, Outputs<T> to, Parallel& parallel,
               void* workspace);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
