// Gather along one axis: y[outer, i, inner] = x[outer, index[i], inner].
//
// Bound by memory: gathered elements are read once and written once, 16 bytes at a time if alignment and the
// inner size allow it. An index that is out of range gives zeros; other devices may raise an error.
// scripts/gpu_bench.py compares the kernel with a copy.
#include "device/platform.h"
#include "operators/movement/gather/args.h"

namespace graphopt::hip {

template <class T>
DEVICE void gather(const GatherArgs& args) {
  const T zero = {};
  const T* x = args.x;
  T* y = args.y;
  const Divisor &inner = args.inner, &indices = args.indices;
  const uint32_t i = work_item(kGatherThreads);
  if (i >= args.total) return;
  const uint32_t row = divide(i, inner), column = i - row * inner.d;
  const uint32_t outer = divide(row, indices), which = row - outer * indices.d;
  const int32_t* narrow = args.index;
  const int64_t* wide = args.index;
  int64_t at = args.narrow != 0 ? narrow[which] : wide[which];
  at = at < 0 ? at + args.size : at;
  const bool inside = at >= 0 && at < static_cast<int64_t>(args.size);
  y[i] = inside ? x[(static_cast<size_t>(outer) * args.size + static_cast<size_t>(at)) * inner.d + column]
                : zero;
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL_OF(gather_b8, gather<uint8_t>, kGatherThreads, GatherArgs, x, index, y)
KERNEL_OF(gather_b16, gather<uint16_t>, kGatherThreads, GatherArgs, x, index, y)
KERNEL_OF(gather_b32, gather<uint32_t>, kGatherThreads, GatherArgs, x, index, y)
KERNEL_OF(gather_b128, gather<Bits128>, kGatherThreads, GatherArgs, x, index, y)
