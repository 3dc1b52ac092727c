// Gated<act> and GatedHalves<act>: y = act(a) b. Memory-bound: a work-item computes 16 bytes of y, or one
// element if rows are not entire vectors. Launch: operators/elementwise/gated/plan.cpp.
#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "operators/elementwise/gated/args.h"

namespace graphopt::hip {

template <class T>
DEVICE void gated(const GatedArgs& args) {
  const T *a = args.a, *b = args.b;
  T* y = args.y;
  constexpr uint32_t kSize = Pack<T>::kSize;
  const uint32_t item = work_item(kGatedThreads);
  const uint32_t i = args.vectors != 0 ? item * kSize : item;
  if (i >= args.total) return;
  const uint32_t from = i + divide(i, args.D) * args.skip;
  if (args.vectors != 0) {
    const Pack<T> gate = load_pack(a + args.a_first + from);
    const Pack<T> other = load_pack(b + args.b_first + from);
    float value[kSize];
    UNROLL for (uint32_t j = 0; j < kSize; ++j) value[j] = to_float(gate.v[j]);
    activate(args.act, value);
    Pack<T> out;
    UNROLL for (uint32_t j = 0; j < kSize; ++j) out.v[j] = from_float<T>(value[j] * to_float(other.v[j]));
    store_pack(y + i, out);
    return;
  }
  float value[1] = {to_float(a[args.a_first + from])};
  activate(args.act, value);
  y[i] = from_float<T>(value[0] * to_float(b[args.b_first + from]));
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(gated, gated<T>, kGatedThreads, GatedArgs, a, b, y)
