#include <algorithm>
#include <cmath>

#include "blocks/half.h"
#include "cpu/microkernels/activation.h"
#include "cpu/microkernels/block.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/normalization/group_norm/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Mean and sum of squared deviations of a set of values. combine() adds the values of another set: T. F. Chan, G. H.
// Golub, R. J. LeVeque, "Algorithms for Computing the Sample Variance", 1983.
struct Moments {
  double count = 0, mean = 0, deviations = 0;

  void combine(const Moments& other) {
    if (other.count == 0) return;
    const double n = count + other.count;
    const double delta = other.mean - mean;
    mean += delta * (other.count / n);
    deviations += other.deviations + delta * delta * (count * other.count / n);
    count = n;
  }
};

// Returns the moments of a block, computed from the sums of x - pivot and of its squares. There are four sums
// of each kind, because a single chain of additions would be bound by latency.
Moments block_moments(const float* x, int64_t n, float pivot) {
  const int64_t q = n / 4;
  const float *x1 = x + q, *x2 = x + 2 * q, *x3 = x + 3 * q;
  float s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3, t0, t1, t2, t3)
  for (int64_t i = 0; i < q; ++i) {
    const float d0 = x[i] - pivot, d1 = x1[i] - pivot, d2 = x2[i] - pivot, d3 = x3[i] - pivot;
    s0 += d0, s1 += d1, s2 += d2, s3 += d3;
    t0 += d0 * d0, t1 += d1 * d1, t2 += d2 * d2, t3 += d3 * d3;
  }
  for (int64_t i = 4 * q; i < n; ++i) {
    s0 += x[i] - pivot;
    t0 += (x[i] - pivot) * (x[i] - pivot);
  }
  const double count = static_cast<double>(n);
  const double sum = static_cast<double>(s0 + s1) + static_cast<double>(s2 + s3);
  const double squares = static_cast<double>(t0 + t1) + static_cast<double>(t2 + t3);
  const double deviations = squares - sum * sum / count;
  return {count, static_cast<double>(pivot) + sum / count, deviations < 0 ? 0 : deviations};  // NaN stays NaN
}

// Computes the moments in one pass over memory. The pivot of a block is the mean of all previous blocks. The pivot
// of the first block is its own mean. A pivot far from a block's mean costs digits of the block's deviations. The
// rounding error is then small compared with the squared distance of the means, which combine() adds.
template <class T>
Moments moments(const T* x, int64_t n) {
  alignas(64) float buffer[kBlock];
  Moments all;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t length = std::min(kBlock, n - i);
    const float* block = as_float(x + i, buffer, static_cast<size_t>(length));
    if (i == 0) all.mean = block_moments(block, length, block[0]).mean;
    all.combine(block_moments(block, length, static_cast<float>(all.mean)));
  }
  return all;
}

constexpr int64_t kChunk = 32 * kBlock;

// Combines the moments of the chunks in order, so the result has the same bits as if worker threads shared the set.
template <class T>
Moments moments_of_set(const T* x, int64_t n) {
  Moments all = moments(x, std::min(kChunk, n));
  for (int64_t i = kChunk; i < n; i += kChunk) all.combine(moments(x + i, std::min(kChunk, n - i)));
  return all;
}

// y = act((x - mean) * s + h) for a run: n adjacent elements of one channel.
using Run = void (*)(const float* x, float mean, float s, float h, const Activation& act, float* y,
                     int64_t n);

template <ActivationKind kKind>
void normalize_run(const float* x, float mean, float s, float h, const Activation& act, float* y, int64_t n) {
  activate_each<kKind>(act, y, n, [=](auto read) { return (read(x) - mean) * s + h; });
}

constexpr int64_t kShortPlane = 16;

// A set is the elements of one group of one image. Returns the number of chunks per set. Returns 0 if worker threads do
// not share sets: sets are small, or there are at least as many sets as worker threads.
int64_t chunks_of(const GroupNormProblem& p, size_t workers) {
  const int64_t group_size = p.C / p.groups * p.inner;
  if (p.N * p.groups >= static_cast<int64_t>(workers) || group_size <= kChunk) return 0;
  return (group_size + kChunk - 1) / kChunk;
}

