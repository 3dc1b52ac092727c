// Packs blocks of K and V for attention.
#include "operators/attention/attention/packing_cpu.h"

#include "cpu/microkernels/tiles.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

template <class T>
void pack_keys(const T* k, int64_t row_stride, int64_t col_stride, int64_t n, int64_t D, float* packed) {
  for (int64_t first = 0; first < n; first += kPanelFloats) {
    const int64_t keys = std::min(kPanelFloats, n - first);
    const int64_t width = round_up(keys, kWidth);
    float* panel = packed + first * D;
    for (int64_t j = 0; j < width; j += kWidth) {
      const int64_t count = std::min<int64_t>(kWidth, keys - j);
      const T* x = k + (first + j) * row_stride;
      if (row_stride == 1) {
        for (int64_t d = 0; d < D; ++d) {
          const T* y = x + d * col_stride;
          store(panel + d * width + j, count == kWidth ? load_as_float(y) : load_first(y, count));
        }
        continue;
      }
      int64_t d = 0;
      if (col_stride == 1) {
        for (; d < D; d += kWidth) {
          const int64_t rows = std::min<int64_t>(kWidth, D - d);
          Vec r[kWidth];
          if (rows < kWidth) {
            for (int i = 0; i < kWidth; ++i)
              r[i] = i < count ? load_first(x + i * row_stride + d, rows) : Vec{};
          } else if (count == kWidth) {
#pragma GCC unroll 16
            for (int i = 0; i < kWidth; ++i) r[i] = load_as_float(x + i * row_stride + d);
          } else {
            for (int i = 0; i < kWidth; ++i) r[i] = i < count ? load_as_float(x + i * row_stride + d) : Vec{};
          }
          transpose<kWidth / 2>(r);
          if (rows == kWidth) {
#pragma GCC unroll 16
            for (int i = 0; i < kWidth; ++i) store(panel + (d + i) * width + j, r[i]);
          } else {
            for (int64_t i = 0; i < rows; ++i) store(panel + (d + i) * width + j, r[i]);
          }
        }
        continue;
      }
      for (; d < D; ++d) {
        float* y = panel + d * width + j;
        for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(x[i * row_stride + d * col_stride]);
        for (int64_t i = count; i < kWidth; ++i) y[i] = 0.0f;
      }
    }
  }
}

template <class T>
void pack_values(const T* v, int64_t row_stride, int64_t col_stride, int64_t n, int64_t Dv, int64_t width,
                 float* packed) {
  constexpr int64_t kHalf = kWidth / 2;
  const bool repeat = width - Dv >= kHalf;
  for (int64_t j = 0; j < n; ++j) {
    float* y = packed + j * width;
    copy_row(v + j * row_stride, col_stride, Dv, 1.0f, y);
    if (repeat) std::memcpy(y + width - kHalf, y + width - 2 * kHalf, kHalf * sizeof(float));
  }
}

template <class T>
void pack_keys_bf16(const T* k, int64_t row_stride, int64_t col_stride, int64_t n, int64_t D, int64_t steps,
                    Word* packed) {
  for (int64_t first = 0; first < n; first += kPanelFloats) {
    const int64_t keys = std::min(kPanelFloats, n - first), width = round_up(keys, kWidth);
    for (int64_t j = 0; j < width; j += kWidth) {
      const int64_t count = std::min<int64_t>(kWidth, keys - j);
      const T* x = k + (first + j) * row_stride;
      Word* to = packed + first * steps + j;
      if (col_stride != 1) {
        for (int64_t step = 0; step < steps; ++step, to += width) {
          const T* y = x + 2 * step * col_stride;
          const Vec low = 2 * step < D ? load_with_stride(y, row_stride, count) : Vec{};
          const Vec high = 2 * step + 1 < D ? load_with_stride(y + col_stride, row_stride, count) : Vec{};
          *reinterpret_cast<UnalignedWords*>(to) = Bfloat16Pairs::make_words(low, high);
        }
        continue;
      }
      for (int64_t step = 0; step < steps; step += kWidth) {
        Vec r[kWidth];
        for (int i = 0; i < kWidth; ++i) {
          r[i] = i < count ? reinterpret_cast<Vec>(
                                 row_words<Bfloat16Pairs>(x + i * row_stride + 2 * step, D - 2 * step))
                           : Vec{};
        }
        transpose<kWidth / 2>(r);
        for (int64_t i = 0; i < std::min<int64_t>(kWidth, steps - step); ++i, to += width) {
          *reinterpret_cast<UnalignedWords*>(to) = reinterpret_cast<Words>(r[i]);
        }
      }
    }
  }
}

template <class T>
void pack_values_bf16(const T* v, int64_t row_stride, int64_t col_stride, int64_t n, int64_t Dv,
                      int64_t width, Word* packed) {
  constexpr int64_t kHalf = kWidth / 2;
  const int64_t steps = ceil_div(n, 2);
  std::fill_n(packed + steps * width, (tiled_steps(steps) - steps) * width, 0);
  for (int64_t j = 0; j < n; j += 2, packed += width) {
    for (int64_t c = 0; c < width; c += kWidth) {
      const T* x = v + j * row_stride + c * col_stride;
      const Vec low = load_with_stride(x, col_stride, Dv - c);
      const Vec high = j + 1 < n ? load_with_stride(x + row_stride, col_stride, Dv - c) : Vec{};
      *reinterpret_cast<UnalignedWords*>(packed + c) = Bfloat16Pairs::make_words(low, high);
    }
    if (width - Dv >= kHalf) {
      std::memcpy(packed + width - kHalf, packed + width - 2 * kHalf, kHalf * sizeof(Word));
    }
  }
}

template <class T>
bool sum_zero_times(const T* v, int64_t row_stride, int64_t n, int64_t width, float* zero_v) {
  bool any = false;
  for (int64_t c = 0; c < width; c += kWidth) {
    Vec sum{};
    for (int64_t j = 0; j < n; ++j) sum += load_as_float(v + j * row_stride + c) * 0.0f;
    store(zero_v + c, sum);
    any |= sum_of(sum) != 0.0f;
  }
  return any;
}

bool sum_zero_times_bf16(const Word* v, int64_t n, int64_t width, float* zero_v) {
  bool any = false;
  for (int64_t c = 0; c < width; c += kWidth) {
    Vec sum{};
    for (int64_t j = 0; j < ceil_div(n, 2); ++j) {
      const Words pair = *reinterpret_cast<const UnalignedWords*>(v + j * width + c);
      sum += first_of_pair(pair) * 0.0f + second_of_pair(pair) * 0.0f;
    }
    store(zero_v + c, sum);
    any |= sum_of(sum) != 0.0f;
  }
  return any;
}

GRAPHOPT_INSTANTIATE(pack_keys)
GRAPHOPT_INSTANTIATE(pack_values)
GRAPHOPT_INSTANTIATE(pack_keys_bf16)
GRAPHOPT_INSTANTIATE(pack_values_bf16)
GRAPHOPT_INSTANTIATE(sum_zero_times)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
