// The epilogue of int8 GEMM kernels (IntegerEpilogue in args.h): zero points, scales, activation, requantization.
#pragma once

#include "blocks/gpu/activation.h"
#include "blocks/gpu/bytes.h"
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

// The bytes of kIntegerPack elements.
struct IntegerBytes {
  uint32_t v[kIntegerPack / 4];
};

// The epilogue of packs that cover the same columns, n to n + kIntegerPack - 1, and share the loads of their operands.
// The first `inside` of these columns are inside Y.
struct IntegerColumns {
  const IntegerEpilogue& epilogue;
  const IntegerColumnsHeader* header;
  const float* scales;              // of column n; the other arrays follow
  const uint8_t *residual, *table;  // may be null
  void* y;
  int inside;
  bool has_zeros;  // whether the right operand has zero points
  float y_zero;
  IntegerValues<int32_t> offset;

  // Args has the members columns, residual, table, y and epilogue. `matrix`: index of the matrix of the right operand.
  // In waves of 64, `epilogue` is read again from the arguments (reload): during the loop over K its members would take
  // too many scalar registers.
  // `converted`: whether unsigned elements of A are multiplied as x - 128.
  template <class Args>
  DEVICE IntegerColumns(const Args& args, uint32_t matrix, bool zeros, int n, int32_t N,
                        bool converted = true)
      : epilogue(reload<kWave == 64>(args).epilogue),
        header(args.columns),
        residual(args.residual),
        table(args.table),
        y(args.y),
        inside(min_int(kIntegerPack, N - n)),
        has_zeros(zeros),
        y_zero(header->y_zero) {
    scales = reinterpret_cast<const float*>(header + 1) +
             matrix * (static_cast<size_t>(epilogue.columns) * kIntegerArrays) + static_cast<size_t>(n);
    offset = load_values(reinterpret_cast<const int32_t*>(array(converted ? 2 : 4)));
  }

  // Returns the residual of elements `at` to at + kIntegerPack - 1 of Y.
  DEVICE IntegerBytes load_residual(size_t at) const {
    IntegerBytes bytes = {};
    if (epilogue.sum.kind == IntegerResidual::kNone) return bytes;
    const uint8_t* const from = residual + at;
    if (epilogue.whole_packs != 0) return bit_cast<IntegerBytes>(*reinterpret_cast<const uint64_t*>(from));
    UNROLL for (int i = 0; i < kIntegerPack; ++i) {
      if (i < inside) bytes.v[i / 4] |= static_cast<uint32_t>(from[i]) << (8 * (i % 4));
    }
    return bytes;
  }

  // Converts sums to the elements that `store` stores: int32, the bits of floats, or eight bytes in the first two
  // values. `row_sum`: the sum of the row of A; `added`: the residual.
  DEVICE void finish(int32_t* sums, int32_t row_sum, const IntegerBytes& added) const {
    // Loaded here and not before, because large tiles have no registers for the scales.
    finish(sums, row_sum, added, load_values(scales));
  }
  DEVICE void finish(int32_t* sums, int32_t row_sum, const IntegerBytes& added,
                     const IntegerValues<float>& scale) const {
    UNROLL for (int i = 0; i < kIntegerPack; ++i) sums[i] += offset.v[i];
    if (has_zeros) {
      const auto zero = load_values(reinterpret_cast<const int32_t*>(array(3)));
      UNROLL for (int i = 0; i < kIntegerPack; ++i) sums[i] -= zero.v[i] * row_sum;
    }
    if (epilogue.output == IntegerOutput::kInt32) return;
    float values[kIntegerPack];
    UNROLL for (int i = 0; i < kIntegerPack; ++i) values[i] = static_cast<float>(sums[i]) * scale.v[i];
    if (epilogue.output == IntegerOutput::kFloat) {
      const auto shift = load_values(array(1));
      UNROLL for (int i = 0; i < kIntegerPack; ++i) sums[i] = bit_cast<int32_t>(values[i] + shift.v[i]);
      return;
    }
    const IntegerBytes bytes = requantize(values, added);
    UNROLL for (int i = 0; i < kIntegerPack / 4; ++i) sums[i] = static_cast<int32_t>(bytes.v[i]);
  }

