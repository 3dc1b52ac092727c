// GatherElements has an index for each element, GatherND a tuple of indices for each row.
//
// Memory-bound: indices are read once; adjacent work-items read adjacent indices and write adjacent elements. An index
// out of range gives zeros, as in Gather. scripts/gpu_bench.py compares the kernels with a copy.
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "operators/movement/gather/elements_args.h"

namespace graphopt::hip {

template <class T>
DEVICE void gather_elements(const GatherElementsArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const int32_t* narrow = args.index;
  const int64_t* wide = args.index;
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kGatherElementsThreads * kGatherElements);
  T value[kGatherElements] = {};
  UNROLL for (int k = 0; k < kGatherElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kGatherElementsThreads + thread_x());
    if (i >= args.total) continue;
    int64_t at = args.narrow != 0 ? narrow[i] : wide[i];
    at = at < 0 ? at + args.size : at;
    if (at < 0 || at >= static_cast<int64_t>(args.size)) continue;
    value[k] = x[offset_of(i, args.axes, args.x_strides) +
                 static_cast<uint32_t>(at) * static_cast<uint32_t>(args.axis_stride)];
  }
  UNROLL for (int k = 0; k < kGatherElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kGatherElementsThreads + thread_x());
    if (i < args.total) y[i] = value[k];
  }
}

template <class T>
DEVICE void gather_nd(const GatherNDArgs& args) {
  const T zero = {};
  const T* x = args.x;
  T* y = args.y;
  const Divisor &inner = args.inner, &rows = args.rows;
  const uint32_t i = work_item(kGatherElementsThreads);
  if (i >= args.total) return;
  const uint32_t row = divide(i, inner), column = i - row * inner.d;
  const int64_t* index = static_cast<const int64_t*>(args.index) + static_cast<size_t>(row) * args.k;
  uint32_t from = divide(row, rows) * args.batch_stride + column;
  bool inside = true;
  UNROLL for (int j = 0; j < kMaxAxes; ++j) {
    if (j >= args.k) break;
    int64_t at = index[j];
    at = at < 0 ? at + args.sizes[j] : at;
    inside = inside && at >= 0 && at < args.sizes[j];
    from += static_cast<uint32_t>(at) * static_cast<uint32_t>(args.strides.s[j]);
  }
  y[i] = inside ? x[from] : zero;
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

BITS_KERNELS(gather_elements, gather_elements<T>, kGatherElementsThreads, GatherElementsArgs, x, index, y)

KERNEL_OF(gather_nd_b8, gather_nd<uint8_t>, kGatherElementsThreads, GatherNDArgs, x, index, y)
KERNEL_OF(gather_nd_b16, gather_nd<uint16_t>, kGatherElementsThreads, GatherNDArgs, x, index, y)
KERNEL_OF(gather_nd_b32, gather_nd<uint32_t>, kGatherElementsThreads, GatherNDArgs, x, index, y)
KERNEL_OF(gather_nd_b128, gather_nd<Bits128>, kGatherElementsThreads, GatherNDArgs, x, index, y)
