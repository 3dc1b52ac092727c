// Chooses the kernel of a FusedConv: an implicit GEMM, or the depthwise kernel for groups with one input and one output
// channel.
#include "operators/conv/fused_conv/cpu.h"

#include <cstring>

#include "operators/conv/fused_conv/depthwise_cpu.h"
#include "operators/conv/fused_conv/gemm_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

bool one_channel(const ConvolutionProblem& p) { return p.C == 1 && p.M == 1; }
bool empty(const ConvolutionProblem& p) { return p.N == 0 || p.M == 0 || p.out_size() == 0; }

}  // namespace

template <class T>
FusedConvVectors fused_conv_choose(const ConvolutionProblem& problem) {
  const ConvolutionProblem p = with_merged_axes(problem);
  return one_channel(p) ? FusedConvVectors::kPixels : conv_gemm_vectors(p);
}

template <class T>
size_t fused_conv_weights(const ConvolutionProblem& p, FusedConvVectors vectors) {
  return one_channel(p) ? depthwise_weights(p) : conv_gemm_weights(p, vectors);
}

template <class T>
void fused_conv_prepare(const ConvolutionProblem& p, FusedConvVectors vectors, const T* w, void* weights) {
  std::memset(weights, 0, GRAPHOPT_ISA::fused_conv_weights<T>(p, vectors));
  if (one_channel(p)) return depthwise_prepare(p, w, static_cast<float*>(weights));
  conv_gemm_prepare(p, vectors, w, weights);
}

template <class T>
size_t fused_conv_workspace(const ConvolutionProblem& problem, FusedConvVectors vectors, size_t workers) {
  const ConvolutionProblem p = with_merged_axes(problem);
  if (empty(p)) return 0;
  return one_channel(p) ? depthwise_planes_workspace(p, workers) : conv_gemm_workspace(p, vectors, workers);
}

template <class T>
std::unique_ptr<ConvSchedule> conv_schedule(const ConvolutionProblem& problem, FusedConvVectors vectors,
                                            size_t workers) {
  if (empty(problem) || one_channel(problem)) return nullptr;
  return conv_gemm_schedule(with_merged_axes(problem), vectors, workers);
}

template <class T>
void scheduled_conv(const ConvolutionProblem& problem, FusedConvVectors vectors, ConvSchedule* schedule,
                    const T* x, const void* weights, const T* b, const T* r, const T* slopes, T* y,
                    Parallel& parallel, void* workspace) {
  const ConvolutionProblem p = with_merged_axes(problem);
  if (empty(p)) return;
  const Residual<T> residual(p, r, slopes);
  if (one_channel(p)) {
    return depthwise_planes(p, x, static_cast<const float*>(weights), b, residual, y, parallel, workspace);
  }
  conv_gemm(p, vectors, schedule, x, weights, b, residual, {y, nullptr}, parallel, workspace);
}

template <class T>
void fused_conv(const ConvolutionProblem& problem, FusedConvVectors vectors, const T* x, const void* weights,
                const T* b, const T* r, const T* slopes, T* y, Parallel& parallel, void* workspace) {
  GRAPHOPT_ISA::scheduled_conv<T>(problem, vectors, nullptr, x, weights, b, r, slopes, y, parallel,
                                  workspace);
}

template <class T>
size_t nchw2c_conv_workspace(const ConvolutionProblem& problem, FusedConvVectors vectors, size_t workers) {
  if (empty(problem)) return 0;
  if (one_channel(problem)) return depthwise_pairs_workspace(problem, workers);
  return conv_gemm_workspace(with_merged_axes(problem), vectors, workers);
}

template <class T>
void nchw2c_conv(const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule, const void* x,
                 const void* weights, const T* b, const void* r, T* y, void* nchw2c, Parallel& parallel,
                 void* workspace) {
  if (empty(p)) return;
  const Outputs<T> to = {y, static_cast<Word*>(nchw2c)};
  const Residual<T> residual(p, r);
  if (one_channel(p)) {
    return depthwise_pairs(p, x, static_cast<const float*>(weights), b, residual, to, parallel, workspace);
  }
  conv_gemm(with_merged_axes(p), vectors, schedule, x, weights, b, residual, to, parallel, workspace);
}

GRAPHOPT_INSTANTIATE(fused_conv_choose)
GRAPHOPT_INSTANTIATE(fused_conv_weights)
GRAPHOPT_INSTANTIATE(fused_conv_prepare)
GRAPHOPT_INSTANTIATE(fused_conv_workspace)
GRAPHOPT_INSTANTIATE(fused_conv)
GRAPHOPT_INSTANTIATE(scheduled_conv)
GRAPHOPT_INSTANTIATE(conv_schedule)
template decltype(nchw2c_conv_workspace<float>) nchw2c_conv_workspace<float>;
template decltype(nchw2c_conv<float>) nchw2c_conv<float>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
