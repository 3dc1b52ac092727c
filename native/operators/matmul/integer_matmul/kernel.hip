// Integer GEMMs and convolutions on the vector unit. GEMMs and convolutions of 8-bit elements with zero points sum in
// int32. gemm.hip and conv.hip compute the same on the matrix units. GEMMs of 16-bit elements sum in 32 bits. GEMMs of
// 32-bit and 64-bit elements sum in the width of the elements, with wrap-around. scale_sums dequantizes the sums, or
// requantizes them to 8 bits.
//
// 2 M N K operations for M K + K N + M N elements: compute-bound. A work-item computes 4 x 4 elements of Y. An 8-bit
// element minus its zero point has 9 bits. It is stored in LDS with 16 bits, because multiplications of 16-bit integers
// are fast.
#include "blocks/gpu/activation.h"
#include "blocks/gpu/quantized.h"
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "operators/matmul/integer_matmul/args.h"

namespace graphopt::hip {

// The elements of both operands for a step along K. Adjacent rows or columns are contiguous and are read with one
// access.
template <class T>
struct alignas(16) IntegerLds {
  T left[kIntegerDepth][kIntegerTile], right[kIntegerDepth][kIntegerTile];
};

template <class T>
struct alignas(4 * sizeof(T)) FourElements {
  T v[4];
};

// Computes the sums over k of left(m)(k) * right(n)(k) for a tile of Y and passes them to store(m, n, sum). A work-item
// loads four elements of one row of the left operand and four of one column of the right operand. Adjacent work-items
// read adjacent columns.
template <class Sum, class T, class Left, class Right, class Store>
DEVICE void integer_tile(IntegerLds<T>& lds, int M, int N, int K, const Left& left, const Right& right,
                         const Store& store) {
  constexpr int kEach = 4, kAcross = kIntegerTile / kEach;
  const int first_m = block_y() * kIntegerTile, first_n = block_x() * kIntegerTile;
  const int thread = thread_x(), row = thread / 4, row_k = thread % 4 * kEach;
  const int column = thread % kIntegerTile, column_k = thread / kIntegerTile * kEach;
  const int at_m = thread / kAcross * kEach, at_n = thread % kAcross * kEach;
  const auto left_row = left(first_m + row < M ? first_m + row : M - 1);
  const auto right_column = right(first_n + column < N ? first_n + column : N - 1);
  Sum sums[kEach][kEach] = {};
  for (int first = 0; first < K; first += kIntegerDepth) {
    T from_left[kEach], from_right[kEach];
    UNROLL for (int j = 0; j < kEach; ++j) {
      const int k = first + row_k + j, l = first + column_k + j;
      from_left[j] = first_m + row < M && k < K ? left_row(k) : T(0);
      from_right[j] = first_n + column < N && l < K ? right_column(l) : T(0);
    }
    barrier();
    UNROLL for (int j = 0; j < kEach; ++j) {
      lds.left[row_k + j][row] = from_left[j];
      lds.right[column_k + j][column] = from_right[j];
    }
    barrier();
    UNROLL_A_LITTLE for (int k = 0; k < kIntegerDepth; ++k) {
      const auto a = *reinterpret_cast<const FourElements<T>*>(&lds.left[k][at_m]);
      const auto b = *reinterpret_cast<const FourElements<T>*>(&lds.right[k][at_n]);
      UNROLL for (int i = 0; i < kEach; ++i) {
        UNROLL for (int j = 0; j < kEach; ++j) {
          sums[i][j] += static_cast<Sum>(a.v[i]) * static_cast<Sum>(b.v[j]);
        }
      }
    }
  }
  UNROLL for (int i = 0; i < kEach; ++i) {
    UNROLL for (int j = 0; j < kEach; ++j) {
      const int m = first_m + at_m + i, n = first_n + at_n + j;
      if (m < M && n < N) store(m, n, sums[i][j]);
    }
  }
}

// Returns zero point i; 0 if there are no zero points.
DEVICE int32_t zero_at(const uint8_t* zero, int i, bool is_signed) {
  return zero != nullptr ? byte_value(zero[i], is_signed) : 0;
}

// Converts bytes to their differences from a zero point.
struct Centered {
  int32_t zero;
  bool is_signed;
  DEVICE int16_t operator()(uint8_t x) const { return static_cast<int16_t>(byte_value(x, is_signed) - zero); }
};

DEVICE size_t element_of(int row, int columns, int column) {
  return static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
}

// block_z() selects the matrix. from_left(m) returns the function that converts elements of row m of `left` to factors;
// from_right(n) does the same for column n of `right`.
template <class Sum, class T, class Lds, class FromLeft, class FromRight>
DEVICE void multiply_matrices(const IntegerMatmulArgs& args, Lds& lds, const FromLeft& from_left,
                              const FromRight& from_right) {
  const T *left = args.left, *right = args.right;
  const Sum* bias = args.bias;
  Sum* y = args.y;
  const uint32_t z = args.first + static_cast<uint32_t>(block_z());
  const int M = args.M, N = args.N;
  left += offset_of(z, args.batch, args.left_batch);
  right += offset_of(z, args.batch, args.right_batch);
  y += z * element_of(M, N, 0);
  integer_tile<Sum>(
      lds, M, N, args.K,
      [&](int m) {
        const T* row = left + element_of(m, args.left_m, 0);
        return
            [&args, row, factor = from_left(m)](int k) { return factor(row[element_of(k, args.left_k, 0)]); };
      },
      [&](int n) {
        const T* column = right + element_of(n, args.right_n, 0);
        return [&args, column, factor = from_right(n)](int k) {
          return factor(column[element_of(k, args.right_k, 0)]);
        };
      },
      [&](int m, int n, Sum sum) {
        const size_t at = element_of(m, args.bias_m, 0) + element_of(n, args.bias_n, 0);
        y[element_of(m, N, n)] = bias != nullptr ? sum + bias[at] : sum;
      });
}

// Sums are unsigned because they must wrap around.
template <class Sum, class T>
DEVICE void integer_matmul(const IntegerMatmulArgs& args) {
  SHARED(lds, IntegerLds<T>);
  const auto same = [](int) { return [](T x) { return x; }; };
  multiply_matrices<Sum, T>(args, lds, same, same);
}

// Returns act(sum * scale) / y_scale. Without activation, or with Relu, the sum is multiplied only once.
DEVICE float activated(const Activation& act, float sum, float scale, float y_scale) {
  const bool once = act.kind == ActivationKind::kNone || act.kind == ActivationKind::kRelu;
  float value[1] = {sum * (once ? scale / y_scale : scale)};
  activate(act, value);
  return once ? value[0] : value[0] / y_scale;
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(integer_matmul_b8, kIntegerThreads, IntegerMatmulArgs, left, right, left_zero, right_zero, bias, y) {
  SHARED(lds, IntegerLds<int16_t>);
  const uint8_t *left_zero = args.left_zero, *right_zero = args.right_zero;
  const bool left_signed = args.left_signed != 0, right_signed = args.right_signed != 0;
  multiply_matrices<int32_t, uint8_t>(
      args, lds,
      [&](int m) { return Centered{zero_at(left_zero, m * args.left_zero_step, left_signed), left_signed}; },
      [&](int n) {
        return Centered{zero_at(right_zero, n * args.right_zero_step, right_signed), right_signed};
      });
}

KERNEL_OF(integer_matmul_b16, (integer_matmul<uint32_t, int16_t>), kIntegerThreads, IntegerMatmulArgs, left,
          right, left_zero, right_zero, bias, y)
KERNEL_OF(integer_matmul_b32, (integer_matmul<uint32_t, uint32_t>), kIntegerThreads, IntegerMatmulArgs, left,
          right, left_zero, right_zero, bias, y)
KERNEL_OF(integer_matmul_b64, (integer_matmul<uint64_t, uint64_t>), kIntegerThreads, IntegerMatmulArgs, left,
          right, left_zero, right_zero, bias, y)

KERNEL(integer_window_matmul, kIntegerThreads, IntegerWindowArgs, left, right, left_zero, right_zero, bias,
       y) {
  SHARED(lds, IntegerLds<int16_t>);
  const uint8_t *left = args.left, *right = args.right;
  const uint8_t *left_zero = args.left_zero, *right_zero = args.right_zero;
  const int32_t* bias = args.bias;
  int32_t* y = args.y;
  const auto z = static_cast<uint32_t>(block_z());
  const int group = static_cast<int>(z - divide(z, args.groups) * args.groups.d);
  const int M = args.M, N = args.N, K = args.K, first_filter = group * M;
  const bool left_signed = args.left_signed != 0, right_signed = args.right_signed != 0;
  const int in_plane = args.in[1] * args.in[2], in_image = args.in[0] * in_plane;
  left += element_of(first_filter, K, 0);
  right += z * element_of(args.C, in_image, 0);
  y += z * element_of(M, N, 0);
  const int32_t zero = zero_at(right_zero, 0, right_signed);
  integer_tile<int32_t>(
      lds, M, N, K,
      [&](int m) {
        const uint8_t* row = left + element_of(m, K, 0);
        const Centered factor{zero_at(left_zero, (first_filter + m) * args.left_zero_step, left_signed),
                              left_signed};
        return [row, factor](int k) { return factor(row[k]); };
      },
      [&](int n) {
        const auto pixel = static_cast<uint32_t>(n);
        const uint32_t line = divide(pixel, args.columns), plane = divide(line, args.rows);
        const auto first = [&](int axis, uint32_t place) {
          return static_cast<int>(place) * args.step[axis] - args.pad[axis];
        };
        const int first_p = first(0, plane), first_q = first(1, line - plane * args.rows.d),
                  first_r = first(2, pixel - line * args.columns.d);
        return [=, &args](int k) {
          const auto number = static_cast<uint32_t>(k);
          const uint32_t channel = divide(number, args.taps), in_window = number - channel * args.taps.d;
          const uint32_t tap_line = divide(in_window, args.taps_c), tap_plane = divide(tap_line, args.taps_b);
          const int p = first_p + static_cast<int>(tap_plane) * args.tap[0];
          const int q = first_q + static_cast<int>(tap_line - tap_plane * args.taps_b.d) * args.tap[1];
          const int r = first_r + static_cast<int>(in_window - tap_line * args.taps_c.d) * args.tap[2];
          const auto inside = [&](int place, int axis) {
            return static_cast<uint32_t>(place) < static_cast<uint32_t>(args.in[axis]);
          };
          if (!inside(p, 0) || !inside(q, 1) || !inside(r, 2)) return static_cast<int16_t>(0);
          const size_t from =
              element_of(static_cast<int>(channel), in_image, p * in_plane + q * args.in[2] + r);
          return static_cast<int16_t>(byte_value(right[from], right_signed) - zero);
        };
      },
      [&](int m, int n, int32_t sum) {
        y[element_of(m, N, n)] = bias != nullptr ? sum + bias[first_filter + m] : sum;
      });
}

KERNEL(scale_sums, kScaleThreads, ScaleSumsArgs, x, left_scale, right_scale, y_scale, y_zero, bias, y) {
  const int32_t* x = args.x;
  const float *left = args.left_scale, *right = args.right_scale, *y_scale = args.y_scale, *bias = args.bias;
  const uint8_t* y_zero = args.y_zero;
  uint8_t* bytes = args.y;
  float* reals = args.y;
  const uint32_t i = work_item(kScaleThreads);
  if (i >= args.total) return;
  const uint32_t line = divide(i, args.N), n = i - line * args.N.d,
                 m = line - divide(line, args.M) * args.M.d;
  const float scale =
      args.alpha * left[args.left_step * static_cast<int>(m)] * right[args.right_step * static_cast<int>(n)];
  const auto sum = static_cast<float>(x[i]);
  if (y_scale == nullptr) {
    reals[i] = sum * scale + (bias != nullptr ? bias[n] : 0.0f);
    return;
  }
  const bool is_signed = args.is_signed != 0;
  const float zero = static_cast<float>(zero_at(y_zero, 0, is_signed));
  const float steps = activated(args.act, sum, scale, y_scale[0]);
  bytes[i] = saturate_to_byte(round_to_even(steps) + zero, is_signed);
}
