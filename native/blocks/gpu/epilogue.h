// What products do with their sums (product_args.h): alpha, bias, residual, activation, or nothing yet where K is
// split among work-groups.
#pragma once

#include "blocks/gpu/activation.h"
#include "blocks/gpu/product_args.h"
#include "device/platform.h"

namespace graphopt::hip {

// A pack of sums of column n on, inside: element `at` of Y.
template <class T>
DEVICE void write_pack(const Epilogue& e, const T* bias, const T* residual, T* y, size_t at, int n, int32_t N,
                       float (&values)[Pack<T>::kSize]) {
  constexpr int kSize = Pack<T>::kSize;
  const int inside = e.packs != 0 ? kSize : min_int(kSize, N - n);
  const auto read = [&](const T* from, float factor) {
    Pack<T> pack = {};
    if (e.packs != 0) {
      pack = load_pack(from);
    } else {
      UNROLL for (int i = 0; i < kSize; ++i) {
        if (i < inside) pack.v[i] = from[i];
      }
    }
    UNROLL for (int i = 0; i < kSize; ++i) values[i] += factor * to_float(pack.v[i]);
  };
  UNROLL for (int i = 0; i < kSize; ++i) values[i] *= e.alpha;
  if (bias != nullptr) read(bias + n, 1.0f);
  if (residual != nullptr) read(residual + at, e.beta);
  activate(e.act, values);
  Pack<T> out;
  UNROLL for (int i = 0; i < kSize; ++i) out.v[i] = from_float<T>(values[i]);
  if (e.packs != 0) {
    store_pack(y + at, out);
  } else {
    UNROLL for (int i = 0; i < kSize; ++i) {
      if (i < inside) y[at + static_cast<size_t>(i)] = out.v[i];
    }
  }
}

// A pack of sums of column n on, at element `at` of matrix z: to Y with what follows, or, of part `part` of its
// splits, to the partial sums as they are. Args are those of a product: M, N, bias, residual, y, partial, splits,
// epilogue.
template <class T, class Args>
DEVICE void store_sums(const Args& args, uint32_t part, uint32_t z, size_t at, int n,
                       float (&values)[Pack<T>::kSize]) {
  const int32_t N = args.N;
  const Epilogue& epilogue = args.epilogue;
  const size_t matrix = static_cast<size_t>(args.M) * static_cast<size_t>(N);
  if (args.splits.splits.d == 1) {
    const T *bias = args.bias, *residual = args.residual;
    T* const y = args.y;
    write_pack(epilogue, bias, residual, y, z * matrix + at, n, N, values);
    return;
  }
  float* const partial = args.partial;
  float* const to = partial + part * matrix + at;
  if (epilogue.packs != 0) {
    UNROLL for (int i = 0; i < Pack<T>::kSize; i += 4) {
      const Pack<float> four = {{values[i], values[i + 1], values[i + 2], values[i + 3]}};
      store_pack(to + i, four);
    }
    return;
  }
  UNROLL for (int i = 0; i < Pack<T>::kSize; ++i) {
    if (n + i < N) to[i] = values[i];
  }
}

}  // namespace graphopt::hip
