// Range, ConstantOfShape, Trilu and OneHot: what is made of few numbers and of places. Bound by memory.
#include "device/platform.h"
#include "operators/generate/args.h"

namespace graphopt::hip {

DEVICE uint32_t generated(int k) {
  return static_cast<uint32_t>(block_x()) * (kGenerateThreads * kGenerateElements) +
         static_cast<uint32_t>(k * kGenerateThreads + thread_x());
}

DEVICE float range_number(const RangeArgs& args, uint32_t i, float) {
  return args.start + static_cast<float>(i) * args.step;
}
template <class T>
DEVICE T range_number(const RangeArgs& args, uint32_t i, T) {
  return static_cast<T>(static_cast<uint64_t>(args.whole_start) + i * static_cast<uint64_t>(args.whole_step));
}

template <class T>
DEVICE void range(const RangeArgs& args) {
  T* y = args.y;
  UNROLL for (int k = 0; k < kGenerateElements; ++k) {
    const uint32_t i = generated(k);
    if (i < args.total) y[i] = range_number(args, i, T());
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
  const int64_t beyond = static_cast<int64_t>(column) - static_cast<int64_t>(row);
  return args.upper != 0 ? beyond >= args.k : beyond <= args.k;
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

DEVICE int64_t hot_place(const OneHotArgs& args, uint32_t i) {
  switch (args.type) {
    case IndexType::kInt64:
      return index_at<int64_t>(args, i);
    case IndexType::kInt32:
      return index_at<int32_t>(args, i);
    case IndexType::kInt16:
      return index_at<int16_t>(args, i);
    case IndexType::kInt8:
      return index_at<int8_t>(args, i);
    case IndexType::kUint64: {  // beyond int64 lies beyond any depth, too
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

template <class T>
DEVICE void one_hot(const OneHotArgs& args) {
  const T* values = args.values;
  T* y = args.y;
  UNROLL for (int k = 0; k < kGenerateElements; ++k) {
    const uint32_t i = generated(k);
    if (i >= args.total) continue;
    const uint32_t line = divide(i, args.inner), column = i - line * args.inner.d;
    const uint32_t outer = divide(line, args.depth), place = line - outer * args.depth.d;
    const int64_t hot = hot_place(args, outer * args.inner.d + column);
    const auto depth = static_cast<int64_t>(args.depth.d);
    // An index that is out of range, as everywhere here, is that of no place.
    y[i] = values[(hot < 0 ? hot + depth : hot) == static_cast<int64_t>(place) ? 1 : 0];
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define RANGE_KERNEL(T, suffix) \
  KERNEL(range_##suffix, kGenerateThreads, RangeArgs, y) { range<T>(args); }

RANGE_KERNEL(float, f32)
RANGE_KERNEL(int16_t, i16)
RANGE_KERNEL(int32_t, i32)
RANGE_KERNEL(int64_t, i64)

#define BY_WIDTH(T, suffix)                                                     \
  KERNEL(fill_##suffix, kGenerateThreads, FillArgs, y) { fill<T>(args); }       \
  KERNEL(trilu_##suffix, kGenerateThreads, TriluArgs, x, y) { trilu<T>(args); } \
  KERNEL(one_hot_##suffix, kGenerateThreads, OneHotArgs, index, values, y) { one_hot<T>(args); }

BY_WIDTH(uint8_t, b8)
BY_WIDTH(uint16_t, b16)
BY_WIDTH(uint32_t, b32)
BY_WIDTH(uint64_t, b64)
