// Depthwise convolutions, one plane at a time.
#include "cpu/isa.h"
#include "cpu/parallel_for.h"
#include "operators/conv/fused_conv/depthwise_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Bytes of s (the packed x, strips.h) for one plane: half a first-level cache.
constexpr int64_t kPlaneBytes = 16 << 10;
constexpr int64_t kPlaneVectors = 4;  // vectors of one plane that are computed together

// Computes kVectors vectors of sums over the taps and passes them to `finish`. o [kVectors L]: the buffer of Finish.
template <int kVectors, class T>
void filter(const float* s, const int64_t* offsets, const float* w, int64_t taps, float* o,
            const Finish<T>& finish) {
  Vec sum[kVectors] = {};
  for (int64_t tap = 0; tap < taps; ++tap) {
    const float* at = s + offsets[tap];
    const Vec weight = splat(w[tap]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[j] += weight * load(at + j * L);
  }
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) finish(0, j, sum[j], o + j * L);
}

Strips plane_strips(const ConvolutionProblem& p) { return Strips(p, kPlaneBytes, 1, 4); }

// Returns the words of s for each worker thread.
int64_t plane_slot(const ConvolutionProblem& p, const Strips& strips) {
  return round_up(strips.at(p, 0).words + kPlaneVectors * L, L);
}

}  // namespace

size_t depthwise_planes_workspace(const ConvolutionProblem& p, size_t workers) {
  return workers * static_cast<size_t>(plane_slot(p, plane_strips(p))) * sizeof(Word);
}

template <class T>
void depthwise_planes(const ConvolutionProblem& p, const T* x, const float* weights, const T* bias,
                      Residual<T> residual, T* y, Parallel& parallel, void* memory) {
  const int64_t taps = p.taps();
  const Strips strips = plane_strips(p);
  const int64_t slot = plane_slot(p, strips);
  auto* words = static_cast<Word*>(memory);
  for (int64_t begin = 0; begin < p.out[strips.axis]; begin += strips.most) {
    const Strip strip = strips.at(p, begin);
    const std::vector<int64_t> offsets = step_offsets<Float32>(p, strip);
    const std::vector<Pixels> pixels = pixels_of(p, strip, L);
    const auto vectors = static_cast<int64_t>(pixels.size());
    parallel_for(parallel, p.N * p.x_channels(), [&](int64_t item, size_t worker) {
      Word* s = words + static_cast<int64_t>(worker) * slot;
      pack_words(Float32(), p, strip, x + item * p.in_size(), Second{}, s);
      auto* plane = reinterpret_cast<float*>(s);
      if (p.bfloat16) {
        for (int64_t i = 0; i < strip.words; i += L) store(plane + i, rounded(load(plane + i)));
      }
      const int64_t n = item / p.x_channels(), c = item % p.x_channels(),
                    first = n * p.y_channels() * p.out_size();
      const Finish<T> image(p, bias, residual.of_image(p, n), {y + first, nullptr});
      alignas(64) float o[kPlaneVectors * L];
      for (int64_t j = 0; j < vectors;) {
        const bool full = j + kPlaneVectors <= vectors;
        const int64_t here = full ? kPlaneVectors : 1;
        const auto fn = full ? filter<kPlaneVectors, T> : filter<1, T>;
        const Finish<T> finish = image.at(c, pixels.data() + j);
        fn(plane + j * L, offsets.data(), weights + c * taps, taps, o, finish);
        finish.activate(1, here, o);
        j += here;
      }
    });
  }
}

GRAPHOPT_INSTANTIATE(depthwise_planes)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
