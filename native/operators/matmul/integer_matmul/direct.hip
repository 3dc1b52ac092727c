// Convolutions of int8 elements in channels last with a multiple of 8 channels. The tiles of conv.hip need a multiple
// of 16 channels; other images are copied and padded for them. The operands are in registers: each wave loads the
// elements that its matrix instructions multiply, 16 bytes of a line at a time. A work-item stores 8 adjacent bytes of
// Y. The waves of Columns::kN columns of Y read each element of X once for each tap of the filter, mostly from the
// caches. Launch: plan.cpp.
#include "device/platform.h"
#include "gemm/integer_epilogue.h"
#include "gemm/loaders/im2col.h"
#include "gemm/pipelines/instruction.h"
#include "gemm/pipelines/matrix.h"
#include "operators/matmul/integer_matmul/args.h"

namespace graphopt::hip {

// A pixel of Y: the pixel of X at its first tap, which may be outside of X. Bit r of `taps`: row r of the taps is
// inside of X; bit 16 + s: column s is inside of X.
struct DirectPixel {
  int at;
  uint32_t taps;
};
DEVICE DirectPixel direct_pixel(const IntegerConvArgs& args, int m) {
  const ConvWindow& window = args.window;
  const auto pixel = static_cast<uint32_t>(min_int(m, args.M - 1));
  const uint32_t image = divide(pixel, args.per_image), rest = pixel - image * args.per_image.d;
  const uint32_t down = divide(rest, args.columns_of_y);
  const int top = static_cast<int>(down) * window.stride_h - window.top;
  const int left = static_cast<int>(rest - down * args.columns_of_y.d) * window.stride_w - window.left;
  return {(static_cast<int>(image) * args.H + top) * args.W + left,
          taps_inside(top, args.H, window.kernel_h, window.dilation_h) |
              taps_inside(left, args.W, window.kernel_w, window.dilation_w) << 16};
}

// A wave computes 16 kTilesM pixels and Columns::kN filters.
template <int kTilesM>
struct DirectConv {
  using Instruction = hip::Instruction<Int8Pair>;
  using Columns = AdjacentColumns<Instruction, kIntegerPack>;
  static constexpr int kLines = Instruction::kLines, kPairs = Instruction::kPairs;
  static constexpr int kStep = Instruction::kParts * 16;  // bytes of K in a step
  static constexpr int kWaves = kIntegerDirectThreads / kWave;
  static constexpr int kAhead = 2;  // steps that are loaded at once

  struct Operands {
    Bits128 a[kTilesM][kLines], b[Columns::kTiles][kLines];
  };

  const IntegerConvArgs& args;
  const uint8_t *x, *w;
  int K, C, first_m, first_n, end_n, filters[Columns::kTiles][kLines];
  Bits128 outside;

  DEVICE explicit DirectConv(const IntegerConvArgs& of)
      : args(of), x(of.x), w(of.w), K(of.K * 2), C(static_cast<int>(of.channels.d) * 2) {
    const auto tile = static_cast<uint32_t>(block_x() * kWaves + wave_id());
    const uint32_t row = divide(tile, args.across), across = tile - row * args.across.d;
    const uint32_t group = divide(across, args.tiles);
    first_m = static_cast<int>(row) * 16 * kTilesM;
    first_n = static_cast<int>(group * args.filters.d + (across - group * args.tiles.d) * Columns::kN);
    end_n = static_cast<int>((group + 1) * args.filters.d);
    x += group * static_cast<size_t>(C);
    UNROLL for (int t = 0; t < Columns::kTiles; ++t) {
      UNROLL for (int i = 0; i < kLines; ++i) {
        filters[t][i] = min_int(first_n + Columns::column(16 * t + Instruction::line(i)), end_n - 1);
      }
    }
    const IntegerColumnsHeader* header = args.columns;
    const uint32_t zero = header->outside[0];
    outside = bit_cast<Bits128>(Pack<uint32_t>{{zero, zero, zero, zero}});
  }

  DEVICE static Bits128 load(const uint8_t* from) { return *reinterpret_cast<const Bits128*>(from); }
  // Returns channels `channel` to channel + 15 of a pixel.
  DEVICE Bits128 load_pixel(int pixel, int channel) const {
    const uint8_t* const from = x + static_cast<ptrdiff_t>(pixel) * args.pixel + channel;
    if (args.pixel % 16 == 0) return load(from);
    struct Halves {
      uint64_t v[2];
    } halves = {{*reinterpret_cast<const uint64_t*>(from), 0}};
    if (channel + 8 < args.pixel) halves.v[1] = *reinterpret_cast<const uint64_t*>(from + 8);
    return bit_cast<Bits128>(halves);
  }

