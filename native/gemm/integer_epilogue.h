// The epilogue of int8 GEMM kernels (IntegerEpilogue in args.h): zero points, scales, activation, requantization.
#pragma once

#include "blocks/gpu/activation.h"
#include "blocks/gpu/quantized.h"
#include "device/platform.h"
#include "gemm/args.h"
#include "gemm/epilogue.h"

namespace graphopt::hip {

// Values of kIntegerPack columns.
template <class T>
struct IntegerValues {
  T v[kIntegerPack];
};
template <class T>
DEVICE IntegerValues<T> load_values(const T* from) {
  IntegerValues<T> to;
  UNROLL for (int i = 0; i < kIntegerPack; i += 4) {
    const Pack<T> four = load_pack(global(from) + i);
    UNROLL for (int j = 0; j < 4; ++j) to.v[i + j] = four.v[j];
  }
  return to;
}

// The epilogue of packs that cover the same columns, n to n + kIntegerPack - 1, and share the loads of their operands.
// `inside` of these columns are less than N.
struct IntegerColumns {
  const IntegerEpilogue& epilogue;
  const IntegerColumnsHeader* header;
  const float* scales;  // of column n; the other arrays follow
  void* y;
  int inside;
  bool has_zeros;  // whether the right operand has zero points
  IntegerValues<int32_t> offset;

  // `matrix`: index of the matrix of the right operand.
  DEVICE IntegerColumns(const IntegerEpilogue& of, const IntegerColumnsHeader* operands, uint32_t matrix,
                        bool zeros, void* to, int n, int32_t N)
      : epilogue(of), header(operands), y(to), inside(min_int(kIntegerPack, N - n)), has_zeros(zeros) {
    scales = reinterpret_cast<const float*>(header + 1) +
             matrix * (static_cast<size_t>(epilogue.columns) * 4) + static_cast<size_t>(n);
    offset = load_values(reinterpret_cast<const int32_t*>(array(2)));
  }

  // Makes the sums exact. `row_sum`: the sum of the row of A.
  DEVICE void add(int32_t* sums, int32_t row_sum) const {
    UNROLL for (int i = 0; i < kIntegerPack; ++i) sums[i] += offset.v[i];
    if (!has_zeros) return;
    const auto zero = load_values(reinterpret_cast<const int32_t*>(array(3)));
    UNROLL for (int i = 0; i < kIntegerPack; ++i) sums[i] -= zero.v[i] * row_sum;
  }

  // Stores exact sums as elements `at` to at + kIntegerPack - 1 of Y.
  DEVICE void store(size_t at, const int32_t* sums) const {
    if (epilogue.output == IntegerOutput::kInt32) return store_words(static_cast<int32_t*>(y) + at, sums);
    // Not kept in registers, which large tiles do not have.
    const auto scale = load_values(scales);
    float values[kIntegerPack];
    UNROLL for (int i = 0; i < kIntegerPack; ++i) values[i] = static_cast<float>(sums[i]) * scale.v[i];
    if (epilogue.output == IntegerOutput::kFloat) {
      const auto shift = load_values(array(1));
      UNROLL for (int i = 0; i < kIntegerPack; ++i) values[i] += shift.v[i];
      return store_words(static_cast<float*>(y) + at, values);
    }
    store_bytes(static_cast<uint8_t*>(y) + at, values);
  }

 private:
  DEVICE const float* array(int i) const { return scales + static_cast<size_t>(i * epilogue.columns); }

  DEVICE void store_bytes(uint8_t* to, float (&values)[kIntegerPack]) const {
    activate(epilogue.act, values);
    if (epilogue.act.kind != ActivationKind::kNone && epilogue.act.kind != ActivationKind::kRelu) {
      UNROLL for (int i = 0; i < kIntegerPack; ++i) values[i] /= header->y_scale;
    }
    struct alignas(kIntegerPack) Bytes {
      uint8_t v[kIntegerPack];
    } bytes;
    UNROLL for (int i = 0; i < kIntegerPack; ++i) {
      bytes.v[i] = saturate_to_byte(round_to_even(values[i]) + header->y_zero,
                                    epilogue.output == IntegerOutput::kInt8);
    }
    if (epilogue.whole_packs != 0) {
      *reinterpret_cast<uint64_t*>(to) = bit_cast<uint64_t>(bytes);
      return;
    }
    UNROLL for (int i = 0; i < kIntegerPack; ++i) {
      if (i < inside) to[i] = bytes.v[i];
    }
  }

