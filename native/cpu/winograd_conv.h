// CPU kernel of WinogradConv.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/parallel.h"
#include "cpu/workspace.h"
#include "ops/winograd_conv.h"

namespace graphopt::cpu {

// Weights in the layouts that the kernel's algorithms want, made once from OIHW and immutable after.
class WinogradWeights {
 public:
  virtual ~WinogradWeights() = default;
  virtual size_t bytes() const = 0;
};

// T is float or graphopt::half. w is OIHW [M, C, 3, 3]. The problem's N, H and W may be 0 when not known yet.
template <class T>
std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem& p, const T* w);

// y [N, M, OH, OW] = act(conv(x, w) + bias + residual). residual is null unless p.has_residual.
template <class T>
void winograd_conv(const ConvProblem& p, const T* x, const WinogradWeights& w, const T* bias, const T* residual, T* y,
                   Parallel& parallel, Workspace& workspace);

}  // namespace graphopt::cpu
