// DynamicQuantizedConv: computes the range of x, then quantizes x while it packs it for the implicit GEMM.
#include <cstring>
#include <vector>

#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/fused_conv/quantized_gemm.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

int64_t x_elements(const ConvolutionProblem& p) { return p.N * p.x_channels() * p.in_size(); }
bool is_empty(const ConvolutionProblem& p) { return p.N == 0 || p.M == 0 || p.out_size() == 0; }

struct DynamicScratch {
  Range* ranges;
  float* factors;

  DynamicScratch(const ConvolutionProblem& p, Workspace& workspace)
      : ranges(workspace.take<Range>(ceil_div(x_elements(p), kRangeElements))),
        factors(workspace.take<float>(p.y_channels())) {}
};

}  // namespace

template <class T>
FusedConvVectors dynamic_conv_choose(const ConvolutionProblem& p) {
  return conv_gemm_vectors(with_merged_axes(p));
}

template <class T>
size_t dynamic_conv_weights(const ConvolutionProblem& p, FusedConvVectors vectors) {
  return conv_gemm_weights(p, vectors);
}

template <class T>
void dynamic_conv_prepare(const ConvolutionProblem& p, FusedConvVectors vectors, const uint8_t* w,
                          uint8_t zero, void* weights) {
  std::memset(weights, 0, conv_gemm_weights(p, vectors));
  quantized_gemm_prepare(p, vectors, w, zero, weights);
}

template <class T>
size_t dynamic_conv_workspace(const ConvolutionProblem& p, FusedConvVectors vectors, size_t workers) {
  if (is_empty(p)) return 0;
  Workspace workspace(nullptr);
  const DynamicScratch scratch(p, workspace);
  return workspace.bytes() + conv_gemm_workspace(with_merged_axes(p), vectors, workers);
}

template <class T>
std::unique_ptr<ConvSchedule> dynamic_conv_schedule(const ConvolutionProblem& p, FusedConvVectors vectors,
                                                    size_t workers) {
  return is_empty(p) ? nullptr : conv_gemm_schedule(with_merged_axes(p), vectors, workers);
}

template <class T>
void dynamic_conv(const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule, const T* x,
                  const void* weights, const T* w_scale, const T* b, T* y, Parallel& parallel, void* memory) {
  if (is_empty(p)) return;
  Workspace workspace(memory);
  const DynamicScratch scratch(p, workspace);
  const int64_t elements = x_elements(p), items = ceil_div(elements, kRangeElements);
  parallel_for(parallel, items, [&](int64_t item, size_t) {
    const int64_t begin = item * kRangeElements;
    scratch.ranges[item] = range_of(x + begin, std::min(kRangeElements, elements - begin));
  });
  const Quantization quantization(scratch.ranges, items);
  for (int64_t m = 0; m < p.y_channels(); ++m) scratch.factors[m] = quantization.scale * w_scale[m];
  quantized_gemm(with_merged_axes(p), vectors, schedule, quantization, x, weights, scratch.factors, b, y,
                 parallel, static_cast<char*>(memory) + workspace.bytes());
}

template decltype(dynamic_conv_choose<float>) dynamic_conv_choose<float>;
template decltype(dynamic_conv_weights<float>) dynamic_conv_weights<float>;
template decltype(dynamic_conv_prepare<float>) dynamic_conv_prepare<float>;
template decltype(dynamic_conv_workspace<float>) dynamic_conv_workspace<float>;
template decltype(dynamic_conv_schedule<float>) dynamic_conv_schedule<float>;
template decltype(dynamic_conv<float>) dynamic_conv<float>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