  template <class T>
  DEVICE void store_words(T* to, const T* values) const {
    UNROLL for (int i = 0; i < kIntegerPack; i += 4) {
      if (epilogue.whole_packs != 0) {
        store_pack(to + i, Pack<T>{{values[i], values[i + 1], values[i + 2], values[i + 3]}});
        continue;
      }
      UNROLL for (int j = 0; j < 4; ++j) {
        if (i + j < inside) to[i + j] = values[i + j];
      }
    }
  }
};

// The argument of Hgemm::apply_epilogue without splits of K. A pack is inside Y if its row is less than `rows` and
// `has_column` is true. Row m of the tile is row first_row + m of Y, which has N columns.
struct IntegerTileEpilogue {
  const IntegerColumns& column;
  const int32_t* row_sums;  // of the tile; null if the right operand has no zero points
  int rows, n;
  bool has_column;
  int32_t N;
  size_t first_row;

  DEVICE bool is_inside(int m) const { return has_column && m < rows; }
  DEVICE Bits128 prefetch(int m) const {
    Pack<int32_t> loaded = {};
    if (row_sums != nullptr && is_inside(m)) loaded.v[0] = global(row_sums)[m];
    return bit_cast<Bits128>(loaded);
  }
  DEVICE void add(int32_t* sums, const Bits128& loaded) const {
    column.add(sums, bit_cast<Pack<int32_t>>(loaded).v[0]);
  }
  template <int kCount>
  DEVICE void activate(int32_t (&)[kCount]) const {}
  DEVICE void store(int m, const int32_t* sums) const {
    if (!is_inside(m)) return;
    column.store((first_row + static_cast<size_t>(m)) * static_cast<size_t>(N) + static_cast<size_t>(n),
                 sums);
  }
};

// Applies the epilogue to a complete tile of an int8 GEMM, which starts at row first_m and column first_n of matrix z,
// or stores partial sums of split `part`. `left` and `right`: indices of the matrices of the operands. Args has the
// members M, N, columns, y, partial, splits and epilogue. row_sums: those of all matrices, or null.
template <class P, class Args>
DEVICE void store_integer_tile(const Args& args, typename P::Lds& lds, const typename P::Product& product,
                               const int32_t* row_sums, uint32_t part, uint32_t z, uint32_t left,
                               uint32_t right, int first_m, int first_n) {
  const int32_t M = args.M, N = args.N;
  if (args.splits.count.d > 1) {
    const int n = first_n + P::Product::template pack_column<4>();
    int32_t* const partial = args.partial;
    const size_t row = part * static_cast<size_t>(M) + static_cast<size_t>(first_m);
    const PartialSumEpilogue<int32_t> end = {
        N % 4 == 0, partial + row * static_cast<size_t>(N) + static_cast<size_t>(n), M - first_m, n, N};
    product.template apply_epilogue<4>(lds, end);
    return;
  }
  const int n = first_n + P::Product::template pack_column<kIntegerPack>();
  const bool has_column = n < N;
  const IntegerColumns column(args.epilogue, args.columns, right, row_sums != nullptr, args.y,
                              has_column ? n : 0, N);
  if (row_sums != nullptr) row_sums += left * static_cast<size_t>(M) + static_cast<size_t>(first_m);
  const size_t first_row = z * static_cast<size_t>(M) + static_cast<size_t>(first_m);
  product.template apply_epilogue<kIntegerPack>(
      lds, IntegerTileEpilogue{column, row_sums, M - first_m, n, has_column, N, first_row});
}

}  // namespace graphopt::hip