  // Returns whether finish_bytes computes the result. It stores whole packs of bytes. It supports no zero points of the
  // right operand, no table, no activation except Relu, and no residual that is added before the rounding.
  DEVICE bool is_simple() const {
    return !has_zeros && table == nullptr && epilogue.whole_packs != 0 &&
           epilogue.output != IntegerOutput::kInt32 && epilogue.output != IntegerOutput::kFloat &&
           (epilogue.act.kind == ActivationKind::kNone || epilogue.act.kind == ActivationKind::kRelu) &&
           epilogue.sum.kind != IntegerResidual::kToExact;
  }
  // Returns the bytes of kIntegerPack sums. kAdds: whether there is a residual.
  template <bool kAdds>
  DEVICE uint64_t finish_bytes(const int32_t (&sums)[kIntegerPack], const IntegerBytes& added,
                               const IntegerValues<float>& scale) const {
    IntegerBytes bytes;
    UNROLL for (int word = 0; word < kIntegerPack / 4; ++word) {
      float values[4];
      UNROLL for (int i = 0; i < 4; ++i) {
        const int at = 4 * word + i;
        values[i] = max_float(static_cast<float>(sums[at] + offset.v[at]) * scale.v[at], low());
      }
      if constexpr (kAdds) {
        float others[4];
        bytes_to_floats(added.v[word], is_signed(), others);
        const IntegerSum& sum = epilogue.sum;
        UNROLL for (int i = 0; i < 4; ++i) {
          const float rounded = (min_float(values[i], high()) + kToInteger) - (kToInteger - y_zero);
          values[i] = max_float(
              fused_multiply_add(rounded, sum.left, fused_multiply_add(others[i], sum.right, sum.shift)),
              sum.least);
        }
      }
      UNROLL for (int i = 0; i < 4; ++i) values[i] += kToInteger;
      // In unsigned bytes, the least value of Y is 0.
      const float zero = kAdds ? 0.0f : y_zero;
      bytes.v[word] =
          saturate_to_bytes(values, kToInteger - zero + least()) ^ (is_signed() ? 0x80808080u : 0u);
    }
    return bit_cast<uint64_t>(bytes);
  }

  // Stores finished elements `at` to at + kIntegerPack - 1 of Y.
  DEVICE void store(size_t at, const int32_t* finished) const {
    if (epilogue.output == IntegerOutput::kInt32 || epilogue.output == IntegerOutput::kFloat) {
      return store_words(static_cast<int32_t*>(y) + at, finished);
    }
    uint8_t* const to = static_cast<uint8_t*>(y) + at;
    if (epilogue.whole_packs != 0) {
      const IntegerBytes bytes = {{static_cast<uint32_t>(finished[0]), static_cast<uint32_t>(finished[1])}};
      *reinterpret_cast<uint64_t*>(to) = bit_cast<uint64_t>(bytes);
      return;
    }
    UNROLL for (int i = 0; i < kIntegerPack; ++i) {
      if (i < inside) to[i] = static_cast<uint8_t>(finished[i / 4] >> (8 * (i % 4)));
    }
  }

 private:
  DEVICE const float* array(int i) const { return scales + static_cast<size_t>(i * epilogue.columns); }

  DEVICE IntegerBytes requantize(float (&values)[kIntegerPack], const IntegerBytes& added) const {
    const ActivationKind act = epilogue.act.kind;
    if (act != ActivationKind::kNone && act != ActivationKind::kRelu) {
      activate(epilogue.act, values);
      UNROLL for (int i = 0; i < kIntegerPack; ++i) values[i] /= header->y_scale;
    }
    const IntegerSum& sum = epilogue.sum;
    if (sum.kind == IntegerResidual::kToExact) return add_residual(values, added);
    round_in_range(values);
    if (table == nullptr) {
      if (sum.kind == IntegerResidual::kNone) return rounded_bytes(values);
      subtract_rounding(values);
    } else {
      const IntegerBytes bytes = look_up(rounded_bytes(values));
      if (sum.kind == IntegerResidual::kNone) return bytes;
      to_values(bytes, values);
    }
    return add_residual(values, added);
  }

  DEVICE bool is_signed() const { return epilogue.output == IntegerOutput::kInt8; }
  DEVICE float least() const { return is_signed() ? -128.0f : 0.0f; }
  // The range of Y minus its zero point; with Relu its part from 0 on.
  DEVICE float low() const { return epilogue.act.kind == ActivationKind::kRelu ? 0 : least() - y_zero; }
  DEVICE float high() const { return least() + 255 - y_zero; }

