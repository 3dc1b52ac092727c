// MatMulNBits: Y = A dequantize(B)^T + bias on the vector unit, for float32, g_idx, targets without matrix units, and
// rows that are not aligned to 16 bytes. In other cases rows.hip, gemm.hip or warpgroup.hip runs. For many rows,
// dequantize_nbits_* only dequantizes B, and a GEMM kernel multiplies the result (op.cpp).
//
// A wave computes kRows rows of kColumns columns. Adjacent work-items read adjacent 16 bytes of B, or 4 bytes if rows
// are not aligned. They dequantize each element once for all rows, and sum in float32. With one row the kernel is
// memory-bound: most of its memory traffic is reading B once. With many rows, an element of A is loaded once for all
// columns of the wave.
#include "device/platform.h"
#include "operators/matmul/matmul_nbits/args.h"

namespace graphopt::hip {

// Returns the zero point of a block of row n.
template <class T>
DEVICE float zero_point_of(const NBitsArgs& args, int n, int block) {
  const PackedWeights& weights = args.weights;
  if (weights.zero_point_bits == 0) return static_cast<float>(1 << (args.bits - 1));
  const uint8_t* row = args.zero_points;
  row += static_cast<ptrdiff_t>(n) * weights.zero_point_row_bytes;
  if (weights.zero_point_bits > 8) return to_float(reinterpret_cast<const T*>(row)[block]);
  const int bit = block * args.bits;
  return static_cast<float>((row[bit / 8] >> (bit % 8)) & ((1 << args.bits) - 1));
}

// kWords words of a row of B. All elements of a word are in one block.
template <int kWords>
struct alignas(4 * kWords) NBitsWords {
  uint32_t v[kWords];
};
template <class T>
struct alignas(4 * sizeof(T)) FourElements {
  T v[4];
};

// The columns of a wave from `first` on. Columns beyond N repeat the last one.
template <class T, int kColumns>
struct NBitsColumns {
  const NBitsArgs& args;
  int first;
  float scale[kColumns], zero_point[kColumns];

