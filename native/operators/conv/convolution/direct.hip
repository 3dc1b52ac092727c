// Conv and ConvTranspose of up to three spatial axes, with any kernel size, stride, padding, dilation and number of
// groups, with float32 sums. A work-item computes kFilters filters at kPixels pixels, so it uses each value of W
// kPixels times and each value of X kFilters times. This kernel runs if neither a vendor's library nor
// implicit_gemm.hip supports the convolution.
//
// For a transposed convolution, one launch writes every stride-th output of each axis. These outputs use the same taps
// of W, so the kernel never multiplies the zeros between the elements of X (operators/conv/convolution/plan.cpp).
//
// For M filters and C channels of a group, the kernel needs 2 M C FLOPs for each pixel of Y, group and tap. It is
// compute-bound on the vector unit.
#include "device/platform.h"
#include "operators/conv/convolution/direct_args.h"

namespace graphopt::hip {

// The pixels of Y that a work-item computes.
template <class T>
struct ConvolutionPixels {
  static constexpr int kPixels = kConvolutionPixels;
  const T* image[kPixels];                          // the channels of the group in an image of X
  T* to[kPixels];                                   // address in Y; null beyond the last pixel
  int at_a[kPixels], at_b[kPixels], at_c[kPixels];  // the first position in X on each axis

  DEVICE ConvolutionPixels(const ConvolutionArgs& args, int group) {
    const T* x = args.x;
    T* y = args.y;
    const ConvolutionAxis &a = args.axes[0], &b = args.axes[1], &c = args.axes[2];
    UNROLL for (int j = 0; j < kPixels; ++j) {
      const uint32_t n =
          (static_cast<uint32_t>(block_x()) * kPixels + static_cast<uint32_t>(j)) * kConvolutionThreads +
          static_cast<uint32_t>(thread_x());
      const uint32_t pixel = n < args.pixels ? n : 0;
      const uint32_t i = divide(pixel, args.per_image), in_image = pixel - i * args.per_image.d;
      const uint32_t p = divide(in_image, args.per_plane), in_plane_at = in_image - p * args.per_plane.d;
      const uint32_t q = divide(in_plane_at, args.across), r = in_plane_at - q * args.across.d;
      const size_t group_of_image =
          static_cast<size_t>(i) * static_cast<size_t>(args.groups) + static_cast<size_t>(group);
      image[j] = x + group_of_image * static_cast<size_t>(args.C) * args.in_plane;
      to[j] = n < args.pixels
                  ? y + group_of_image * static_cast<size_t>(args.M) * args.out_plane +
                        static_cast<uint32_t>(args.strides.first_pixel) + p * static_cast<uint32_t>(a.out) +
                        q * static_cast<uint32_t>(b.out) + r * static_cast<uint32_t>(c.out)
                  : nullptr;
      at_a[j] = static_cast<int>(p) * a.step + a.first;
      at_b[j] = static_cast<int>(q) * b.step + b.first;
      at_c[j] = static_cast<int>(r) * c.step + c.first;
    }
  }
};

template <int kFilters, class T>
DEVICE void convolution(const ConvolutionArgs& args) {
  const T *w = args.w, *bias = args.bias;
  const int32_t M = args.M, C = args.C;
  const ConvolutionAxis &a = args.axes[0], &b = args.axes[1], &c = args.axes[2];
  const ConvolutionStrides& strides = args.strides;
  constexpr int kPixels = kConvolutionPixels;
  const int group = block_z(), first_m = block_y() * kFilters;
  const T* filters = w + static_cast<ptrdiff_t>(group) * strides.group + strides.first_tap;
  int filter[kFilters];
  UNROLL for (int f = 0; f < kFilters; ++f) {
    // opaque() keeps the offsets in vector registers: there are too few scalar registers for eight addresses of W.
    filter[f] = opaque((first_m + f < M ? first_m + f : M - 1) * strides.filter);
  }
  const ConvolutionPixels<T> pixels(args, group);
  const auto inside = [](int at, int32_t size) {
    return static_cast<uint32_t>(at) < static_cast<uint32_t>(size);
  };

  float sum[kPixels][kFilters] = {};
  for (int channel = 0; channel < C; ++channel) {
    for (int s = 0; s < a.taps; ++s) {
      for (int t = 0; t < b.taps; ++t) {
        // The rows of X that this tap reads; null outside of X.
        const T* row[kPixels];
        UNROLL for (int j = 0; j < kPixels; ++j) {
          const int p = pixels.at_a[j] + s * a.tap, q = pixels.at_b[j] + t * b.tap;
          const bool in_rows = pixels.to[j] != nullptr && inside(p, a.in) && inside(q, b.in);
          row[j] = in_rows ? pixels.image[j] + static_cast<size_t>(channel) * args.in_plane +
                                 static_cast<size_t>(p * b.in + q) * static_cast<size_t>(c.in)
                           : nullptr;
        }
        const T* tap = filters + static_cast<ptrdiff_t>(opaque(channel)) * strides.channel +
                       static_cast<ptrdiff_t>(s) * a.filter + static_cast<ptrdiff_t>(t) * b.filter;
        for (int u = 0; u < c.taps; ++u) {
          float value[kPixels];
          UNROLL for (int j = 0; j < kPixels; ++j) {
            const int r = pixels.at_c[j] + u * c.tap;
            value[j] = row[j] != nullptr && inside(r, c.in) ? to_float(global(row[j])[r]) : 0.0f;
          }
          UNROLL for (int f = 0; f < kFilters; ++f) {
            const float weight = to_float(tap[filter[f] + u * c.filter]);
            UNROLL for (int j = 0; j < kPixels; ++j) {
              sum[j][f] = fused_multiply_add(value[j], weight, sum[j][f]);
            }
          }
        }
      }
    }
  }
  UNROLL for (int f = 0; f < kFilters; ++f) {
    const int m = first_m + f;
    if (m >= M) break;
    const float first = bias != nullptr ? to_float(bias[group * M + m]) : 0.0f;
    UNROLL for (int j = 0; j < kPixels; ++j) {
      if (pixels.to[j] != nullptr) {
        global(pixels.to[j])[static_cast<size_t>(m) * args.out_plane] = from_float<T>(sum[j][f] + first);
      }
    }
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

static_assert(kConvolutionFilters == 8, "the kernels' names");
FLOAT_KERNELS(convolution_1, (convolution<1, T>), kConvolutionThreads, ConvolutionArgs, x, w, bias, y)
FLOAT_KERNELS(convolution_8, (convolution<8, T>), kConvolutionThreads, ConvolutionArgs, x, w, bias, y)
