// Reductions of x [outer, R, inner] over R. float and float16 are reduced in float32, integers in their own
// type.
//
// Bound by memory: X is read once, for one FLOP per element. If inner is 1, a work-group reduces a long row, and a part
// of a wave reduces a short row. Otherwise a work-item reduces a column, so adjacent work-items read adjacent elements.
// If that gives too few work-items, the reduction has several steps. scripts/gpu_bench.py compares all kernels with a
// copy.
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/reduction/reduction/args.h"

namespace graphopt::hip {

// A partial result of floats. For LogSumExp: the largest element and the sum of exp(x - largest).
struct FloatAccumulator {
  float value, sum;
};

DEVICE FloatAccumulator float_identity(Combiner combiner) {
  switch (combiner) {
    case Combiner::kProduct:
      return {1.0f, 0.0f};
    case Combiner::kMin:
      return {infinity(), 0.0f};
    case Combiner::kSum:
      return {0.0f, 0.0f};
    default:
      return {-infinity(), 0.0f};
  }
}

// Returns the number that is subtracted from exponents: `largest`, or 0 if it is infinite, since infinity - infinity is
// NaN.
DEVICE float base_of(float largest) { return largest - largest == 0.0f ? largest : 0.0f; }
DEVICE float weight(float x, float base) { return exp_fast(x - base); }

DEVICE FloatAccumulator combine(Combiner combiner, const FloatAccumulator& a, const FloatAccumulator& b) {
  switch (combiner) {
    case Combiner::kSum:
      return {a.value + b.value, 0.0f};
    case Combiner::kProduct:
      return {a.value * b.value, 0.0f};
    case Combiner::kLogSumExp: {
      const float largest = a.value > b.value ? a.value : b.value;
      const float base = base_of(largest);
      return {largest, a.sum * weight(a.value, base) + b.sum * weight(b.value, base)};
    }
    default: {
      const bool first = combiner == Combiner::kMax ? a.value > b.value : a.value < b.value;
      return {first || a.value != a.value ? a.value : b.value, 0.0f};  // NaN is kept
    }
  }
}

// Elements (32 bytes) that a work-item loads before it waits for the first one.
template <class From>
constexpr int kLoadsInFlight = 32 / static_cast<int>(sizeof(From));

// NaN does not change the largest element, only the sum.
template <int kCount>
DEVICE FloatAccumulator log_sum_exp_with(const FloatAccumulator& accumulator, const float (&values)[kCount]) {
  float largest = accumulator.value;
  UNROLL for (int k = 0; k < kCount; ++k) largest = max_float(values[k], largest);
  const float base = base_of(largest);
  float sum = accumulator.sum * weight(accumulator.value, base);
  UNROLL for (int k = 0; k < kCount; ++k) sum += weight(values[k], base);
  return {largest, sum};
}

template <int kCount>
DEVICE FloatAccumulator combine_all(Combiner combiner, FloatAccumulator accumulator,
                                    const float (&values)[kCount]) {
  UNROLL for (int k = 0; k < kCount; ++k) accumulator = combine(combiner, accumulator, {values[k], 0.0f});
  return accumulator;
}

// The combiner is the same for all work-items, so a work-item branches once for its kCount values.
template <int kCount>
DEVICE FloatAccumulator reduce_values(Combiner combiner, const FloatAccumulator& accumulator,
                                      const float (&values)[kCount]) {
  switch (combiner) {
    case Combiner::kSum:
      return combine_all(Combiner::kSum, accumulator, values);
    case Combiner::kProduct:
      return combine_all(Combiner::kProduct, accumulator, values);
    case Combiner::kMax:
      return combine_all(Combiner::kMax, accumulator, values);
    case Combiner::kMin:
      return combine_all(Combiner::kMin, accumulator, values);
    default:
      return log_sum_exp_with(accumulator, values);
  }
}

template <int kCount>
DEVICE void apply_to_elements(ElementFunction before, float (&values)[kCount]) {
  if (before == ElementFunction::kSquare) {
    UNROLL for (int k = 0; k < kCount; ++k) values[k] *= values[k];
  } else if (before == ElementFunction::kAbsolute) {
    UNROLL for (int k = 0; k < kCount; ++k) values[k] = values[k] < 0.0f ? -values[k] : values[k];
  }
}

DEVICE float log_of(float x) { return 0.69314718f * log2_fast(x); }

DEVICE float result_of(const ReduceFunctions& functions, const FloatAccumulator& accumulator) {
  if (functions.combiner == Combiner::kLogSumExp) return accumulator.value + log_of(accumulator.sum);
  const float value = accumulator.value * functions.scale;
  return functions.after == ResultFunction::kRoot  ? sqrt_exact(value)
         : functions.after == ResultFunction::kLog ? log_of(value)
                                                   : value;
}

// Reduces the accumulators of the `row_items` neighbouring work-items of a row; each of them gets the result.
DEVICE FloatAccumulator reduce_row_items(Combiner combiner, FloatAccumulator x, int row_items) {
  if (combiner == Combiner::kLogSumExp) {
    float largest = x.value;
    for (int mask = row_items / 2; mask > 0; mask /= 2) {
      const float other = shuffle_xor(largest, mask);
      largest = other > largest ? other : largest;
    }
    x = {largest, x.sum * weight(x.value, base_of(largest))};
    for (int mask = row_items / 2; mask > 0; mask /= 2) x.sum += shuffle_xor(x.sum, mask);
    return x;
  }
  for (int mask = row_items / 2; mask > 0; mask /= 2) {
    x = combine(combiner, x, {shuffle_xor(x.value, mask), shuffle_xor(x.sum, mask)});
  }
  return x;
}

struct FloatLds {
  WaveSums first, second;
  float values[kReduceThreads];
};

// Reduces the accumulators of all threads; the result is valid in thread 0.
DEVICE FloatAccumulator reduce_group(Combiner combiner, FloatAccumulator x, FloatLds& lds) {
  switch (combiner) {
    case Combiner::kSum:
      return {group_sum(x.value, lds.first, kReduceThreads), 0.0f};
    case Combiner::kMax:
      return {group_max(x.value, lds.first, kReduceThreads), 0.0f};
    case Combiner::kMin:
      return {-group_max(-x.value, lds.first, kReduceThreads), 0.0f};
    case Combiner::kLogSumExp: {
      const float largest = group_max(x.value, lds.first, kReduceThreads);
      return {largest, group_sum(x.sum * weight(x.value, base_of(largest)), lds.second, kReduceThreads)};
    }
    default:
      break;
  }
  lds.values[thread_x()] = x.value;
  for (int half = kReduceThreads / 2; half > 0; half /= 2) {
    barrier();
    if (thread_x() < half) lds.values[thread_x()] *= lds.values[thread_x() + half];
  }
  // No barrier after the last round: thread 0 reads its own result.
  return {lds.values[thread_x()], 0.0f};
}

// Reduces the elements with the indices from, from + step, ... below end.
template <class From>
DEVICE FloatAccumulator reduce_strided(const ReduceFunctions& functions, const From* x, size_t from,
                                       size_t end, size_t step) {
  constexpr int kCount = kLoadsInFlight<From>;
  const FloatAccumulator none = float_identity(functions.combiner);
  FloatAccumulator accumulator = none;
  for (size_t at = from; at < end; at += kCount * step) {
    float values[kCount];
    if (at + (kCount - 1) * step < end) {
      UNROLL for (int k = 0; k < kCount; ++k) values[k] = to_float(x[at + k * step]);
    } else {
      UNROLL for (int k = 0; k < kCount; ++k) {
        values[k] = at + k * step < end ? to_float(x[at + k * step]) : none.value;
      }
    }
    apply_to_elements(functions.before, values);
    accumulator = reduce_values(functions.combiner, accumulator, values);
  }
  return accumulator;
}

// Reduces the elements that one of `row_items` work-items reads from a row of R elements: every row_items-th pack.
template <class From>
DEVICE FloatAccumulator reduce_packs(const ReduceFunctions& functions, const From* x, uint32_t item,
                                     uint32_t R, uint32_t row_items) {
  constexpr int kSize = Pack<From>::kSize, kCount = kLoadsInFlight<From>, kPacks = kCount / kSize;
  const FloatAccumulator none = float_identity(functions.combiner);
  FloatAccumulator accumulator = none;
  for (uint32_t at = item * kSize; at < R; at += kCount * row_items) {
    float values[kCount];
    UNROLL for (int p = 0; p < kPacks; ++p) {
      const uint32_t from = at + static_cast<uint32_t>(p * kSize) * row_items;
      const Pack<From> pack = load_pack(x + (from < R ? from : at));
      UNROLL for (int e = 0; e < kSize; ++e) {
        values[p * kSize + e] = from < R ? to_float(pack.v[e]) : none.value;
      }
    }
    apply_to_elements(functions.before, values);
    accumulator = reduce_values(functions.combiner, accumulator, values);
  }
  return accumulator;
}

struct RowOfGroup {
  uint32_t row, item;
};

// Returns the row of the work-item, and the index of the work-item among those of the row.
DEVICE RowOfGroup row_of_group(const ReduceRowsArgs& args) {
  const auto thread = static_cast<uint32_t>(thread_x());
  const uint32_t in_group = thread >> args.shift;
  return {static_cast<uint32_t>(block_x()) * (static_cast<uint32_t>(kReduceThreads) >> args.shift) + in_group,
          thread & (args.row_items - 1)};
}

template <class From, class To>
DEVICE void reduce_row(const ReduceRowsArgs& args) {
  SHARED(lds, FloatLds);
  const From* x = args.x;
  To* y = args.y;
  const ReduceFunctions& functions = args.functions;
  const RowOfGroup at = row_of_group(args);
  FloatAccumulator accumulator = float_identity(functions.combiner);
  if (at.row < args.rows) {
    const From* const row = x + static_cast<size_t>(at.row) * args.R;
    accumulator = args.uses_packs != 0 ? reduce_packs(functions, row, at.item, args.R, args.row_items)
                                       : reduce_strided(functions, row, at.item, args.R, args.row_items);
  }
  accumulator = args.row_items == kReduceThreads
                    ? reduce_group(functions.combiner, accumulator, lds)
                    : reduce_row_items(functions.combiner, accumulator, static_cast<int>(args.row_items));
  if (at.item == 0 && at.row < args.rows) y[at.row] = from_float<To>(result_of(functions, accumulator));
}

template <class From, class To>
DEVICE void reduce_column(const ReduceColumnsArgs& args) {
  const From* x = args.x;
  To* y = args.y;
  const Divisor& stride = args.stride;
  const uint32_t i = work_item(kReduceThreads);
  if (i >= args.total) return;
  const uint32_t outer = divide(i, stride), column = i - outer * stride.d;
  const FloatAccumulator accumulator =
      reduce_strided(args.functions, x + static_cast<size_t>(outer) * args.block, column,
                     static_cast<size_t>(args.block), stride.d);
  y[i] = from_float<To>(result_of(args.functions, accumulator));
}

// Integers wrap around, as in unsigned arithmetic. T is signed. For unsigned elements `flip` is the sign bit, because
// the signed order of x ^ flip is the unsigned order of x.
template <class T, class Unsigned>
DEVICE T flip_of(const ReduceFunctions& functions) {
  return static_cast<T>(Unsigned(functions.is_unsigned != 0) << (8 * sizeof(T) - 1));
}

template <class T, class Unsigned>
DEVICE T combine_integers(Combiner combiner, T a, T b, T flip) {
  const auto ua = static_cast<Unsigned>(a), ub = static_cast<Unsigned>(b);
  switch (combiner) {
    case Combiner::kProduct:
      return static_cast<T>(ua * ub);
    case Combiner::kMax:
      return static_cast<T>(a ^ flip) > static_cast<T>(b ^ flip) ? a : b;
    case Combiner::kMin:
      return static_cast<T>(a ^ flip) < static_cast<T>(b ^ flip) ? a : b;
    default:
      return static_cast<T>(ua + ub);
  }
}

template <class T, class Unsigned>
DEVICE T least_of() {
  return static_cast<T>(Unsigned{1} << (8 * sizeof(T) - 1));
}

template <class T, class Unsigned>
DEVICE T integer_identity(Combiner combiner, T flip) {
  const T least = least_of<T, Unsigned>();
  return combiner == Combiner::kMax   ? static_cast<T>(least ^ flip)
         : combiner == Combiner::kMin ? static_cast<T>(~least ^ flip)
                                      : static_cast<T>(combiner == Combiner::kProduct ? 1 : 0);
}

template <class T, class Unsigned>
DEVICE T apply_to_integer(ElementFunction before, T x) {
  const auto u = static_cast<Unsigned>(x);
  if (before == ElementFunction::kSquare) return static_cast<T>(u * u);
  return before == ElementFunction::kAbsolute && x < 0 ? static_cast<T>(Unsigned{0} - u) : x;
}

template <class T, class Unsigned>
DEVICE T divided(const ReduceFunctions& functions, T x) {
  return functions.is_unsigned != 0
             ? static_cast<T>(static_cast<Unsigned>(x) / static_cast<Unsigned>(functions.divisor))
             : static_cast<T>(x / static_cast<T>(functions.divisor));
}

// The integer square root, bit by bit from the highest.
template <class Unsigned>
DEVICE Unsigned root_of(Unsigned x) {
  Unsigned root = 0;
  for (int bit = 4 * static_cast<int>(sizeof(Unsigned)) - 1; bit >= 0; --bit) {
    const auto larger = static_cast<Unsigned>(root | static_cast<Unsigned>(Unsigned{1} << bit));
    if (static_cast<Unsigned>(larger * larger) <= x) root = larger;
  }
  return root;
}

// The integer part of the logarithm: the number of powers e, e^2, .. that are at most x. The powers are rounded up.
DEVICE int log_of_integer(uint64_t x) {
  constexpr int kPowers = 44;
  // clang-format off
  const uint64_t powers[kPowers] = {
      3u, 8u, 21u, 55u, 149u, 404u, 1097u, 2981u, 8104u, 22027u, 59875u, 162755u, 442414u, 1202605u,
      3269018u, 8886111u, 24154953u, 65659970u, 178482301u, 485165196u, 1318815735u, 3584912847u,
      9744803447u, 26489122130u, 72004899338u, 195729609429u, 532048240602u, 1446257064292u,
      3931334297145u, 10686474581525u, 29048849665248u, 78962960182681u, 214643579785917u,
      583461742527455u, 1586013452313431u, 4311231547115196u, 11719142372802612u,
      31855931757113757u, 86593400423993747u, 235385266837019986u, 639843493530054950u,
      1739274941520501048u, 4727839468229346562u, 12851600114359308276u};
  // clang-format on
  int count = 0;
  UNROLL for (int k = 0; k < kPowers; ++k) count += powers[k] <= x ? 1 : 0;
  return count;
}

// If a sum wrapped around to a value below 0, or is 0, the root is 0 and the logarithm the least integer.
template <class T, class Unsigned>
DEVICE T result_of_integers(const ReduceFunctions& functions, T accumulator) {
  const T value = divided<T, Unsigned>(functions, accumulator);
  if (functions.after == ResultFunction::kNothing) return value;
  const T flip = flip_of<T, Unsigned>(functions);
  const bool is_positive = functions.is_unsigned != 0 ? value != 0 : value > 0;
  if (!is_positive)
    return functions.after == ResultFunction::kRoot ? T{0} : static_cast<T>(least_of<T, Unsigned>() ^ flip);
  const auto number = static_cast<Unsigned>(value);
  return functions.after == ResultFunction::kRoot ? static_cast<T>(root_of(number))
                                                  : static_cast<T>(log_of_integer(number));
}

template <class T>
struct IntegerLds {
  T values[kReduceThreads];
};

template <class T, class Unsigned>
DEVICE T reduce_strided_integers(const ReduceFunctions& functions, const T* x, size_t from, size_t end,
                                 size_t step) {
  const T flip = flip_of<T, Unsigned>(functions);
  T accumulator = integer_identity<T, Unsigned>(functions.combiner, flip);
  for (size_t at = from; at < end; at += step) {
    const T value = apply_to_integer<T, Unsigned>(functions.before, x[at]);
    accumulator = combine_integers<T, Unsigned>(functions.combiner, accumulator, value, flip);
  }
  return accumulator;
}

template <class T, class Unsigned>
DEVICE void reduce_row_of_integers(const ReduceRowsArgs& args) {
  SHARED(lds, IntegerLds<T>);
  const T* x = args.x;
  T* y = args.y;
  const ReduceFunctions& functions = args.functions;
  const RowOfGroup at = row_of_group(args);
  const T flip = flip_of<T, Unsigned>(functions);
  T accumulator = integer_identity<T, Unsigned>(functions.combiner, flip);
  if (at.row < args.rows) {
    const T* row = x + static_cast<size_t>(at.row) * args.R;
    accumulator = reduce_strided_integers<T, Unsigned>(functions, row, at.item, args.R, args.row_items);
  }
  lds.values[thread_x()] = accumulator;
  for (uint32_t half = args.row_items / 2; half > 0; half /= 2) {
    barrier();
    if (at.item < half) {
      lds.values[thread_x()] = combine_integers<T, Unsigned>(functions.combiner, lds.values[thread_x()],
                                                             lds.values[thread_x() + half], flip);
    }
  }
  if (at.item == 0 && at.row < args.rows) {
    y[at.row] = result_of_integers<T, Unsigned>(functions, lds.values[thread_x()]);
  }
}

template <class T, class Unsigned>
DEVICE void reduce_column_of_integers(const ReduceColumnsArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const Divisor& stride = args.stride;
  const uint32_t i = work_item(kReduceThreads);
  if (i >= args.total) return;
  const uint32_t outer = divide(i, stride), column = i - outer * stride.d;
  const T accumulator =
      reduce_strided_integers<T, Unsigned>(args.functions, x + static_cast<size_t>(outer) * args.block,
                                           column, static_cast<size_t>(args.block), stride.d);
  y[i] = result_of_integers<T, Unsigned>(args.functions, accumulator);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(reduce_rows, (reduce_row<T, T>), kReduceThreads, ReduceRowsArgs, x, y)
KERNEL_OF(reduce_rows_f16_to_f32, (reduce_row<half_t, float>), kReduceThreads, ReduceRowsArgs, x, y)
KERNEL_OF(reduce_rows_f32_to_f16, (reduce_row<float, half_t>), kReduceThreads, ReduceRowsArgs, x, y)
FLOAT_KERNELS(reduce_columns, (reduce_column<T, T>), kReduceThreads, ReduceColumnsArgs, x, y)
KERNEL_OF(reduce_columns_f16_to_f32, (reduce_column<half_t, float>), kReduceThreads, ReduceColumnsArgs, x, y)
KERNEL_OF(reduce_columns_f32_to_f16, (reduce_column<float, half_t>), kReduceThreads, ReduceColumnsArgs, x, y)

KERNEL_OF(reduce_rows_i8, (reduce_row_of_integers<int8_t, uint8_t>), kReduceThreads, ReduceRowsArgs, x, y)
KERNEL_OF(reduce_rows_i32, (reduce_row_of_integers<int32_t, uint32_t>), kReduceThreads, ReduceRowsArgs, x, y)
KERNEL_OF(reduce_rows_i64, (reduce_row_of_integers<int64_t, uint64_t>), kReduceThreads, ReduceRowsArgs, x, y)
KERNEL_OF(reduce_columns_i8, (reduce_column_of_integers<int8_t, uint8_t>), kReduceThreads, ReduceColumnsArgs,
          x, y)
KERNEL_OF(reduce_columns_i32, (reduce_column_of_integers<int32_t, uint32_t>), kReduceThreads,
          ReduceColumnsArgs, x, y)
KERNEL_OF(reduce_columns_i64, (reduce_column_of_integers<int64_t, uint64_t>), kReduceThreads,
          ReduceColumnsArgs, x, y)
