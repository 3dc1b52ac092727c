// The plain definition, until the tiled kernel takes its place.
#include <algorithm>
#include <cmath>

#include "cpu/fused_attention.h"
#include "cpu/parallel_for.h"
#include "ops/half.h"

namespace graphopt::cpu {

template <class T>
void fused_attention(const AttentionProblem& p, const T* q, const T* k, const T* v, const T* bias,
                     const bool* mask, T* o, Parallel& parallel, Workspace& workspace) {
  const auto width = static_cast<size_t>(std::max<int64_t>(p.T, 1));
  auto* scores = static_cast<float*>(workspace.allocate(parallel.lanes() * width * sizeof(float)));
  const float infinity = std::numeric_limits<float>::infinity();
  const auto at = [](const Strides4& s, int64_t b, int64_t h, int64_t row, int64_t col) {
    return b * s.b + h * s.h + row * s.row + col * s.col;
  };
  parallel_for(parallel, p.B * p.H * p.S, [&](int64_t item, size_t lane) {
    const int64_t b = item / (p.H * p.S), h = item / p.S % p.H, i = item % p.S, kv = h / p.group;
    float* s = scores + lane * width;
    float highest = -infinity;
    for (int64_t j = 0; j < p.T; ++j) {
      float dot = 0;
      for (int64_t d = 0; d < p.D; ++d) {
        dot += static_cast<float>(q[at(p.q, b, h, i, d)]) * p.scale *
               static_cast<float>(k[at(p.k, b, kv, j, d)]);
      }
      if (p.softcap != 0) dot = p.softcap * std::tanh(dot / p.softcap);
      if (p.has_bias) dot += static_cast<float>(bias[at(p.bias, b, h, i, j)]);
      if (p.causal && j > i + p.T - p.S) dot = -infinity;
      if (p.has_mask && !mask[at(p.mask, b, h, i, j)]) dot = p.mask_value;
      s[j] = dot;
      highest = std::max(highest, dot);
    }
    float sum = 0;
    for (int64_t j = 0; j < p.T; ++j) sum += s[j] = std::exp(s[j] - highest);
    for (int64_t j = 0; j < p.T; ++j) {
      s[j] /= sum;
      if (p.guard && std::isnan(s[j])) s[j] = 0;
    }
    for (int64_t d = 0; d < p.Dv; ++d) {
      float out = 0;
      for (int64_t j = 0; j < p.T; ++j) out += s[j] * static_cast<float>(v[at(p.v, b, kv, j, d)]);
      o[at(p.o, b, h, i, d)] = static_cast<T>(out);
    }
  });
}

template void fused_attention(const AttentionProblem&, const float*, const float*, const float*, const float*,
                              const bool*, float*, Parallel&, Workspace&);
template void fused_attention(const AttentionProblem&, const half*, const half*, const half*, const half*,
                              const bool*, half*, Parallel&, Workspace&);

}  // namespace graphopt::cpu
