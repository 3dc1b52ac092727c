// The epilogue of GEMM kernels (args.h): alpha, bias, residual, activation. If work-groups split K, the
// kernels store partial sums instead.
#pragma once

#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "gemm/args.h"

namespace graphopt::hip {

// The epilogue of packs that cover the same columns, n to n + kSize - 1, and share one load of the bias.
// The first `inside` of these columns are inside Y.
template <class T>
struct ColumnEpilogue {
  static constexpr int kSize = Pack<T>::kSize;
  const Epilogue& epilogue;
  const T* residual;
  T* y;
  int inside;
  bool has_bias;
  Bits128 bias = {};

  DEVICE ColumnEpilogue(const Epilogue& operations, const T* bias_vector, const T* residual_matrix, T* output,
                        int n, int32_t N)
      : epilogue(operations),
        residual(residual_matrix),
        y(output),
        inside(min_int(kSize, N - n)),
        has_bias(bias_vector != nullptr) {
    if (has_bias) bias = read(global(bias_vector) + n);
  }

  // Loads the residual of the pack at element `at`, which add() needs. Callers issue this load before the
  // sums are complete, to hide its latency.
  DEVICE Bits128 prefetch(size_t at) const {
    Bits128 bits = {};
    if (residual != nullptr) bits = read(global(residual) + at);
    return bits;
  }
  // Applies alpha, bias and residual to a pack of sums. The activation is separate: callers apply it to all
  // packs of a work-item at once.
  DEVICE void add(float* values, const Bits128& loaded) const {
    UNROLL for (int i = 0; i < kSize; ++i) values[i] *= epilogue.alpha;
    if (has_bias) add_scaled(values, bias, 1.0f);
    if (residual != nullptr) add_scaled(values, loaded, epilogue.beta);
  }
  template <int kCount>
  DEVICE void activate(float (&values)[kCount]) const {
    hip::activate(epilogue.act, values);
  }
  DEVICE void store(size_t at, const float* values) const {
    Pack<T> out;
    UNROLL for (int i = 0; i < kSize; ++i) out.v[i] = from_float<T>(values[i]);
    if (epilogue.is_aligned != 0) {
      store_pack(y + at, out);
    } else {
      UNROLL for (int i = 0; i < kSize; ++i) {
        if (i < inside) y[at + static_cast<size_t>(i)] = out.v[i];
      }
    }
  }

 private:
  DEVICE Bits128 read(const T* from) const {
    if (epilogue.is_aligned != 0) return *reinterpret_cast<const Bits128*>(from);
    Pack<T> pack = {};
    UNROLL for (int i = 0; i < kSize; ++i) {
      if (i < inside) pack.v[i] = from[i];
    }
    return bit_cast<Bits128>(pack);
  }
  DEVICE static void add_scaled(float* values, const Bits128& bits, float factor) {
    const auto pack = bit_cast<Pack<T>>(bits);
    UNROLL for (int i = 0; i < kSize; ++i) values[i] += factor * to_float(pack.v[i]);
  }
};

// Applies the epilogue to a pack of sums at columns n to n + kSize - 1 and stores it at element `at` of Y.
template <class T>
DEVICE void write_pack(const Epilogue& e, const T* bias, const T* residual, T* y, size_t at, int n, int32_t N,
                       float (&values)[Pack<T>::kSize]) {
  const ColumnEpilogue<T> column(e, bias, residual, y, n, N);
  column.add(values, column.prefetch(at));
  column.activate(values);
  column.store(at, values);
}

// Stores a pack of partial sums of columns n to n + kSize - 1 at `to`.
template <class T, int kSize>
DEVICE void store_partial(bool is_aligned, T* to, int n, int32_t N, const T (&values)[kSize]) {
  if (is_aligned) {
    UNROLL for (int i = 0; i < kSize; i += 4) {
      const Pack<T> four = {{values[i], values[i + 1], values[i + 2], values[i + 3]}};
      store_pack(to + i, four);
    }
    return;
  }
  UNROLL for (int i = 0; i < kSize; ++i) {
    if (n + i < N) to[i] = values[i];
  }
}

// Returns the bias of matrix z, or null.
template <class T>
DEVICE const T* bias_of_matrix(const Epilogue& e, const T* bias, uint32_t z) {
  return bias == nullptr ? nullptr : bias + z * static_cast<size_t>(e.bias_step);
}

// Returns the memory for the partial sums of a split. Args has the members M, N and partial.
template <class Args>
DEVICE float* partial_of(const Args& args, uint32_t split) {
  float* const partial = args.partial;
  return partial + split * (static_cast<size_t>(args.M) * static_cast<size_t>(args.N));
}

// Stores a pack of sums of columns n to n + kSize - 1, which starts at element `at` of matrix z. Without
// splits of K, applies the epilogue and stores the result in Y. With splits, stores the sums among the
// partial sums of `split`. Args has the members M, N, bias, residual, y, partial, splits and epilogue.
template <class T, class Args>
DEVICE void store_sums(const Args& args, uint32_t split, uint32_t z, size_t at, int n,
                       float (&values)[Pack<T>::kSize]) {
  const int32_t N = args.N;
  if (args.splits.count.d == 1) {
    const T *bias = args.bias, *residual = args.residual;
    T* const y = args.y;
    at += z * (static_cast<size_t>(args.M) * static_cast<size_t>(N));
    write_pack(args.epilogue, bias_of_matrix(args.epilogue, bias, z), residual, y, at, n, N, values);
  } else {
    store_partial(args.epilogue.is_aligned != 0, partial_of(args, split) + at, n, N, values);
  }
}

// The argument of Hgemm::apply_epilogue without splits of K. A pack is inside Y if its row is less than
// `rows` and `has_column` is true. The pack of row m starts at element at(m) of Y.
template <class At>
struct TileEpilogue {
  const ColumnEpilogue<half_t>& column;
  int rows;
  bool has_column;
  const At& at;

