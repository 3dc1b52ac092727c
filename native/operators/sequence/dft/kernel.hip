// DFT and STFT by their definition: a work-item computes output k of several lines, whose inputs are in LDS. The
// roots of unity are read from a table at index (k n) mod L. Their errors are at most 3 units in the last place.
//
// Compute-bound: N K complex multiplications for each line. This suits the frames of speech (L of 200 to 2048); a
// transform of a million points needs another algorithm.
#include "device/platform.h"
#include "operators/sequence/dft/args.h"

namespace graphopt::hip {

// Cosine and sine of 2 pi j / L. Integer arithmetic reduces the angle to an eighth of the circle.
DEVICE void root_of_unity(uint32_t j, uint32_t L, float& c, float& s) {
  const uint32_t eighth = 8 * j / L, rest = 8 * j - eighth * L;
  const bool back = (eighth & 1) != 0;
  const float a = static_cast<float>(back ? L - rest : rest) / static_cast<float>(L) * 0.78539816f,
              a2 = a * a;
  const float sine =
      a + a * a2 * (-0.16666667f + a2 * (0.0083333333f + a2 * (-1.9841270e-4f + a2 * 2.7557319e-6f)));
  const float cosine = 1 + a2 * (-0.5f + a2 * (0.041666667f + a2 * (-0.0013888889f + a2 * 2.4801587e-5f)));
  const float signed_sine = back ? -sine : sine;
  const uint32_t quarter = ((eighth + 1) / 2) & 3;
  c = quarter == 0 ? cosine : quarter == 1 ? -signed_sine : quarter == 2 ? -cosine : signed_sine;
  s = quarter == 0 ? signed_sine : quarter == 1 ? cosine : quarter == 2 ? -signed_sine : -cosine;
}

struct DftInputs {
  float re[kDftLines][kDftThreads], im[kDftLines][kDftThreads];
};

DEVICE size_t dft_line(const DftArgs& args, const DftStrides& strides, uint32_t line) {
  const uint32_t outer = divide(line, args.per), inner = line - outer * args.per.d;
  return static_cast<size_t>(static_cast<int64_t>(outer) * strides.outer +
                             static_cast<int64_t>(inner) * strides.line);
}

template <class T>
DEVICE void dft(const DftArgs& args) {
  SHARED(lds, DftInputs);
  const T* const x = args.x;
  const T* const window = args.window;
  const float* const table = args.table;
  T* const y = args.y;
  const uint32_t first = static_cast<uint32_t>(block_x()) * kDftLines;
  const int k = block_y() * kDftThreads + thread_x();
  // A work-item beyond the last output writes nothing, and must not read beyond the table.
  const int table_step = k < args.K ? k : 0;
  float re[kDftLines] = {}, im[kDftLines] = {};
  int at = 0;
  NO_UNROLL for (int begin = 0; begin < args.N; begin += kDftThreads) {
    const int n = begin + thread_x();
    barrier();
    NO_UNROLL for (int i = 0; i < kDftLines; ++i) {
      float real = 0, imaginary = 0;
      const uint32_t line = first + static_cast<uint32_t>(i);
      if (n < args.N && line < args.lines) {
        const T* const from = x + dft_line(args, args.from, line) + n * args.from.element;
        const float weight = window != nullptr ? to_float(window[n]) : 1.0f;
        real = weight * to_float(from[0]);
        if (args.complex != 0) imaginary = weight * to_float(from[1]);
      }
      lds.re[i][thread_x()] = real;
      lds.im[i][thread_x()] = imaginary;
    }
    barrier();
    const int count = min_int(kDftThreads, args.N - begin);
    NO_UNROLL for (int j = 0; j < count; ++j) {
      const float c = table[2 * at], s = args.sign * table[2 * at + 1];
      UNROLL for (int i = 0; i < kDftLines; ++i) {
        const float a = lds.re[i][j], b = lds.im[i][j];
        re[i] += a * c - b * s;
        im[i] += a * s + b * c;
      }
      at += table_step;
      at -= at >= args.L ? args.L : 0;
    }
  }
  if (k >= args.K) return;
  UNROLL for (int i = 0; i < kDftLines; ++i) {
    const uint32_t line = first + static_cast<uint32_t>(i);
    if (line >= args.lines) continue;
    T* const to = y + dft_line(args, args.to, line) + k * args.to.element;
    to[0] = from_float<T>(args.factor * re[i]);
    to[1] = from_float<T>(args.factor * im[i]);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(dft_table, kDftThreads, DftTableArgs, table) {
  const uint32_t j = work_item(kDftThreads);
  if (j >= args.L) return;
  float* const table = args.table;
  root_of_unity(j, args.L, table[2 * j], table[2 * j + 1]);
}

FLOAT_KERNELS(dft, dft<T>, kDftThreads, DftArgs, x, window, table, y)