  // Clamps values to the range of Y minus its zero point, and rounds them by adding kToInteger. The zero point is added
  // after the rounding, because an addition before it would round the value twice.
  DEVICE void round_in_range(float (&values)[kIntegerPack]) const {
    UNROLL for (int i = 0; i < kIntegerPack; ++i) {
      values[i] = min_float(max_float(values[i], low()), high()) + kToInteger;
    }
  }
  // Returns the bytes of values from round_in_range.
  DEVICE IntegerBytes rounded_bytes(const float (&values)[kIntegerPack]) const {
    const uint32_t zeros = (bit_cast<uint32_t>(y_zero + kToInteger) & 0xff) * 0x01010101u;
    return {{add_bytes(low_bytes(values), zeros), add_bytes(low_bytes(values + 4), zeros)}};
  }
  // Converts values from round_in_range to the values of the bytes. The result is exact, because all operands are
  // integers.
  DEVICE void subtract_rounding(float (&values)[kIntegerPack]) const {
    const float subtracted = kToInteger - y_zero;
    UNROLL for (int i = 0; i < kIntegerPack; ++i) values[i] -= subtracted;
  }
  DEVICE void to_values(const IntegerBytes& bytes, float (&values)[kIntegerPack]) const {
    UNROLL for (int i = 0; i < kIntegerPack / 4; ++i) {
      bytes_to_floats(bytes.v[i], is_signed(), values + 4 * i);
    }
  }
  // Adds the residual to values, and returns the clamped and rounded sums as bytes.
  DEVICE IntegerBytes add_residual(float (&values)[kIntegerPack], const IntegerBytes& added) const {
    const IntegerSum& sum = epilogue.sum;
    const float low = max_float(sum.least, least()), most = least() + 255;
    float others[kIntegerPack];
    to_values(added, others);
    UNROLL for (int i = 0; i < kIntegerPack; ++i) {
      const float total =
          fused_multiply_add(values[i], sum.left, fused_multiply_add(others[i], sum.right, sum.shift));
      values[i] = min_float(max_float(total, low), most) + kToInteger;
    }
    return {{low_bytes(values), low_bytes(values + 4)}};
  }

  DEVICE IntegerBytes look_up(const IntegerBytes& bytes) const {
    IntegerBytes found = {};
    UNROLL for (int i = 0; i < kIntegerPack; ++i) {
      found.v[i / 4] |= static_cast<uint32_t>(table[bytes.v[i / 4] >> 8 * (i % 4) & 0xff]) << (8 * (i % 4));
    }
    return found;
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

  struct Loaded {
    IntegerBytes residual;
    int32_t row_sum, unused;
  };

  DEVICE bool is_inside(int m) const { return has_column && m < rows; }
  DEVICE size_t at(int m) const {
    return (first_row + static_cast<size_t>(m)) * static_cast<size_t>(N) + static_cast<size_t>(n);
  }
  DEVICE Bits128 prefetch(int m) const {
    Loaded loaded = {};
    if (is_inside(m)) {
      loaded.residual = column.load_residual(at(m));
      if (row_sums != nullptr) loaded.row_sum = global(row_sums)[m];
    }
    return bit_cast<Bits128>(loaded);
  }
  DEVICE void add(int32_t* sums, const Bits128& bits) const {
    const auto loaded = bit_cast<Loaded>(bits);
    column.finish(sums, loaded.row_sum, loaded.residual);
  }
  template <int kCount>
  DEVICE void activate(int32_t (&)[kCount]) const {}
  DEVICE void store(int m, const int32_t* finished) const {
    if (is_inside(m)) column.store(at(m), finished);
  }
};

// The epilogue for columns in the order of AdjacentColumns: requantizes the sums in registers and stores them, without
// an exchange through LDS. All residuals are loaded first.
template <class Gemm, class Args>
struct AdjacentStores {
  using Instruction = typename Gemm::Instruction;
  using Columns = typename Gemm::Adjacent;
  static constexpr int kPacks = Gemm::kTilesN / Columns::kTiles, kTilesM = Gemm::kTilesM,
                       kRows = Instruction::kRows;

  const Args& args;
  const Gemm& gemm;
  uint32_t right;
  int rows, first_n, end_n;
  size_t first_row;