  DEVICE int column(int c) const { return min_int(first + c, args.N - 1); }
  // Loads the scales and zero points of a block.
  DEVICE void enter(int block) {
    const T* scales = args.scales;
    UNROLL for (int c = 0; c < kColumns; ++c) {
      const int n = column(c);
      scale[c] = to_float(scales[static_cast<size_t>(n) * static_cast<size_t>(args.weights.blocks) +
                                 static_cast<size_t>(block)]);
      zero_point[c] = zero_point_of<T>(args, n, block);
    }
  }
  // Returns the weight whose bits are the low bits of `bits`.
  template <int kBits>
  DEVICE float weight(int c, uint32_t bits) const {
    return (static_cast<float>(bits & ((1u << kBits) - 1)) - zero_point[c]) * scale[c];
  }
};

// kWords: 4 for rows of packs without g_idx, where K is a multiple of 4 and A is aligned to four elements; 1 otherwise.
template <class T, int kBits, int kWords, int kRows, int kColumns>
DEVICE void matmul_nbits_of(const NBitsArgs& args) {
  using Words = NBitsWords<kWords>;
  constexpr int kElements = 32 / kBits;  // elements in a word
  const T *a = args.a, *bias = args.bias;
  const Words* b = args.b;
  const int32_t* g_idx = args.g_idx;
  T* y = args.y;
  const int K = args.K, packs = args.weights.row_bytes / static_cast<int>(sizeof(Words));
  const int first_n = (block_x() * (kNBitsThreads / kWave) + wave_id()) * kColumns;
  const int first_m = block_y() * kRows;
  NBitsColumns<T, kColumns> columns = {args, first_n, {}, {}};
  a += static_cast<size_t>(first_m) * static_cast<size_t>(K);
  const int last_row = args.M - 1 - first_m;
  // 32-bit offsets from the first row take fewer registers than addresses.
  const auto at = [&](int r, int k) { return static_cast<uint32_t>(min_int(r, last_row) * K + k); };
  float sum[kRows][kColumns] = {};
  for (int pack = lane_id(); pack < packs; pack += kWave) {
    Words bits[kColumns];
    UNROLL for (int c = 0; c < kColumns; ++c) {
      bits[c] =
          b[static_cast<size_t>(columns.column(c)) * static_cast<size_t>(packs) + static_cast<size_t>(pack)];
    }
    int current = -1;
    UNROLL for (int word = 0; word < kWords; ++word) {
      const int k = (pack * kWords + word) * kElements, most = min_int(kElements, K - k);
      if (most <= 0) break;
      const int block = static_cast<int>(divide(static_cast<uint32_t>(k), args.weights.size));
      if (kWords == 1 || block != current) columns.enter(block);
      current = block;
      if constexpr (kWords > 1) {
        NO_UNROLL for (int j = 0; j < most; j += 4) {
          float weights[4][kColumns];
          UNROLL for (int i = 0; i < 4; ++i) {
            UNROLL for (int c = 0; c < kColumns; ++c) {
              weights[i][c] = columns.template weight<kBits>(c, bits[c].v[word] >> (kBits * (j + i)));
            }
          }
          UNROLL for (int r = 0; r < kRows; ++r) {
            const auto left = *reinterpret_cast<const FourElements<T>*>(a + at(r, k + j));
            UNROLL for (int i = 0; i < 4; ++i) {
              UNROLL for (int c = 0; c < kColumns; ++c) sum[r][c] += to_float(left.v[i]) * weights[i][c];
            }
          }
        }
      } else {
        NO_UNROLL for (int j = 0; j < most; ++j) {
          if (g_idx != nullptr) columns.enter(min_int(max_int(g_idx[k + j], 0), args.weights.blocks - 1));
          float weights[kColumns];
          UNROLL for (int c = 0; c < kColumns; ++c) {
            weights[c] = columns.template weight<kBits>(c, bits[c].v[0] >> (kBits * j));
          }
          UNROLL for (int r = 0; r < kRows; ++r) {
            const float left = to_float(a[at(r, k + j)]);
            UNROLL for (int c = 0; c < kColumns; ++c) sum[r][c] += left * weights[c];
          }
        }
      }
    }
  }
  UNROLL for (int r = 0; r < kRows; ++r) {
    UNROLL for (int c = 0; c < kColumns; ++c) {
      float total = sum[r][c];
      UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
      const int m = first_m + r, n = first_n + c;
      if (lane_id() != 0 || m >= args.M || n >= args.N) continue;
      if (bias != nullptr) total += to_float(bias[n]);
      y[static_cast<size_t>(m) * static_cast<size_t>(args.N) + static_cast<size_t>(n)] = from_float<T>(total);
    }
  }
}

template <class T, int kWords, int kRows, int kColumns>
DEVICE void matmul_nbits(const NBitsArgs& args) {
  if (args.bits == 4) {
    matmul_nbits_of<T, 4, kWords, kRows, kColumns>(args);
  } else if (args.bits == 8) {
    matmul_nbits_of<T, 8, kWords, kRows, kColumns>(args);
  } else {
    matmul_nbits_of<T, 2, kWords, kRows, kColumns>(args);
  }
}

// A work-group dequantizes a row of B. Adjacent work-items write adjacent 16 bytes.
template <class T>
DEVICE void dequantize_nbits(const NBitsArgs& args) {
  constexpr int kSize = Pack<T>::kSize;
  const int n = block_x(), K = args.K;
  const uint8_t* b = args.b;
  const int32_t* g_idx = args.g_idx;
  T* y = args.y;
  const uint8_t* const row = b + static_cast<ptrdiff_t>(n) * args.weights.row_bytes;
  y += static_cast<ptrdiff_t>(n) * K;
  const auto mask = (1u << args.bits) - 1;
  for (int first = thread_x() * kSize; first < K; first += kNBitsThreads * kSize) {
    const int count = min_int(kSize, K - first);
    NBitsColumns<T, 1> column = {args, n, {}, {}};
    column.enter(static_cast<int>(divide(static_cast<uint32_t>(first), args.weights.size)));
    Pack<T> out = {};
    UNROLL for (int j = 0; j < kSize; ++j) {
      if (j >= count) break;
      const int k = first + j, bit = k % (8 / args.bits) * args.bits;
      if (g_idx != nullptr) column.enter(min_int(max_int(g_idx[k], 0), args.weights.blocks - 1));
      const uint32_t code = static_cast<uint32_t>(row[k / (8 / args.bits)]) >> bit & mask;
      out.v[j] = from_float<T>((static_cast<float>(code) - column.zero_point[0]) * column.scale[0]);
    }
    if (args.packs != 0) {
      store_pack(y + first, out);
    } else {
      UNROLL for (int j = 0; j < kSize; ++j) {
        if (j < count) y[first + j] = out.v[j];
      }
    }
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(matmul_nbits_few, (matmul_nbits<T, 1, kNBitsFewRows, kNBitsFewColumns>), kNBitsThreads,
              NBitsArgs, a, b, scales, zero_points, g_idx, bias, y)
FLOAT_KERNELS(matmul_nbits_many, (matmul_nbits<T, 1, kNBitsManyRows, kNBitsManyColumns>), kNBitsThreads,
              NBitsArgs, a, b, scales, zero_points, g_idx, bias, y)
FLOAT_KERNELS(matmul_nbits_packs_few, (matmul_nbits<T, 4, kNBitsFewRows, kNBitsFewColumns>), kNBitsThreads,
              NBitsArgs, a, b, scales, zero_points, g_idx, bias, y)
FLOAT_KERNELS(matmul_nbits_packs_many, (matmul_nbits<T, 4, kNBitsManyRows, kNBitsManyColumns>), kNBitsThreads,
              NBitsArgs, a, b, scales, zero_points, g_idx, bias, y)
FLOAT_KERNELS(dequantize_nbits, dequantize_nbits<T>, kNBitsThreads, NBitsArgs, a, b, scales, zero_points,
              g_idx, bias, y)
