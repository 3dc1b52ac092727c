#include <algorithm>

#include "blocks/half.h"
#include "cpu/microkernels/activation.h"
#include "cpu/microkernels/block.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/normalization/scale_shift/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

constexpr int64_t kChunk = 16 * kBlock;  // elements that a thread processes at a time
constexpr int64_t kShortPlane = 16;      // planes with fewer elements are processed together

// y = act(x * s + h (+ r)) in one pass, which hides the arithmetic behind the latency of memory. The iterations of a
// loop are independent: each of x and r either is y or does not overlap y.
using Plane = void (*)(const float* x, float s, float h, const float* r, const Activation& act, float* y,
                       int64_t n);
using Elementwise = void (*)(const float* x, const float* s, const float* h, const float* r,
                             const Activation& act, float* y, int64_t n);

template <ActivationKind kKind>
void plane(const float* x, float s, float h, const float* r, const Activation& act, float* y, int64_t n) {
  if (r != nullptr) {
    activate_each<kKind>(act, y, n, [=](auto read) { return read(x) * s + h + read(r); });
  } else {
    activate_each<kKind>(act, y, n, [=](auto read) { return read(x) * s + h; });
  }
}

template <ActivationKind kKind>
void elementwise(const float* x, const float* s, const float* h, const float* r, const Activation& act,
                 float* y, int64_t n) {
  if (r != nullptr) {
    activate_each<kKind>(act, y, n, [=](auto read) { return read(x) * read(s) + read(h) + read(r); });
  } else {
    activate_each<kKind>(act, y, n, [=](auto read) { return read(x) * read(s) + read(h); });
  }
}

struct Loops {
  Plane plane;
  Elementwise elementwise;
};

Loops loops_of(ActivationKind kind) {
  return with_kind(kind, [](auto k) { return Loops{plane<k>, elementwise<k>}; });
}

bool has_short_planes(const ScaleShiftProblem& p) { return p.inner < kShortPlane; }

// scale and shift as floats, one per channel, or one per element of an image if planes are short.
struct Expanded {
  int64_t times;         // floats per channel
  float *scale, *shift;  // null: the parameters are read in place
};

template <class T>
Expanded take_expanded(const ScaleShiftProblem& p, Workspace& workspace) {
  const int64_t times = has_short_planes(p) ? p.inner : 1;
  if (std::is_same_v<T, float> && times == 1) return {times, nullptr, nullptr};
  return {times, workspace.take<float>(p.C * times), workspace.take<float>(p.C * times)};
}

template <class T>
const float* expand(const T* values, int64_t C, int64_t times, float* expanded) {
  if (expanded == nullptr) return reinterpret_cast<const float*>(values);
  for (int64_t c = 0; c < C; ++c) std::fill_n(expanded + c * times, times, static_cast<float>(values[c]));
  return expanded;
}

}  // namespace

template <class T>
size_t scale_shift_workspace(const ScaleShiftProblem& p, size_t) {
  Workspace workspace(nullptr);
  take_expanded<T>(p, workspace);
  return workspace.bytes();
}

template <class T>
void scale_shift(const ScaleShiftProblem& p, const T* x, const T* scale, const T* shift, const T* residual,
                 T* y, Parallel& parallel, void* memory) {
  const int64_t total = p.N * p.C * p.inner;
  if (total == 0) return;
  const bool short_planes = has_short_planes(p);
  Workspace workspace(memory);
  const Expanded expanded = take_expanded<T>(p, workspace);
  const float* s = expand(scale, p.C, expanded.times, expanded.scale);
  const float* h = expand(shift, p.C, expanded.times, expanded.shift);
  // Elements per call of a loop: a plane, or with short planes all planes of an image.
  const int64_t run = short_planes ? p.C * p.inner : p.inner;

  const Loops loops = loops_of(p.act.kind);
  const auto block = [&](int64_t begin, int64_t n) {
    alignas(64) float x_buffer[kBlock], r_buffer[kBlock], y_buffer[kBlock];
    const size_t count = static_cast<size_t>(n);
    const float* xf = as_float(x + begin, x_buffer, count);
    const float* rf = p.has_residual ? as_float(residual + begin, r_buffer, count) : nullptr;
    float* yf = target(y + begin, y_buffer);
    for (int64_t i = 0; i < n;) {
      const int64_t index = (begin + i) / run;
      const int64_t offset = begin + i - index * run;
      const int64_t length = std::min(n - i, run - offset);
      const float* r = rf != nullptr ? rf + i : nullptr;
      if (short_planes) {
        loops.elementwise(xf + i, s + offset, h + offset, r, p.act, yf + i, length);
      } else {
        const int64_t c = index % p.C;
        loops.plane(xf + i, s[c], h[c], r, p.act, yf + i, length);
      }
      i += length;
    }
    store(y + begin, yf, count);
  };
  parallel_for(parallel, (total + kChunk - 1) / kChunk, [&](int64_t item, size_t) {
    const int64_t end = std::min(total, (item + 1) * kChunk);
    for (int64_t begin = item * kChunk; begin < end; begin += kBlock)
      block(begin, std::min(kBlock, end - begin));
  });
}

GRAPHOPT_INSTANTIATE(scale_shift_workspace)
GRAPHOPT_INSTANTIATE(scale_shift)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
