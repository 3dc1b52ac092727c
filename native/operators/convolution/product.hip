// Conv of any kernel size, stride, padding, dilation and number of groups as an implicit matrix product:
// Y [M, pixels] = W [M, C taps] patches [C taps, pixels], float32 sums: what runs where the vendor's library
// is not installed, and for pads that it does not take.
//
// 2 N OH OW M C taps FLOPs against (N C H W + N M OH OW) elements: bound by arithmetic from about 32 channels
// on. W is loaded 16 bytes at a time where its rows begin at multiples of 16; patches are gathered, an
// element at a time. The product is that of operators/matmul/kernel.hip. scripts/gpu_bench.py sets it beside
// cuDNN. Launch: operators/convolution/plan.cpp.
#include "device/platform.h"
#include "gemm/kernels.h"
#include "gemm/loaders/strided.h"
#include "operators/convolution/product_args.h"

namespace graphopt::hip {

// A tap of a channel, which is a k of the product: how far it is from the first tap of the first channel.
struct ConvTap {
  ptrdiff_t offset;
  int down, right;  // rows and columns
  int r, s;

  DEVICE ConvTap(int k, const Divisor& taps, const Divisor& kernel_w, const ConvWindow& p, int H, int W) {
    const uint32_t c = divide(static_cast<uint32_t>(k), taps), tap = static_cast<uint32_t>(k) - c * taps.d;
    r = static_cast<int>(divide(tap, kernel_w));
    s = static_cast<int>(tap) - r * p.kernel_w;
    down = r * p.dilation_h;
    right = s * p.dilation_w;
    offset = static_cast<ptrdiff_t>(c) * H * W + static_cast<ptrdiff_t>(down) * W + right;
  }
  DEVICE void next(const ConvWindow& p, int H, int W) {
    ++s;
    right += p.dilation_w;
    offset += p.dilation_w;
    if (s < p.kernel_w) return;
    offset += static_cast<ptrdiff_t>(p.dilation_h) * W - right;
    s = right = 0;
    ++r;
    down += p.dilation_h;
    if (r < p.kernel_h) return;
    offset += static_cast<ptrdiff_t>(H - down) * W;
    r = down = 0;
  }
};

// The pixel of X, perhaps outside, that is at the first tap of a pixel of Y.
template <class T>
struct ConvPixel {
  const T* at;
  int top, left;

  DEVICE T load(const ConvTap& tap, bool inside, int H, int W) const {
    const auto h = static_cast<uint32_t>(top + tap.down), w = static_cast<uint32_t>(left + tap.right);
    inside = inside && h < static_cast<uint32_t>(H) && w < static_cast<uint32_t>(W);
    return inside ? at[tap.offset] : from_float<T>(0.0f);
  }
};

// Where pixel n of Y begins in X; pixels are counted over all images.
template <class T>
DEVICE ConvPixel<T> conv_pixel(const ConvArgs& args, int group, uint32_t n) {
  const T* x = args.x;
  const ConvWindow& p = args.window;
  const uint32_t at = n < args.pixels ? n : 0;
  const uint32_t i = divide(at, args.per_image), rest = at - i * args.per_image.d;
  const uint32_t row = divide(rest, args.across);
  ConvPixel<T> pixel;
  pixel.top = static_cast<int>(row) * p.stride_h - p.top;
  pixel.left = static_cast<int>(rest - row * args.across.d) * p.stride_w - p.left;
  pixel.at =
      x +
      (static_cast<ptrdiff_t>(i) * args.groups + group) * static_cast<ptrdiff_t>(args.C) * args.H * args.W +
      static_cast<ptrdiff_t>(pixel.top) * args.W + pixel.left;
  if (n >= args.pixels) pixel.top = -(1 << 30);  // outside for every tap
  return pixel;
}

// The patches that a work-item gathers: of the same pixels for every k. Rows of lines take kSize taps of one
// pixel, rows of k one tap of kSize pixels.
template <class Product, class T>
struct ConvPatches {
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kPixels = Product::kByLine ? 1 : kSize, kAcross = Product::kN / kPixels;
  static constexpr int kPacks = Product::kN * Product::kDepth / kSize / Product::kThreads;
  static_assert(Product::kThreads % kAcross == 0, "whole rows of pixels");

  const ConvArgs& args;
  int depth, column, first_row;
  ConvPixel<T> pixel[kPixels];
  Pack<T> patches[kPacks];

  DEVICE ConvPatches(const ConvArgs& of, int group, uint32_t first_n, int K)
      : args(of), depth(K), column(thread_x() % kAcross * kPixels) {
    UNROLL for (int j = 0; j < kPixels; ++j) {
      pixel[j] = conv_pixel<T>(args, group, first_n + static_cast<uint32_t>(column + j));
    }
    first_row = kAcross % kWave == 0 ? same_in_wave(thread_x() / kAcross) : thread_x() / kAcross;
  }
  DEVICE int row_of(int i) const { return i * (Product::kThreads / kAcross) + first_row; }

