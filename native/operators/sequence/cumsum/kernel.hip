// CumSum. The order of additions depends only on the sizes.
//
// Bound by memory. Along the last axis, a work-group sums one tile after the other. If there are few long rows, they
// are divided into parts: a first pass computes the total of each part, and a last pass the sums, so x is read twice.
// Along other axes, adjacent work-items process adjacent lines, and issue several loads before they wait for the
// first. Floats are added in float, integers as unsigned integers, which wrap around.
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/sequence/cumsum/args.h"

namespace graphopt::hip {

DEVICE float summand(float x) { return x; }
DEVICE float summand(half_t x) { return to_float(x); }
DEVICE uint64_t summand(int32_t x) { return static_cast<uint64_t>(x); }
DEVICE uint64_t summand(int64_t x) { return static_cast<uint64_t>(x); }

template <class T, class S>
DEVICE void cumsum(const CumSumArgs& args) {
  SHARED(totals, ScanLds<S, kCumSumThreads>);
  const T* x = args.x;
  const S* starts = args.starts;
  T* y = args.y;
  S* part_totals = args.totals;
  const auto block = static_cast<uint32_t>(block_x());
  const uint32_t row = divide(block, args.parts), part = block - row * args.parts.d;
  const size_t base = static_cast<size_t>(row) * args.size;
  const uint32_t begin = part * args.part;
  const uint32_t end = begin + args.part < args.size ? begin + args.part : args.size;
  const auto thread = static_cast<uint32_t>(thread_x());
  S carry = starts != nullptr ? starts[block] : S(0);
  NO_UNROLL for (uint32_t tile = begin; tile < end; tile += kCumSumTile) {
    const uint32_t first = tile + thread * kCumSumElements;
    S own[kCumSumElements], sum = 0;
    UNROLL for (uint32_t j = 0; j < kCumSumElements; ++j) {
      const uint32_t i = first + j;
      own[j] = i < end ? summand(x[base + (args.reverse != 0 ? args.size - 1 - i : i)]) : S(0);
      sum += own[j];
    }
    const GroupScan<S> sums = group_scan(sum, totals);
    S running = carry + sums.before;
    carry += sums.all;
    barrier();
    if (y == nullptr) continue;
    UNROLL for (uint32_t j = 0; j < kCumSumElements; ++j) {
      const uint32_t i = first + j;
      const S through = running + own[j];
      if (i < end) {
        y[base + (args.reverse != 0 ? args.size - 1 - i : i)] =
            static_cast<T>(args.exclusive != 0 ? running : through);
      }
      running = through;
    }
  }
  if (part_totals != nullptr && thread == 0) part_totals[block] = carry;
}

template <class T>
DEVICE void cumsum_lines(const CumSumLinesArgs& args) {
  const T* x = args.x;
  T* y = args.y;
  const uint32_t line = work_item(kCumSumThreads);
  if (line >= args.lines) return;
  const uint32_t outer = divide(line, args.inner);
  const size_t base = static_cast<size_t>(outer) * args.size * args.inner.d + (line - outer * args.inner.d);
  const auto offset = [&](uint32_t i) {
    return base + static_cast<size_t>(args.reverse != 0 ? args.size - 1 - i : i) * args.inner.d;
  };
  auto sum = summand(T(0));
  NO_UNROLL for (uint32_t i = 0; i < args.size; i += kCumSumElements) {
    T values[kCumSumElements];
    UNROLL for (uint32_t k = 0; k < kCumSumElements; ++k) {
      values[k] = i + k < args.size ? x[offset(i + k)] : T(0);
    }
    UNROLL for (uint32_t k = 0; k < kCumSumElements; ++k) {
      if (i + k >= args.size) continue;
      const auto through = sum + summand(values[k]);
      y[offset(i + k)] = static_cast<T>(args.exclusive != 0 ? sum : through);
      sum = through;
    }
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(cumsum, (cumsum<T, float>), kCumSumThreads, CumSumArgs, x, starts, y, totals)
KERNEL_OF(cumsum_i32, (cumsum<int32_t, uint64_t>), kCumSumThreads, CumSumArgs, x, starts, y, totals)
KERNEL_OF(cumsum_i64, (cumsum<int64_t, uint64_t>), kCumSumThreads, CumSumArgs, x, starts, y, totals)
FLOAT_KERNELS(cumsum_lines, cumsum_lines<T>, kCumSumThreads, CumSumLinesArgs, x, y)
KERNEL_OF(cumsum_lines_i32, cumsum_lines<int32_t>, kCumSumThreads, CumSumLinesArgs, x, y)
KERNEL_OF(cumsum_lines_i64, cumsum_lines<int64_t>, kCumSumThreads, CumSumLinesArgs, x, y)