Moments* take_moments(const GroupNormProblem& p, int64_t chunks, Workspace& workspace) {
  return workspace.take<Moments>(p.N * p.groups * chunks);
}

}  // namespace

template <class T>
size_t group_norm_workspace(const GroupNormProblem& p, size_t workers) {
  Workspace workspace(nullptr);
  take_moments(p, chunks_of(p, workers), workspace);
  return workspace.bytes();
}

template <class T>
void group_norm(const GroupNormProblem& p, const T* x, const T* gamma, const T* beta, T* y,
                Parallel& parallel, void* memory) {
  const int64_t group_channels = p.C / p.groups;
  const int64_t group_size = group_channels * p.inner;
  const int64_t sets = p.N * p.groups;
  if (sets * group_size == 0) return;

  // The activation is a separate pass if runs are shorter than kShortPlane, a vector of AVX-512.
  const bool activate_last = p.inner < kShortPlane && p.act.kind != ActivationKind::kNone;
  const Run run = with_kind(activate_last ? ActivationKind::kNone : p.act.kind,
                            [](auto kind) -> Run { return normalize_run<kind>; });

  // Normalizes the elements [begin, end) of a set.
  const auto normalize = [&](int64_t set, const Moments& m, int64_t begin, int64_t end) {
    alignas(64) float x_buffer[kBlock], y_buffer[kBlock];
    const double inverse = 1.0 / std::sqrt(m.deviations / m.count + static_cast<double>(p.epsilon));
    const int64_t first_channel = set % p.groups * group_channels;
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      const float* xf = as_float(x + set * group_size + i, x_buffer, static_cast<size_t>(n));
      float* yf = target(y + set * group_size + i, y_buffer);
      float* normal = activate_last ? y_buffer : yf;
      for (int64_t j = 0; j < n;) {
        const int64_t channel = (i + j) / p.inner;
        const int64_t length = std::min(n - j, (channel + 1) * p.inner - (i + j));
        const auto c = static_cast<size_t>(first_channel + channel);
        const float mean = static_cast<float>(m.mean);
        const float s = static_cast<float>(inverse * static_cast<double>(static_cast<float>(gamma[c])));
        const float h = static_cast<float>(beta[c]);
        run(xf + j, mean, s, h, p.act, normal + j, length);
        j += length;
      }
      if (activate_last) activate_block(p.act, normal, yf, static_cast<size_t>(n));
      store(y + set * group_size + i, yf, static_cast<size_t>(n));
    }
  };

  const int64_t chunks = chunks_of(p, parallel.workers());
  if (chunks == 0) {
    // Computes statistics and result while the set is in the cache. A worker thread takes several small sets
    // at a time.
    const int64_t at_once = std::max<int64_t>(1, kChunk / 2 / group_size);
    parallel_for(parallel, (sets + at_once - 1) / at_once, [&](int64_t item, size_t) {
      for (int64_t set = item * at_once; set < std::min(sets, (item + 1) * at_once); ++set) {
        normalize(set, moments_of_set(x + set * group_size, group_size), 0, group_size);
      }
    });
    return;
  }
  Workspace workspace(memory);
  Moments* chunk_moments = take_moments(p, chunks, workspace);
  parallel_for(parallel, sets * chunks, [&](int64_t item, size_t) {
    const int64_t begin = item % chunks * kChunk;
    chunk_moments[item] =
        moments(x + item / chunks * group_size + begin, std::min(kChunk, group_size - begin));
  });
  for (int64_t set = 0; set < sets; ++set) {
    for (int64_t i = 1; i < chunks; ++i) chunk_moments[set * chunks].combine(chunk_moments[set * chunks + i]);
  }
  parallel_for(parallel, sets * chunks, [&](int64_t item, size_t) {
    const int64_t begin = item % chunks * kChunk;
    normalize(item / chunks, chunk_moments[item / chunks * chunks], begin,
              std::min(begin + kChunk, group_size));
  });
}

GRAPHOPT_INSTANTIATE(group_norm_workspace)
GRAPHOPT_INSTANTIATE(group_norm)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
