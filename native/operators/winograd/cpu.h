// CPU kernel of WinogradConv.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/cpu/parallel.h"
#include "device/cpu/workspace.h"
#include "operators/winograd/op.h"

namespace graphopt::cpu {

// How a 3x3 convolution is computed. kF4x4 and kF2x2 are Winograd's F(4x4, 3x3) and F(2x2, 3x3) (Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016); kDirect is a matrix product over
// gathered windows.
enum class ConvAlgorithm { kDirect, kF2x2, kF4x4 };

// The fastest algorithm for the problem among those accurate enough for elements of this size (4: float, 2:
// half). N, H and W may be 0 when not known. docs/measurements/winograd_cpu.md has the measurements behind
// it.
ConvAlgorithm winograd_choose(const ConvProblem& p, size_t element_size);

// Weights in the layout that the chosen algorithm wants, made once from OIHW and immutable after.
class WinogradWeights {
 public:
  virtual ~WinogradWeights() = default;
  virtual size_t bytes() const = 0;
};

// T is float or graphopt::half. w is OIHW [M, C, 3, 3]. The problem's N, H and W may be 0 when not known yet.
template <class T>
std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem& p, const T* w);

// The same with the algorithm given, for tests and benches.
template <class T>
std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem& p, const T* w,
                                                        ConvAlgorithm algorithm);

// y [N, M, OH, OW] = act(conv(x, w) + bias + residual). residual is null unless p.has_residual. The weights
// may have been made for other N, H, W and pads. The result does not depend on the number of lanes.
template <class T>
void winograd_conv(const ConvProblem& p, const T* x, const WinogradWeights& w, const T* bias,
                   const T* residual, T* y, Parallel& parallel, Workspace& workspace);

}  // namespace graphopt::cpu
