// MatMulNBits: Y = A dequantize(B)^T + bias, for any layout and on any target, on the vector unit: float32, g_idx, targets
// without matrix units, and rows that are not aligned to 16 bytes (see rows.hip and gemm.hip).
//
// A wave computes kRows rows of kColumns columns. Its work-items read 32-bit words of B in turn (4 to 16 elements along
// K, all of one block), dequantize each word once for all rows, and sum in float32. With one row the kernel is
// memory-bound: it reads B once and little else. With many rows, an element of A is loaded once for all columns of the
// wave.
#include "device/platform.h"
#include "operators/matmul/matmul_nbits/args.h"

namespace graphopt::hip {

// Returns the zero point of a block of row n.
template <class T>
DEVICE float point_of(const NBitsArgs& args, int n, int block) {
  const PackedWeights& weights = args.weights;
  if (weights.point_bits == 0) return static_cast<float>(1 << (args.bits - 1));
  const uint8_t* row = args.points;
  row += static_cast<ptrdiff_t>(n) * weights.point_row_bytes;
  if (weights.point_bits > 8) return to_float(reinterpret_cast<const T*>(row)[block]);
  const int bit = block * args.bits;
  return static_cast<float>((row[bit / 8] >> (bit % 8)) & ((1 << args.bits) - 1));
}

template <class T, int kBits, int kRows, int kColumns>
DEVICE void matmul_nbits_of(const NBitsArgs& args) {
  constexpr int kElements = 32 / kBits;  // elements in a word
  const T *a = args.a, *scales = args.scales, *bias = args.bias;
  const uint32_t* b = args.b;
  const int32_t* groups = args.groups;
  T* y = args.y;
  const PackedWeights& layout = args.weights;
  const int K = args.K, N = args.N, M = args.M, words = layout.row_bytes / 4;
  const int first_n = (block_x() * (kNBitsThreads / kWave) + wave_id()) * kColumns;
  const int first_m = block_y() * kRows;
  float sum[kRows][kColumns] = {};
  for (int word = lane_id(); word < words; word += kWave) {
    const int k = word * kElements, most = min_int(kElements, K - k);
    if (most <= 0) break;
    uint32_t bits[kColumns];
    float scale[kColumns], point[kColumns];
    const auto enter = [&](int block) {
      UNROLL for (int c = 0; c < kColumns; ++c) {
        const int n = min_int(first_n + c, N - 1);
        scale[c] = to_float(
            scales[static_cast<size_t>(n) * static_cast<size_t>(layout.blocks) + static_cast<size_t>(block)]);
        point[c] = point_of<T>(args, n, block);
      }
    };
    UNROLL for (int c = 0; c < kColumns; ++c) {
      const int n = min_int(first_n + c, N - 1);
      bits[c] = b[static_cast<size_t>(n) * static_cast<size_t>(words) + static_cast<size_t>(word)];
    }
    enter(static_cast<int>(divide(static_cast<uint32_t>(k), layout.size)));
    NO_UNROLL for (int j = 0; j < most; ++j) {
      if (groups != nullptr) enter(min_int(max_int(groups[k + j], 0), layout.blocks - 1));
      float weight[kColumns];
      UNROLL for (int c = 0; c < kColumns; ++c) {
        weight[c] =
            (static_cast<float>((bits[c] >> (kBits * j)) & ((1u << kBits) - 1)) - point[c]) * scale[c];
      }
      UNROLL for (int r = 0; r < kRows; ++r) {
        const int m = min_int(first_m + r, M - 1);
        const float left =
            to_float(a[static_cast<size_t>(m) * static_cast<size_t>(K) + static_cast<size_t>(k + j)]);
        UNROLL for (int c = 0; c < kColumns; ++c) sum[r][c] += left * weight[c];
      }
    }
  }
  UNROLL for (int r = 0; r < kRows; ++r) {
    UNROLL for (int c = 0; c < kColumns; ++c) {
      float total = sum[r][c];
      UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
      const int m = first_m + r, n = first_n + c;
      if (lane_id() != 0 || m >= M || n >= N) continue;
      if (bias != nullptr) total += to_float(bias[n]);
      y[static_cast<size_t>(m) * static_cast<size_t>(N) + static_cast<size_t>(n)] = from_float<T>(total);
    }
  }
}

template <class T, int kRows, int kColumns>
DEVICE void matmul_nbits(const NBitsArgs& args) {
  if (args.bits == 4) {
    matmul_nbits_of<T, 4, kRows, kColumns>(args);
  } else if (args.bits == 8) {
    matmul_nbits_of<T, 8, kRows, kColumns>(args);
  } else {
    matmul_nbits_of<T, 2, kRows, kColumns>(args);
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(matmul_nbits_few, (matmul_nbits<T, kNBitsFewRows, kNBitsFewColumns>), kNBitsThreads, NBitsArgs,
              a, b, scales, points, groups, bias, y)
FLOAT_KERNELS(matmul_nbits_many, (matmul_nbits<T, kNBitsManyRows, kNBitsManyColumns>), kNBitsThreads,
              NBitsArgs, a, b, scales, points, groups, bias, y)