  DEVICE bool is_inside(int m) const { return has_column && m < rows; }
  DEVICE Bits128 prefetch(int m) const {
    Bits128 bits = {};
    if (is_inside(m)) bits = column.prefetch(at(m));
    return bits;
  }
  DEVICE void add(float* values, const Bits128& loaded) const { column.add(values, loaded); }
  template <int kCount>
  DEVICE void activate(float (&values)[kCount]) const {
    column.activate(values);
  }
  DEVICE void store(int m, const float* values) const {
    if (is_inside(m)) column.store(at(m), values);
  }
};

// The argument of Hgemm::apply_epilogue with splits of K. Stores partial sums of columns n to n + 3; `to`
// points to column n of the first of `rows` rows of N elements. T: float or int32_t.
template <class T>
struct PartialSumEpilogue {
  bool is_aligned;
  T* to;
  int rows, n;
  int32_t N;

  DEVICE Bits128 prefetch(int) const { return Bits128{}; }
  DEVICE void add(T*, const Bits128&) const {}
  template <int kCount>
  DEVICE void activate(T (&)[kCount]) const {}
  DEVICE void store(int m, const T* values) const {
    if (m >= rows || n >= N) return;
    const T four[4] = {values[0], values[1], values[2], values[3]};
    store_partial(is_aligned, to + static_cast<size_t>(m) * static_cast<size_t>(N), n, N, four);
  }
};

// Does the same as store_sums for all sums of an Hgemm. The tile starts at row first_m and column first_n.
template <class P, class Args>
DEVICE void store_tile(const Args& args, typename P::Lds& lds, const typename P::Gemm& gemm, uint32_t split,
                       uint32_t z, int first_m, int first_n) {
  const int32_t M = args.M, N = args.N;
  const auto element = [&](int n) {
    return static_cast<size_t>(first_m) * static_cast<size_t>(N) + static_cast<size_t>(n);
  };
  if (args.splits.count.d > 1) {
    const int n = first_n + P::Gemm::template pack_column<4>();
    const PartialSumEpilogue<float> epilogue = {args.epilogue.is_aligned != 0,
                                                partial_of(args, split) + element(n), M - first_m, n, N};
    gemm.template apply_epilogue<4>(lds, epilogue);
    return;
  }
  const half_t *bias = args.bias, *residual = args.residual;
  half_t* const y = args.y;
  const int n = first_n + P::Gemm::template pack_column<8>();
  const bool has_column = n < N;
  const ColumnEpilogue<half_t> column(args.epilogue, bias_of_matrix(args.epilogue, bias, z), residual, y,
                                      has_column ? n : 0, N);
  const size_t first = z * (static_cast<size_t>(M) * static_cast<size_t>(N)) + element(n);
  const auto at = [&](int m) { return first + static_cast<size_t>(m) * static_cast<size_t>(N); };
  gemm.template apply_epilogue<8>(lds, TileEpilogue<decltype(at)>{column, M - first_m, has_column, at});
}

}  // namespace graphopt::hip