  DEVICE void load_step(int step, const DirectPixel (&pixels)[kTilesM][kLines], Operands& to) const {
    const int k = step * kStep + Instruction::part() * 16;
    const bool exists = k < K;
    const uint32_t tap = divide(static_cast<uint32_t>(exists ? k / 2 : 0), args.channels);
    const int channel = k - static_cast<int>(tap) * C;
    const uint32_t r = divide(tap, args.kernel_w), s = tap - r * args.kernel_w.d;
    const int offset =
        static_cast<int>(r) * args.window.dilation_h * args.W + static_cast<int>(s) * args.window.dilation_w;
    UNROLL for (int a = 0; a < kTilesM; ++a) {
      UNROLL for (int i = 0; i < kLines; ++i) {
        const DirectPixel& pixel = pixels[a][i];
        const bool inside = exists && (pixel.taps >> r & pixel.taps >> (16 + s) & 1) != 0;
        to.a[a][i] = outside;
        if (inside) to.a[a][i] = load_pixel(pixel.at + offset, channel);
      }
    }
    UNROLL for (int t = 0; t < Columns::kTiles; ++t) {
      UNROLL for (int i = 0; i < kLines; ++i) {
        to.b[t][i] = Bits128();
        if (exists) to.b[t][i] = load(w + static_cast<size_t>(filters[t][i]) * static_cast<size_t>(K) + k);
      }
    }
  }

  template <class Sums>
  DEVICE void multiply(const Operands& from, Sums& sums) const {
    const uint32_t inverted_bits = args.epilogue.inverted_bits;
    UNROLL for (int part = 0; part < 4 / kPairs; ++part) {
      // bit_cast: the emulated instruction returns operands of float16, not its own Left and Right.
      typename Instruction::Right right[Columns::kTiles];
      UNROLL for (int t = 0; t < Columns::kTiles; ++t) {
        right[t] = bit_cast<typename Instruction::Right>(
            Instruction::right_of([&](int line, int j) { return word(from.b[t], line, j, part, 0); }));
      }
      UNROLL for (int a = 0; a < kTilesM; ++a) {
        const auto left = bit_cast<typename Instruction::Left>(Instruction::left_of(
            [&](int line, int j) { return word(from.a[a], line, j, part, inverted_bits); }));
        UNROLL for (int t = 0; t < Columns::kTiles; ++t) Instruction::multiply(sums[a][t], left, right[t]);
      }
    }
  }
  // Returns pair j of a line.
  DEVICE static uint32_t word(const Bits128 (&lines)[kLines], int line, int j, int part,
                              uint32_t inverted_bits) {
    return bit_cast<Pack<uint32_t>>(lines[line]).v[part * kPairs + j] ^ inverted_bits;
  }

  DEVICE size_t at(int row, int n) const {
    return static_cast<size_t>(row) * static_cast<size_t>(args.N) + static_cast<size_t>(n);
  }

  DEVICE void run() {
    if (first_m >= args.M) return;
    const int n = first_n + Columns::first();
    const bool has_column = n < end_n;
    const IntegerColumns column(args, 0, false, has_column ? n : 0, args.N);
    const auto scale = load_values(column.scales);
    const auto row_of = [&](int a, int which) { return first_m + a * 16 + Instruction::row(which); };
    const auto is_inside = [&](int row) { return has_column && row < args.M; };
    DirectPixel pixels[kTilesM][kLines];
    IntegerBytes added[kTilesM][Instruction::kRows] = {};
    UNROLL for (int a = 0; a < kTilesM; ++a) {
      UNROLL for (int i = 0; i < kLines; ++i) {
        pixels[a][i] = direct_pixel(args, first_m + a * 16 + Instruction::line(i));
      }
      UNROLL for (int which = 0; which < Instruction::kRows; ++which) {
        const int row = row_of(a, which);
        if (is_inside(row)) added[a][which] = column.load_residual(at(row, n));
      }
    }
    typename Instruction::Sum sums[kTilesM][Columns::kTiles] = {};
    const int steps = (K + kStep - 1) / kStep;
    NO_UNROLL for (int step = 0; step < steps; step += kAhead) {
      Operands operands[kAhead];
      UNROLL for (int i = 0; i < kAhead; ++i) load_step(step + i, pixels, operands[i]);
      UNROLL for (int i = 0; i < kAhead; ++i) multiply(operands[i], sums);
    }
    UNROLL for (int a = 0; a < kTilesM; ++a) {
      UNROLL for (int which = 0; which < Instruction::kRows; ++which) {
        const int row = row_of(a, which);
        if (!is_inside(row)) continue;
        int32_t values[kIntegerPack];
        UNROLL for (int t = 0; t < Columns::kTiles; ++t) {
          int next = t * Columns::kInRow;
          UNROLL for (int i = 0; i < Instruction::kSums; ++i) {
            if (Instruction::row_of(i) == which) values[next++] = static_cast<int32_t>(sums[a][t].v[i]);
          }
        }
        column.finish(values, 0, added[a][which], scale);
        column.store(at(row, n), values);
      }
    }
  }
};

}  // namespace graphopt::hip

using namespace graphopt::hip;

// Not compiled for AMD, where it has not been measured.
#if GRAPHOPT_MATRIX_F16 && !defined(__AMDGCN__)
KERNEL(integer_conv_direct, kIntegerDirectThreads, IntegerConvArgs, x, w, columns, residual, table, y,
       partial) {
  DirectConv<kIntegerDirectTiles>(args).run();
}
#endif