  DEVICE void load(int first_k) {
    const int32_t H = args.H, W = args.W;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const int k = first_k + row_of(i) * (kSize / kPixels);
      ConvTap tap(k, args.taps, args.kernel_w, args.window, H, W);
      UNROLL for (int j = 0; j < kSize; ++j) {
        if constexpr (Product::kByLine) {
          patches[i].v[j] = pixel[0].load(tap, k + j < depth, H, W);
          tap.next(args.window, H, W);
        } else {
          patches[i].v[j] = pixel[j].load(tap, k < depth, H, W);
        }
      }
    }
  }

  DEVICE void store(typename Product::Lds& lds, int buffer) const {
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if constexpr (Product::kByLine) {
        store_pack(&lds.b[buffer][column][row_of(i) * kSize], patches[i]);
      } else {
        UNROLL for (int j = 0; j < kSize; j += 4) {
          const Pack<T>& q = patches[i];
          const Pack<float> four = {
              {to_float(q.v[j]), to_float(q.v[j + 1]), to_float(q.v[j + 2]), to_float(q.v[j + 3])}};
          store_pack(&lds.b[buffer][row_of(i)][column + j], four);
        }
      }
    }
  }
};

// Y from the sums of a tile that begins at filter first_m and pixel first_n.
template <class Product, class T>
DEVICE void store_conv(const ConvArgs& args, int group, int first_m, uint32_t first_n, Product& product,
                       typename Product::Lds& lds) {
  constexpr int kSize = Pack<T>::kSize;
  const T* bias = args.bias;
  T* y = args.y;
  const int32_t M = args.M;
  const uint32_t pixels = args.pixels;
  const Divisor& per_image = args.per_image;
  product.template each_pack<kSize>(lds, [&](int m, int column_in_tile, auto& values) {
    m += first_m;
    const uint32_t n = first_n + static_cast<uint32_t>(column_in_tile);
    if (m >= M || n >= pixels) return;
    const size_t channel = static_cast<size_t>(group) * static_cast<size_t>(M) + static_cast<size_t>(m);
    const size_t channels = static_cast<size_t>(args.groups) * static_cast<size_t>(M);
    const float b = bias != nullptr ? to_float(bias[channel]) : 0.0f;
    const uint32_t image = divide(n, per_image), pixel = n - image * per_image.d;
    T* const at = y + (image * channels + channel) * per_image.d + pixel;
    Pack<T> out;
    UNROLL for (int i = 0; i < kSize; ++i) out.v[i] = from_float<T>(values[i] + b);
    if (args.packs_of_y != 0) {
      store_pack(at, out);
    } else {
      const size_t next =
          (channels - 1) * per_image.d;  // from the end of a channel to its begin in the next image
      UNROLL for (int i = 0; i < kSize; ++i) {
        const auto step = static_cast<uint32_t>(i);
        if (n + step < pixels) at[step + divide(pixel + step, per_image) * next] = out.v[i];
      }
    }
  });
}

template <class Product, class T>
DEVICE void conv(const ConvArgs& args, typename Product::Lds& lds) {
  const T* w = args.w;
  const int32_t M = args.M;
  const int group = block_z();
  const int first_m = block_y() * Product::kM;
  const uint32_t first_n = static_cast<uint32_t>(block_x()) * Product::kN;
  const int K = args.C * static_cast<int>(args.taps.d);
  const OperandLayout layout = {K, 1, args.packs_of_w};
  OperandPart<T, Product::kM, Product::kDepth, Product::kThreads, Product::kByLine> filters(
      w + (static_cast<size_t>(group) * static_cast<size_t>(M) + static_cast<size_t>(first_m)) *
              static_cast<size_t>(K),
      layout, M - first_m, K);
  ConvPatches<Product, T> patches(args, group, first_n, K);
  Product product;
  product.run(
      lds, K,
      [&](int first_k, int) {
        filters.load(first_k);
        patches.load(first_k);
      },
      [&](int buffer) {
        filters.store(lds.a[buffer]);
        patches.store(lds, buffer);
      });
  store_conv<Product, T>(args, group, first_m, first_n, product, lds);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define STRIDED_KERNEL(Product, type, name)                         \
  KERNEL(conv_##name, Product::kThreads, ConvArgs, x, w, bias, y) { \
    SHARED(Product::Lds, lds);                                      \
    conv<Product, type>(args, lds);                                 \
  }

GEMM_STRIDED_KERNELS
