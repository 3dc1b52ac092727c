// Conv of any kernel size, stride, padding, dilation and number of groups as an implicit matrix product, in
// float32: what runs where the vendor's library is not installed.
#include "hip/platform.h"
#include "hip/sgemm.h"

namespace graphopt::hip {

using ConvGemm = Sgemm<64, 32, 4, 4, 32, 32>;

struct ConvWindow {
  int32_t kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
};

// x [N, groups C, H, W], w [groups M, C, kernel_h, kernel_w], y [N, groups M, OH, OW]; C and M are those of a
// group. A column of the product is one output pixel of one image. `bias` may be null.
template <class T>
DEVICE void conv(const T* x, const T* w, const T* bias, T* y, int32_t M, int32_t C, int32_t H, int32_t W,
                 int32_t groups, const ConvWindow& p, uint32_t pixels, Divisor per_image, Divisor across,
                 Divisor taps, Divisor kernel_w, ConvGemm::Lds& lds) {
  const int group = block_z();
  const int first_m = block_y() * ConvGemm::kM;
  const uint32_t first_n = static_cast<uint32_t>(block_x()) * ConvGemm::kN;
  const size_t plane = static_cast<size_t>(H) * static_cast<size_t>(W);
  const int K = C * static_cast<int>(taps.d);
  const int depth = (K + ConvGemm::kDepth - 1) / ConvGemm::kDepth * ConvGemm::kDepth;
  const T* filter = w + static_cast<size_t>(group) * static_cast<size_t>(M) * static_cast<size_t>(K);
  // The columns that this work-item loads stay the same for every k.
  constexpr int kAcross = ConvGemm::kN / 4;
  const T* image[4];
  int top[4], left[4];
  UNROLL for (int j = 0; j < 4; ++j) {
    const uint32_t n = first_n + static_cast<uint32_t>(thread_x() % kAcross * 4 + j);
    const uint32_t at = n < pixels ? n : 0;
    const uint32_t i = divide(at, per_image), rest = at - i * per_image.d;
    const uint32_t row = divide(rest, across);
    image[j] = x + (static_cast<size_t>(i) * static_cast<size_t>(groups) + static_cast<size_t>(group)) *
                       static_cast<size_t>(C) * plane;
    top[j] = n < pixels ? static_cast<int>(row) * p.stride_h - p.top : -(1 << 30);  // outside for every tap
    left[j] = static_cast<int>(rest - row * across.d) * p.stride_w - p.left;
  }
  ConvGemm product;
  product.run(
      lds, depth,
      [&](int k, int m) {
        Pack<float> pack;
        UNROLL for (int j = 0; j < 4; ++j) {
          const int row = first_m + m + j;
          pack.v[j] =
              k < K && row < M
                  ? to_float(
                        filter[static_cast<size_t>(row) * static_cast<size_t>(K) + static_cast<size_t>(k)])
                  : 0.0f;
        }
        return pack;
      },
      [&](int k, int) {
        const uint32_t c = divide(static_cast<uint32_t>(k), taps),
                       tap = static_cast<uint32_t>(k) - c * taps.d;
        const uint32_t r = divide(tap, kernel_w), s = tap - r * kernel_w.d;
        const int down = static_cast<int>(r) * p.dilation_h, right = static_cast<int>(s) * p.dilation_w;
        Pack<float> pack;
        UNROLL for (int j = 0; j < 4; ++j) {
          const int h = top[j] + down, v = left[j] + right;
          const bool inside = k < K && h >= 0 && h < H && v >= 0 && v < W;
          pack.v[j] =
              inside ? to_float(image[j][static_cast<size_t>(c) * plane + static_cast<size_t>(h * W + v)])
                     : 0.0f;
        }
        return pack;
      });
  product.each([&](int m, int n, float (&values)[4]) {
    m += first_m;
    if (m >= M) return;
    const size_t channel = static_cast<size_t>(group) * static_cast<size_t>(M) + static_cast<size_t>(m);
    const float b = bias != nullptr ? to_float(bias[channel]) : 0.0f;
    UNROLL for (int j = 0; j < 4; ++j) {
      const uint32_t pixel = first_n + static_cast<uint32_t>(n + j);
      if (pixel >= pixels) continue;
      const uint32_t i = divide(pixel, per_image);
      const size_t at =
          (static_cast<size_t>(i) * static_cast<size_t>(groups) * static_cast<size_t>(M) + channel) *
              per_image.d +
          (pixel - i * per_image.d);
      y[at] = from_float<T>(values[j] + b);
    }
  });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define CONV_KERNEL(T, suffix)                                                                       \
  KERNEL(conv_##suffix, ConvGemm::kThreads,                                                          \
         (const T* x, const T* w, const T* bias, T* y, int32_t M, int32_t C, int32_t H, int32_t W,   \
          int32_t groups, ConvWindow window, uint32_t pixels, Divisor per_image, Divisor across,     \
          Divisor taps, Divisor kernel_w)) {                                                         \
    SHARED(ConvGemm::Lds, lds);                                                                      \
    conv(x, w, bias, y, M, C, H, W, groups, window, pixels, per_image, across, taps, kernel_w, lds); \
  }

CONV_KERNEL(float, f32)
CONV_KERNEL(half_t, f16)
