// MaxPool and AveragePool over H and W of x [planes, H, W]: a work-item for each output.
#include "hip/platform.h"

namespace graphopt::hip {

constexpr int kPoolThreads = 256;

struct PoolWindow {
  int32_t kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
  int32_t bottom, right;  // padding at the end, which an average may count
};

enum PoolMode : int32_t { kPoolMax, kPoolAverage, kPoolAverageWithPadding };

template <class T>
DEVICE void pool(const T* x, T* y, uint32_t total, int32_t H, int32_t W, Divisor per_plane, Divisor across,
                 const PoolWindow& p, int32_t mode) {
  const uint32_t i = static_cast<uint32_t>(block_x()) * kPoolThreads + static_cast<uint32_t>(thread_x());
  if (i >= total) return;
  const uint32_t plane = divide(i, per_plane), rest = i - plane * per_plane.d;
  const uint32_t row = divide(rest, across), column = rest - row * across.d;
  const T* from = x + static_cast<size_t>(plane) * static_cast<size_t>(H) * static_cast<size_t>(W);
  const int top = static_cast<int>(row) * p.stride_h - p.top,
            left = static_cast<int>(column) * p.stride_w - p.left;
  float most = -bit_cast<float>(0x7f800000u), sum = 0;
  int count = 0;
  for (int r = 0; r < p.kernel_h; ++r) {
    const int h = top + r * p.dilation_h;
    if (h >= H + p.bottom) break;
    for (int s = 0; s < p.kernel_w; ++s) {
      const int w = left + s * p.dilation_w;
      if (w >= W + p.right) break;
      if (h < 0 || h >= H || w < 0 || w >= W) {
        count += mode == kPoolAverageWithPadding ? 1 : 0;
        continue;
      }
      const float v = to_float(from[h * W + w]);
      most = v > most || v != v ? v : most;
      sum += v;
      ++count;
    }
  }
  y[i] = from_float<T>(mode == kPoolMax ? most : sum / static_cast<float>(count));
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define POOL_KERNEL(T, suffix)                                                                       \
  KERNEL(pool_##suffix, kPoolThreads,                                                                \
         (const T* x, T* y, uint32_t total, int32_t H, int32_t W, Divisor per_plane, Divisor across, \
          PoolWindow window, int32_t mode)) {                                                        \
    pool(x, y, total, H, W, per_plane, across, window, mode);                                        \
  }

POOL_KERNEL(float, f32)
POOL_KERNEL(half_t, f16)
