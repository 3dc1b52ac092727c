// Y = act(alpha A B + bias + beta R) for batches of matrices: products of any shape, with what follows them,
// where the vendor's library is not installed.
//
// 2 M N K FLOPs against (M K + K N + M N) elements: bound by arithmetic from about 128 rows on. A step of
// both operands is loaded 16 bytes at a time, whichever way a matrix lies in memory; where its rows do not
// begin at multiples of 16 bytes, an element at a time. float16 is multiplied on the matrix units (hgemm.h),
// float32 there on CDNA (sgemm.h), sums are float32. Where there are fewer work-groups than the device needs,
// K is split among more, and gemm_sum_* adds their sums. scripts/gpu_bench.py sets it beside cuBLAS. Launch:
// operators/matmul/plan.cpp.
#include "blocks/gpu/activation.h"
#include "blocks/gpu/hgemm.h"
#include "blocks/gpu/product_tiles.h"
#include "blocks/gpu/walk.h"
#include "device/platform.h"
#include "operators/matmul/args.h"

namespace graphopt::hip {

// A pack of sums of column n on, inside: element `at` of Y.
template <class T>
DEVICE void write(const Epilogue& e, const T* bias, const T* residual, T* y, size_t at, int n, int32_t N,
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

// block_z counts the splits of the matrices of Y. Where there is more than one, the sums go to `partial` as
// they are.
template <class Product, class T>
DEVICE void gemm(const GemmArgs& args, typename Product::Lds& lds) {
  const T *a = args.a, *b = args.b, *bias = args.bias, *residual = args.residual;
  T* y = args.y;
  const int32_t M = args.M, N = args.N;
  const OperandLayout &a_layout = args.a_layout, &b_layout = args.b_layout;
  const Splits& splits = args.splits;
  const Epilogue& epilogue = args.epilogue;
  const auto part = static_cast<uint32_t>(block_z()), z = divide(part, splits.splits);
  const int first_k = static_cast<int>(part - z * splits.splits.d) * splits.depth;
  const int depth = min_int(splits.depth, args.K - first_k);
  const int first_m = block_y() * Product::kM, first_n = block_x() * Product::kN;
  const auto offset = [&](const OperandLayout& layout, int line) {
    return static_cast<ptrdiff_t>(line) * layout.line + static_cast<ptrdiff_t>(first_k) * layout.k;
  };
  OperandPart<T, Product::kM, Product::kDepth, Product::kThreads, Product::kByLine> left(
      a + offset_of(z, args.batch, args.a_batch) + offset(a_layout, first_m), a_layout, M - first_m, depth);
  OperandPart<T, Product::kN, Product::kDepth, Product::kThreads, Product::kByLine> right(
      b + offset_of(z, args.batch, args.b_batch) + offset(b_layout, first_n), b_layout, N - first_n, depth);
  Product product;
  product.run(
      lds, depth,
      [&](int k, int) {
        left.load(k);
        right.load(k);
      },
      [&](int buffer) {
        left.store(lds.a[buffer]);
        right.store(lds.b[buffer]);
      });
  const size_t matrix = static_cast<size_t>(M) * static_cast<size_t>(N);
  product.template each_pack<Pack<T>::kSize>(lds, [&](int m, int n, auto& values) {
    m += first_m;
    n += first_n;
    if (m >= M || n >= N) return;
    const size_t at = static_cast<size_t>(m) * static_cast<size_t>(N) + static_cast<size_t>(n);
    if (splits.splits.d == 1) {
      write(epilogue, bias, residual, y, z * matrix + at, n, N, values);
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
  });
}

// What follows the splits.
template <class T>
DEVICE void gemm_sum(const GemmSumArgs& args) {
  const float* partial = args.partial;
  const T *bias = args.bias, *residual = args.residual;
  T* y = args.y;
  const int32_t N = args.N;
  const Divisor &across = args.across, &rows = args.rows;
  const Epilogue& epilogue = args.epilogue;
  constexpr int kSize = Pack<T>::kSize;
  const uint32_t i = static_cast<uint32_t>(block_x()) * kGemmSumThreads + static_cast<uint32_t>(thread_x());
  if (i >= args.packs) return;
  const uint32_t row = divide(i, across), matrix = divide(row, rows);
  const auto n = static_cast<int>((i - row * across.d) * kSize);
  const size_t step = static_cast<size_t>(rows.d) * static_cast<size_t>(N);
  const float* from = partial + matrix * static_cast<size_t>(args.splits) * step +
                      (row - matrix * rows.d) * static_cast<size_t>(N) + static_cast<size_t>(n);
  float values[kSize] = {};
  for (int s = 0; s < args.splits; ++s) {
    if (epilogue.packs != 0) {
      UNROLL for (int j = 0; j < kSize; j += 4) {
        const Pack<float> four = load_pack(from + j);
        UNROLL for (int e = 0; e < 4; ++e) values[j + e] += four.v[e];
      }
    } else {
      UNROLL for (int j = 0; j < kSize; ++j) {
        if (n + j < N) values[j] += from[j];
      }
    }
    from += step;
  }
  write(epilogue, bias, residual, y, row * static_cast<size_t>(N) + static_cast<size_t>(n), n, N, values);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define GEMM_KERNEL(T, Product, suffix)                                                  \
  KERNEL(gemm_##suffix, Product::kThreads, GemmArgs, a, b, bias, residual, y, partial) { \
    SHARED(Product::Lds, lds);                                                           \
    gemm<Product, T>(args, lds);                                                         \
  }

FOR_PRODUCT_TILES(GEMM_KERNEL)

#define GEMM_SUM_KERNEL(T, suffix) \
  KERNEL(gemm_sum_##suffix, kGemmSumThreads, GemmSumArgs, partial, bias, residual, y) { gemm_sum<T>(args); }

GEMM_SUM_KERNEL(float, f32)
GEMM_SUM_KERNEL(half_t, f16)
