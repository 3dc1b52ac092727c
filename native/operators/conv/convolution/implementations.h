// The implementations of convolutions on a GPU.
#pragma once

#include "operators/conv/convolution/problem.h"
#include "operators/kernel_bases.h"
#include "operators/matmul/linear/problem.h"

namespace graphopt {

// The convolution of one node. In channels last it has two spatial axes and float16 elements, and may have a residual
// and an activation.
struct ConvolutionWork : GpuWork<ConvolutionProblem> {
  static constexpr size_t kResidual = 3;  // input index of the residual

  // The bias is input 2 if there is one.
  Ref bias() const { return p.has_bias ? Ref::input(2) : Ref(); }
  Ref residual() const { return p.has_residual ? Ref::input(kResidual) : Ref(); }

  // The other members are for channels last only.
  Ref bias_or_zeros() const;
  int64_t pixels() const { return p.N * p.out_size(); }
  // Y [pixels, M] = X [pixels, C] W^T, with bias, residual and activation.
  LinearProblem layer() const;
  // Returns the problem without bias, residual and activation.
  ConvolutionProblem without_epilogue() const;
  // Adds bias, residual and activation in one pass over Y.
  void add_tail();
};

// The implementations of convolutions, of transposed convolutions, and of both in channels last.
extern const Implementation<ConvolutionWork> kConvolutions[6], kTransposed[4], kConvolutionsChannelsLast[9];

}  // namespace graphopt
