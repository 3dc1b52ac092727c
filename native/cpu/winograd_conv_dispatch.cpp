// Direct convolution: the plain definition, until the Winograd kernel takes its place.
#include <cmath>
#include <vector>

#include "cpu/parallel_for.h"
#include "cpu/winograd_conv.h"
#include "ops/half.h"

namespace graphopt::cpu {
namespace {

struct PlainWeights final : WinogradWeights {
  std::vector<float> w;
  size_t bytes() const override { return w.size() * sizeof(float); }
};

float activate(const Activation& act, float x) {
  switch (act.kind) {
    case ActivationKind::kNone:
      return x;
    case ActivationKind::kRelu:
      return x < 0 ? 0 : x;
    case ActivationKind::kLeakyRelu:
      return x < 0 ? act.a * x : x;
    case ActivationKind::kClip:
      x = x < act.a ? act.a : x;
      return x > act.b ? act.b : x;
    case ActivationKind::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case ActivationKind::kSilu:
      return x / (1 + std::exp(-x));
    case ActivationKind::kHardSigmoid:
      x = act.a * x + act.b;
      x = x > 1 ? 1 : x;
      return x < 0 ? 0 : x;
    case ActivationKind::kHardSwish: {
      float g = x / 6 + 0.5f;
      g = g > 1 ? 1 : g;
      return x * (g < 0 ? 0 : g);
    }
    case ActivationKind::kTanh:
      return std::tanh(x);
    case ActivationKind::kGelu:
      return 0.5f * x * (1 + std::erf(x * 0.70710678f));
    case ActivationKind::kGeluTanh:
      return 0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case ActivationKind::kMish:
      return x * std::tanh(x > 20 ? x : std::log1p(std::exp(x)));
  }
  return x;
}

}  // namespace

template <class T>
std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem& p, const T* w) {
  auto weights = std::make_shared<PlainWeights>();
  weights->w.assign(w, w + p.M * p.C * 9);
  return weights;
}

template <class T>
void winograd_conv(const ConvProblem& p, const T* x, const WinogradWeights& w, const T* bias,
                   const T* residual, T* y, Parallel& parallel, Workspace&) {
  const float* weights = static_cast<const PlainWeights&>(w).w.data();
  const int64_t OH = p.OH(), OW = p.OW();
  parallel_for(parallel, p.N * p.M, [&](int64_t plane, size_t) {
    const int64_t n = plane / p.M, m = plane % p.M;
    for (int64_t oh = 0; oh < OH; ++oh) {
      for (int64_t ow = 0; ow < OW; ++ow) {
        float sum = static_cast<float>(bias[m]);
        for (int64_t c = 0; c < p.C; ++c) {
          for (int64_t k = 0; k < 9; ++k) {
            const int64_t h = oh + k / 3 - p.pad_top, v = ow + k % 3 - p.pad_left;
            if (h < 0 || h >= p.H || v < 0 || v >= p.W) continue;
            sum +=
                weights[(m * p.C + c) * 9 + k] * static_cast<float>(x[((n * p.C + c) * p.H + h) * p.W + v]);
          }
        }
        const int64_t i = (plane * OH + oh) * OW + ow;
        if (p.has_residual) sum += static_cast<float>(residual[i]);
        y[i] = static_cast<T>(activate(p.act, sum));
      }
    }
  });
}

template std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem&, const float*);
template std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem&, const half*);
template void winograd_conv(const ConvProblem&, const float*, const WinogradWeights&, const float*,
                            const float*, float*, Parallel&, Workspace&);
template void winograd_conv(const ConvProblem&, const half*, const WinogradWeights&, const half*, const half*,
                            half*, Parallel&, Workspace&);

}  // namespace graphopt::cpu
