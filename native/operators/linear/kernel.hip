// What follows the product of Linear[Add][act]: y = act(product + bias[n] + r), n along the last axis.
//
// Bound by memory: the product (and R) are read once and Y is written once, 16 bytes a lane and instruction,
// kVectors of them in flight. The product may be where Y goes. Launch: operators/linear/plan.cpp.
#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "operators/linear/args.h"

namespace graphopt::hip {

template <class T>
DEVICE void linear(const LinearArgs& args) {
  const T *product = args.product, *bias = args.bias, *residual = args.residual;
  T* y = args.y;
  const Divisor& columns = args.columns;
  constexpr int kSize = Pack<T>::kSize;
  constexpr uint32_t kTile = kLinearThreads * kLinearVectors * kSize;
  const auto column_of = [&](uint32_t i) { return i - divide(i, columns) * columns.d; };
  const uint32_t begin = static_cast<uint32_t>(block_x()) * kTile;

  if (args.vectors != 0 && args.total - begin >= kTile) {
    Pack<T> in[kLinearVectors], shift[kLinearVectors], add[kLinearVectors];
    UNROLL for (int k = 0; k < kLinearVectors; ++k) {
      const uint32_t i = begin + static_cast<uint32_t>(k * kLinearThreads + thread_x()) * kSize;
      in[k] = load_pack(product + i);
      shift[k] = load_pack(bias + column_of(i));
      if (residual != nullptr) add[k] = load_pack(residual + i);
    }
    UNROLL for (int k = 0; k < kLinearVectors; ++k) {
      const uint32_t i = begin + static_cast<uint32_t>(k * kLinearThreads + thread_x()) * kSize;
      float value[kSize];
      UNROLL for (int j = 0; j < kSize; ++j) value[j] = to_float(in[k].v[j]) + to_float(shift[k].v[j]);
      if (residual != nullptr) {
        UNROLL for (int j = 0; j < kSize; ++j) value[j] += to_float(add[k].v[j]);
      }
      activate(args.act, value);
      Pack<T> out;
      UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = from_float<T>(value[j]);
      store_pack(y + i, out);
    }
    return;
  }

  const uint32_t end = args.total - begin < kTile ? args.total : begin + kTile;
  for (uint32_t i = begin + static_cast<uint32_t>(thread_x()); i < end; i += kLinearThreads) {
    float value[1] = {to_float(product[i]) + to_float(bias[column_of(i)])};
    if (residual != nullptr) value[0] += to_float(residual[i]);
    activate(args.act, value);
    y[i] = from_float<T>(value[0]);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define LINEAR_KERNEL(T, suffix) \
  KERNEL(linear_##suffix, kLinearThreads, LinearArgs, product, bias, residual, y) { linear<T>(args); }

LINEAR_KERNEL(float, f32)
LINEAR_KERNEL(half_t, f16)
