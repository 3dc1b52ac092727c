// Concat of several inputs in one launch. At small sizes the launch of a copy takes longer than the copy.
//
// Each vector of the inputs is read once and written once. A work-item compares the position of a vector with the
// first positions of all inputs. Launch: operators/movement/movement/plan.cpp.
#include "device/platform.h"
#include "operators/movement/movement/concat_args.h"

namespace graphopt::hip {

// One input. A row of all inputs contains `width` vectors of it, from position `begin` on: the vector at position `at`
// is x[row * width + at - begin].
template <class T>
struct ConcatInput {
  const T* x;
  uint32_t begin, width;
};

template <class T>
DEVICE ConcatInput<T> concat_input(const ConcatArgs& args, uint32_t at) {
  ConcatInput<T> found = {args.x0, 0, args.begins[1]};
  const auto choose = [&](const T* x, int n) {
    if (at >= args.begins[n]) found = {x, args.begins[n], args.begins[n + 1] - args.begins[n]};
  };
  choose(args.x1, 1);
  choose(args.x2, 2);
  choose(args.x3, 3);
  choose(args.x4, 4);
  choose(args.x5, 5);
  choose(args.x6, 6);
  choose(args.x7, 7);
  return found;
}

template <class T>
DEVICE void concat(const ConcatArgs& args) {
  T* const y = args.y;
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kConcatThreads * kConcatVectors);
  T value[kConcatVectors];
  uint32_t to[kConcatVectors];
  UNROLL for (int k = 0; k < kConcatVectors; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kConcatThreads + thread_x());
    if (i >= args.total) break;
    const uint32_t row = divide(i, args.width), at = i - row * args.width.d;
    const ConcatInput<T> input = concat_input<T>(args, at);
    value[k] = input.x[row * input.width + (at - input.begin)];
    to[k] = row * args.pitch + args.first + at;
  }
  UNROLL for (int k = 0; k < kConcatVectors; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kConcatThreads + thread_x());
    if (i < args.total) y[to[k]] = value[k];
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

BITS_KERNELS(concat, concat<T>, kConcatThreads, ConcatArgs, x0, x1, x2, x3, x4, x5, x6, x7, y)
KERNEL_OF(concat_b128, concat<Bits128>, kConcatThreads, ConcatArgs, x0, x1, x2, x3, x4, x5, x6, x7, y)
