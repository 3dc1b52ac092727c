// The packed weights of FusedConv's GEMM: blocks of channels for vectors of pixels, panels of channels for vectors of
// channels, or AMX tiles (tiles.h).
#include "operators/conv/fused_conv/gemm_cpu.h"
#include "operators/conv/fused_conv/quantized_gemm.h"
#include "operators/conv/fused_conv/tiles.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

template <class E>
int64_t group_words(const ConvolutionProblem& p, FusedConvVectors vectors) {
  const int64_t outputs = p.M, steps = steps_of<E>(p);
  if (vectors == FusedConvVectors::kTiles) return tiled_group_words(p);
  return vectors == FusedConvVectors::kChannels ? panels_words(steps, outputs) : steps * outputs;
}

template <class E, class T>
void prepare_groups(const ConvolutionProblem& p, FusedConvVectors vectors, const T* w, float zero,
                    Word* words) {
  const int64_t channels = p.C, outputs = p.M, taps = p.taps();
  const int64_t steps = steps_of<E>(p), size = group_words<E>(p, vectors);
  const bool tiled = vectors == FusedConvVectors::kTiles;
  std::vector<int64_t> tiled_index(static_cast<size_t>(tiled ? steps : 0));  // index of each step in tiles
  if (tiled) {
    int64_t index = 0;
    for (const int64_t step : order_of_steps(p)) tiled_index[static_cast<size_t>(step)] = index++;
  }
  for (int64_t m = 0; m < p.y_channels(); ++m) {
    // The channel's word of the first step, and the stride of the steps if it is constant.
    Word* to = words + m / outputs * size;
    const int64_t i = m % outputs;
    int64_t distance = 0, step = 0;
    if (vectors == FusedConvVectors::kChannels) {
      const int64_t panel = i / kPanelWidth;
      to = panel_at(to, steps, panel) + i % kPanelWidth;
      distance = panel_vectors(outputs, panel) * L;
    } else if (!tiled) {
      int64_t block = i * blocks_of(outputs) / outputs;
      while (first_of(outputs, block + 1) <= i) ++block;
      const int64_t first = first_of(outputs, block);
      to += first * steps + i - first;
      distance = first_of(outputs, block + 1) - first;
    }
    const T* in = w + m * channels * taps;
    const auto put = [&](Vec low, Vec high) {
      const int64_t index = tiled ? tiled_index[static_cast<size_t>(step)] : 0;
      to[tiled ? tiled_channel(p, i, index / kTileSide) + index % kTileSide : step * distance] =
          E::make_words(low, high)[0];
      ++step;
    };
    const auto weight = [&](int64_t c, int64_t tap) {
      return splat(static_cast<float>(in[c * taps + tap]) - zero);
    };
    for (int64_t c = 0; c < channels; c += E::kDepth) {
      const bool both = E::kDepth > 1 && c + 1 < channels;
      const int64_t width = p.kernel[2];
      if (!both && pairs_columns<E>(p)) {
        // Two words share a column. In floats each has half of its weight, which is exact. If one word had the weight
        // and the other had 0, an infinity in this column would become NaN.
        const int64_t shared = width % 2 != 0 ? width - 2 : width;
        const auto part = [&](int64_t tap, int64_t w, float of_shared) {
          return weight(c, tap) * (w == shared ? of_shared : 1.0f);
        };
        constexpr float kLow = E::kIntegers ? 0.0f : 0.5f;
        for (int64_t row = 0; row < taps; row += width) {
          for (const int64_t w : columns_of<E>(p, true)) {
            put(part(row + w, w, kLow), part(row + w + 1, w + 1, 1.0f - kLow));
          }
        }
        continue;
      }
      for (int64_t tap = 0; tap < taps; ++tap) put(weight(c, tap), both ? weight(c + 1, tap) : Vec{});
    }
  }
}

}  // namespace

size_t conv_gemm_weights(const ConvolutionProblem& p, FusedConvVectors vectors) {
  const int64_t words = with_words(p, [&](auto format) { return group_words<decltype(format)>(p, vectors); });
  return static_cast<size_t>(p.groups * words) * sizeof(Word);
}

template <class T>
void conv_gemm_prepare(const ConvolutionProblem& p, FusedConvVectors vectors, const T* w, void* weights) {
  auto* words = static_cast<Word*>(weights);
  if (p.bfloat16) return prepare_groups<Bfloat16Pairs>(p, vectors, w, 0.0f, words);
  prepare_groups<Float32>(p, vectors, w, 0.0f, words);
}

GRAPHOPT_INSTANTIATE(conv_gemm_prepare)

void quantized_gemm_prepare(const ConvolutionProblem& p, FusedConvVectors vectors, const uint8_t* w,
                            uint8_t zero, void* weights) {
  prepare_groups<ShortPairs>(p, vectors, w, zero, static_cast<Word*>(weights));
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
