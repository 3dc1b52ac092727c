// Range, ConstantOfShape, Trilu and OneHot. Bound by memory.
#include "device/platform.h"
#include "operators/movement/generate/args.h"

namespace graphopt::hip {

// Returns the index in y of element k of the work-item.
DEVICE uint32_t element_index(int k) {
  return static_cast<uint32_t>(block_x()) * (kGenerateThreads * kGenerateElements) +
         static_cast<uint32_t>(k * kGenerateThreads + thread_x());
}

DEVICE float range_element(const RangeArgs& args, uint32_t i, float) {
  return args.start + static_cast<float>(i) * args.step;
}
template <class T>
DEVICE T range_element(const RangeArgs& args, uint32_t i, T) {
  return static_cast<T>(static_cast<uint64_t>(args.integer_start) +
                        i * static_cast<uint64_t>(args.integer_step));
}

template <class T>
DEVICE void range(const RangeArgs& args) {
  T* y = args.y;
  UNROLL for (int k = 0; k < kGenerateElements; ++k) {
    const uint32_t i = element_index(k);
    if (i < args.total) y[i] = range_element(args, i, T());
  }
}

template <class T>
DEVICE void fill(const FillArgs& args) {
  T* y = args.y;
  constexpr int kSize = Pack<T>::kSize;
  const T value = static_cast<T>(args.bits);
  const uint32_t first = work_item(kGenerateThreads) * kSize;
  if (args.vectors != 0 && first + kSize <= args.total) {
    Pack<T> pack;
    UNROLL for (int j = 0; j < kSize; ++j) pack.v[j] = value;
    store_pack(y + first, pack);
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < first + kSize && i < args.total; ++i) y[i] = value;
}

DEVICE bool is_kept(const TriluArgs& args, uint32_t i) {
  const uint32_t line = divide(i, args.columns), column = i - line * args.columns.d;
  const uint32_t row = line - divide(line, args.rows) * args.rows.d;
  const int64_t diagonal = static_cast<int64_t>(column) - static_cast<int64_t>(row);
  return args.upper != 0 ? diagonal >= args.k : diagonal <= args.k;
}

template <class T>
DEVICE void trilu(const TriluArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  constexpr int kSize = Pack<T>::kSize;
  const uint32_t first = work_item(kGenerateThreads) * kSize;
  if (args.vectors != 0 && first + kSize <= args.total) {
    Pack<T> pack = load_pack(x + first);
    UNROLL for (int j = 0; j < kSize; ++j) {
      pack.v[j] = is_kept(args, first + static_cast<uint32_t>(j)) ? pack.v[j] : T(0);
    }
    store_pack(y + first, pack);
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < first + kSize && i < args.total; ++i) {
    y[i] = is_kept(args, i) ? x[i] : T(0);
  }
}

template <class T>
DEVICE T index_at(const OneHotArgs& args, uint32_t i) {
  return static_cast<const T*>(args.index)[i];
}

DEVICE int64_t index_of(const OneHotArgs& args, uint32_t i) {
  switch (args.type) {
    case IndexType::kInt64:
      return index_at<int64_t>(args, i);
    case IndexType::kInt32:
      return index_at<int32_t>(args, i);
    case IndexType::kInt16:
      return index_at<int16_t>(args, i);
    case IndexType::kInt8:
      return index_at<int8_t>(args, i);
    case IndexType::kUint64: {  // values above the range of int64 are out of range for any depth
      const auto index = static_cast<int64_t>(index_at<uint64_t>(args, i));
      return index < 0 ? int64_t{0x7fffffffffffffff} : index;
    }
    case IndexType::kUint32:
      return index_at<uint32_t>(args, i);
    case IndexType::kUint16:
      return index_at<uint16_t>(args, i);
    case IndexType::kUint8:
      return index_at<uint8_t>(args, i);
    case IndexType::kHalf:
      return static_cast<int64_t>(to_float(index_at<half_t>(args, i)));
    default:
      return static_cast<int64_t>(index_at<float>(args, i));
  }
}

// Returns the position along depth that index i selects. For an index out of range, the result equals no
// position.
DEVICE int64_t hot_position(const OneHotArgs& args, uint32_t i) {
  const int64_t index = index_of(args, i);
  return index < 0 ? index + args.depth.d : index;
}

// Returns a bit for each of `count` elements of y from `first` on. A bit is set if the element has the on value.
// Requires inner = 1: each row of `depth` elements has one index.
DEVICE uint32_t hot_of_rows(const OneHotArgs& args, uint32_t first, uint32_t count) {
  const int64_t depth = args.depth.d;
  uint32_t row = divide(first, args.depth), hot = 0;
  NO_UNROLL for (int64_t begin = static_cast<int64_t>(row) * depth - first; begin < count; begin += depth) {
    const int64_t position = hot_position(args, row++), at = begin + position;
    if (position >= 0 && position < depth && at >= 0 && at < count) hot |= 1u << static_cast<uint32_t>(at);
  }
  return hot;
}

// The same for inner > 1: adjacent elements have different indices.
template <uint32_t kMost>
DEVICE uint32_t hot_of_columns(const OneHotArgs& args, uint32_t first, uint32_t count) {
  const uint32_t line = divide(first, args.inner);
  uint32_t outer = divide(line, args.depth), position = line - outer * args.depth.d;
  uint32_t column = first - line * args.inner.d, hot = 0;
  UNROLL_A_LITTLE for (uint32_t j = 0; j < kMost; ++j) {
    const uint32_t index = outer * args.inner.d + column;
    if (j < count && hot_position(args, index) == static_cast<int64_t>(position)) hot |= 1u << j;
    if (++column < args.inner.d) continue;
    column = 0;
    if (++position < args.depth.d) continue;
    position = 0;
    ++outer;
  }
  return hot;
}

template <class T>
DEVICE void one_hot(const OneHotArgs& args) {
  const T* const values = args.values;
  T* const y = args.y;
  constexpr uint32_t kSize = Pack<T>::kSize;
  const uint32_t first = work_item(kGenerateThreads) * kSize;
  if (first >= args.total) return;
  const uint32_t count = args.total - first < kSize ? args.total - first : kSize;
  const T off = values[0], on = values[1];
  const uint32_t hot =
      args.inner.d == 1 ? hot_of_rows(args, first, count) : hot_of_columns<kSize>(args, first, count);
  if (args.vectors != 0 && count == kSize) {
    Pack<T> pack;
    UNROLL for (uint32_t j = 0; j < kSize; ++j) pack.v[j] = (hot >> j & 1) != 0 ? on : off;
    store_pack(y + first, pack);
    return;
  }
  NO_UNROLL for (uint32_t j = 0; j < count; ++j) y[first + j] = (hot >> j & 1) != 0 ? on : off;
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL_OF(range_f32, range<float>, kGenerateThreads, RangeArgs, y)
KERNEL_OF(range_i16, range<int16_t>, kGenerateThreads, RangeArgs, y)
KERNEL_OF(range_i32, range<int32_t>, kGenerateThreads, RangeArgs, y)
KERNEL_OF(range_i64, range<int64_t>, kGenerateThreads, RangeArgs, y)

BITS_KERNELS(fill, fill<T>, kGenerateThreads, FillArgs, y)
BITS_KERNELS(trilu, trilu<T>, kGenerateThreads, TriluArgs, x, y)
BITS_KERNELS(one_hot, one_hot<T>, kGenerateThreads, OneHotArgs, index, values, y)
