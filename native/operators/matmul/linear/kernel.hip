// The epilogue of Linear[Add][act] after a library's GEMM: y = act(X W + bias[n] + r), n along the last axis.
//
// Memory-bound: X W and R are read once and Y is written once, 16 bytes for each work-item. More bytes would leave too
// few work-groups for the layers of one image or sentence. X W may be stored in Y. Launch:
// operators/matmul/linear/plan.cpp.
#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "operators/matmul/linear/args.h"

namespace graphopt::hip {

template <class T>
DEVICE void linear(const LinearArgs& args) {
  const T *gemm = args.gemm, *bias = args.bias, *residual = args.residual;
  T* y = args.y;
  const Divisor& columns = args.columns;
  constexpr int kSize = Pack<T>::kSize;
  const auto column_of = [&](uint32_t i) { return i - divide(i, columns) * columns.d; };
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kLinearThreads * kSize);

  if (args.vectors != 0) {
    const uint32_t i = begin + static_cast<uint32_t>(thread_x()) * kSize;
    if (i >= args.total) return;
    const Pack<T> in = load_pack(gemm + i), shift = load_pack(bias + column_of(i));
    float value[kSize];
    UNROLL for (int j = 0; j < kSize; ++j) value[j] = to_float(in.v[j]) + to_float(shift.v[j]);
    if (residual != nullptr) {
      const Pack<T> add = load_pack(residual + i);
      UNROLL for (int j = 0; j < kSize; ++j) value[j] += to_float(add.v[j]);
    }
    activate(args.act, value);
    Pack<T> out;
    UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = from_float<T>(value[j]);
    store_pack(y + i, out);
    return;
  }

  const uint32_t end =
      args.total - begin < kLinearThreads * kSize ? args.total : begin + kLinearThreads * kSize;
  for (uint32_t i = begin + static_cast<uint32_t>(thread_x()); i < end; i += kLinearThreads) {
    float value[1] = {to_float(gemm[i]) + to_float(bias[column_of(i)])};
    if (residual != nullptr) value[0] += to_float(residual[i]);
    activate(args.act, value);
    y[i] = from_float<T>(value[0]);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(linear, linear<T>, kLinearThreads, LinearArgs, gemm, bias, residual, y)