  DEVICE static int row_of(int a, int which) { return Gemm::wave_m() + a * 16 + Instruction::row(which); }
  DEVICE int column_of(int pack) const {
    return first_n + Gemm::wave_n() + pack * Columns::kN + Columns::first();
  }
  DEVICE bool is_inside(int n, int row) const { return n < end_n && row < rows; }
  DEVICE size_t at(int n, int row) const {
    const int first = row_of(0, 0);
    return (first_row + static_cast<size_t>(first)) * static_cast<size_t>(args.N) + static_cast<size_t>(n) +
           static_cast<size_t>(row - first) * static_cast<size_t>(args.N);
  }

  template <bool kAdds>
  DEVICE void run() const {
    IntegerBytes added[kPacks][kTilesM][kRows] = {};
    const uint8_t* const residual = args.residual;
    if constexpr (kAdds) {
      UNROLL for (int p = 0; p < kPacks; ++p) {
        const int n = column_of(p);
        UNROLL for (int a = 0; a < kTilesM; ++a) {
          UNROLL for (int which = 0; which < kRows; ++which) {
            const int row = row_of(a, which);
            if (is_inside(n, row)) {
              added[p][a][which] = *reinterpret_cast<const IntegerBytes*>(global(residual) + at(n, row));
            }
          }
        }
      }
    }
    UNROLL for (int p = 0; p < kPacks; ++p) {
      const int n = column_of(p);
      const IntegerColumns column(args, right, false, n < end_n ? n : 0, args.N);
      const auto scale = load_values(column.scales);
      UNROLL for (int a = 0; a < kTilesM; ++a) {
        if (!Gemm::owns_row(a)) continue;
        UNROLL for (int which = 0; which < kRows; ++which) {
          int32_t sums[kIntegerPack];
          UNROLL for (int t = 0; t < Columns::kTiles; ++t) {
            int next = t * Columns::kInRow;
            UNROLL for (int i = 0; i < Instruction::kSums; ++i) {
              if (Instruction::row_of(i) == which) sums[next++] = gemm.sum[a][p * Columns::kTiles + t].v[i];
            }
          }
          const uint64_t bytes = column.template finish_bytes<kAdds>(sums, added[p][a][which], scale);
          const int row = row_of(a, which);
          if (!is_inside(n, row)) continue;
          uint8_t* const y = args.y;
          *reinterpret_cast<uint64_t*>(y + at(n, row)) = bytes;
        }
      }
    }
  }
};

// Stores a tile of an int8 GEMM: the partial sums of `split` if K is split, otherwise the results of the epilogue. The
// tile starts at row first_m and column first_n of matrix z. Its columns from end_n on are not stored. `left` and
// `right`: indices of the matrices of the operands. Args has the members M, N, columns, residual, table, y, partial,
// splits and epilogue. row_sums: of all matrices, or null.
template <class P, class Args>
DEVICE void store_integer_tile(const Args& args, typename P::Lds& lds, const typename P::Gemm& gemm,
                               const int32_t* row_sums, uint32_t split, uint32_t z, uint32_t left,
                               uint32_t right, int first_m, int first_n, int end_n) {
  const int32_t M = args.M, N = args.N;
  if (args.splits.count.d > 1) {
    const int n = first_n + P::Gemm::template pack_column<4>();
    int32_t* const partial = args.partial;
    const size_t row = split * static_cast<size_t>(M) + static_cast<size_t>(first_m);
    const PartialSumEpilogue<int32_t> epilogue = {
        N % 4 == 0, partial + row * static_cast<size_t>(N) + static_cast<size_t>(n), M - first_m, n, N};
    gemm.template apply_epilogue<4>(lds, epilogue);
    return;
  }
  const int n = first_n + P::Gemm::template pack_column<kIntegerPack>();
  const bool has_column = n < end_n;
  const IntegerColumns column(args, right, row_sums != nullptr, has_column ? n : 0, N);
  if (row_sums != nullptr) row_sums += left * static_cast<size_t>(M) + static_cast<size_t>(first_m);
  const size_t first_row = z * static_cast<size_t>(M) + static_cast<size_t>(first_m);
  if constexpr (P::Gemm::kAdjacent) {
    if (column.is_simple()) {
      const AdjacentStores<typename P::Gemm, Args> stores = {args,    gemm,  right,    M - first_m,
                                                             first_n, end_n, first_row};
      return args.epilogue.sum.kind == IntegerResidual::kNone ? stores.template run<false>()
                                                              : stores.template run<true>();
    }
  }
  gemm.template apply_epilogue<kIntegerPack>(
      lds, IntegerTileEpilogue{column, row_sums, M - first_m, n, has_column, N, first_row});
}

}  // namespace graphopt::hip
