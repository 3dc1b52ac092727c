// Chooses the kernel of a FusedConv: an implicit GEMM, or the depthwise kernel for groups with one input and one output
// channel.
#include "operators/conv/fused_conv/cpu.h"

#include <cstring>

#include "operators/conv/fused_conv/depthwise_cpu.h"
#include "operators/conv/fused_conv/product_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Joins adjacent axes along which the kernel size and the stride are 1 and there is no padding.
ConvolutionProblem with_joined_axes(ConvolutionProblem p) {
  const auto plain = [&](size_t axis) {
    return p.kernel[axis] == 1 && p.stride[axis] == 1 && p.in[axis] == p.out[axis] && p.pad[axis] == 0;
  };
  for (size_t axis = 1; axis < 3; ++axis) {
    if (!plain(axis - 1) || !plain(axis)) continue;
    for (auto* sizes : {&p.in, &p.out}) {
      (*sizes)[axis] *= (*sizes)[axis - 1];
      (*sizes)[axis - 1] = 1;
    }
  }
  return p;
}

bool one_channel(const ConvolutionProblem& p) { return p.C == 1 && p.M == 1; }
bool empty(const ConvolutionProblem& p) { return p.N == 0 || p.M == 0 || p.out_size() == 0; }

}  // namespace

template <class T>
FusedConvVectors fused_conv_choose(const ConvolutionProblem& problem) {
  const ConvolutionProblem p = with_joined_axes(problem);
  return one_channel(p) ? FusedConvVectors::kPixels : conv_product_vectors(p);
}

template <class T>
size_t fused_conv_weights(const ConvolutionProblem& p, FusedConvVectors vectors) {
  return one_channel(p) ? depthwise_weights(p) : conv_product_weights(p, vectors);
}

template <class T>
void fused_conv_prepare(const ConvolutionProblem& p, FusedConvVectors vectors, const T* w, void* weights) {
  std::memset(weights, 0, GRAPHOPT_ISA::fused_conv_weights<T>(p, vectors));
  if (one_channel(p)) return depthwise_prepare(p, w, static_cast<float*>(weights));
  conv_product_prepare(p, vectors, w, weights);
}

template <class T>
size_t fused_conv_workspace(const ConvolutionProblem& problem, FusedConvVectors vectors, size_t workers) {
  const ConvolutionProblem p = with_joined_axes(problem);
  if (empty(p)) return 0;
  return one_channel(p) ? depthwise_planes_workspace(p, workers)
                        : conv_product_workspace(p, vectors, workers);
}

template <class T>
std::unique_ptr<ConvSchedule> conv_schedule(const ConvolutionProblem& problem, FusedConvVectors vectors,
                                            size_t workers) {
  if (empty(problem) || one_channel(problem)) return nullptr;
  return conv_product_schedule(with_joined_axes(problem), vectors, workers);
}

template <class T>
void scheduled_conv(const ConvolutionProblem& problem, FusedConvVectors vectors, ConvSchedule* schedule,
                    const T* x, const void* weights, const T* b, const T* r, const T* slopes, T* y,
                    Parallel& parallel, void* workspace) {
  const ConvolutionProblem p = with_joined_axes(problem);
  if (empty(p)) return;
  const Residual<T> residual(p, r, slopes);
  if (one_channel(p)) {
    return depthwise_planes(p, x, static_cast<const float*>(weights), b, residual, y, parallel, workspace);
  }
  conv_product(p, vectors, schedule, x, weights, b, residual, {y, nullptr}, parallel, workspace);
}

template <class T>
void fused_conv(const ConvolutionProblem& problem, FusedConvVectors vectors, const T* x, const void* weights,
                const T* b, const T* r, const T* slopes, T* y, Parallel& parallel, void* workspace) {
  GRAPHOPT_ISA::scheduled_conv<T>(problem, vectors, nullptr, x, weights, b, r, slopes, y, parallel,
                                  workspace);
}

template <class T>
size_t pairs_conv_workspace(const ConvolutionProblem& problem, FusedConvVectors vectors, size_t workers) {
  if (empty(problem)) return 0;
  if (one_channel(problem)) return depthwise_pairs_workspace(problem, workers);
  return conv_product_workspace(with_joined_axes(problem), vectors, workers);
}

template <class T>
void pairs_conv(const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule, const void* x,
                const void* weights, const T* b, const void* r, T* y, void* pairs, Parallel& parallel,
                void* workspace) {
  if (empty(p)) return;
  const Outputs<T> to = {y, static_cast<Word*>(pairs)};
  const Residual<T> residual(p, r);
  if (one_channel(p)) {
    return depthwise_pairs(p, x, static_cast<const float*>(weights), b, residual, to, parallel, workspace);
  }
  conv_product(with_joined_axes(p), vectors, schedule, x, weights, b, residual, to, parallel, workspace);
}

GRAPHOPT_INSTANTIATE(fused_conv_choose)
GRAPHOPT_INSTANTIATE(fused_conv_weights)
GRAPHOPT_INSTANTIATE(fused_conv_prepare)
GRAPHOPT_INSTANTIATE(fused_conv_workspace)
GRAPHOPT_INSTANTIATE(fused_conv)
GRAPHOPT_INSTANTIATE(scheduled_conv)
GRAPHOPT_INSTANTIATE(conv_schedule)
template decltype(pairs_conv_workspace<float>) pairs_conv_workspace<float>;
template decltype(pairs_conv<float>) pairs_conv<float>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
