// Prepares the operands of int8 GEMMs (gemm.hip): copies and sums of their lines, and the operands of the epilogue.
//
// Memory-bound: each byte is read once and written once. Constant weights are copied once for all runs.
#include "blocks/gpu/quantized.h"
#include "device/platform.h"
#include "operators/matmul/integer_matmul/args.h"

namespace graphopt::hip {

constexpr int kIntegerLineBytes = 64;  // bytes of each line that a work-group copies at a time

struct IntegerLinesLds {
  alignas(16) uint8_t bytes[kIntegerTile][kIntegerLineBytes + 16];
};

DEVICE int32_t sum_of_bytes(uint32_t x) {
  int32_t sum = 0;
  UNROLL for (int i = 0; i < 4; ++i) sum += static_cast<int8_t>(x >> 8 * i);
  return sum;
}

// Returns the zero point of signed elements, or of unsigned elements minus 128.
DEVICE int32_t signed_zero(const uint8_t* zero, int i, bool is_signed) {
  const int32_t value = zero == nullptr ? 0 : byte_value(zero[i], is_signed);
  return is_signed ? value : value - 128;
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(integer_lines, kIntegerThreads, IntegerLinesArgs, x, packed, sums) {
  SHARED(lds, IntegerLinesLds);
  const uint8_t* x = args.x;
  uint8_t* packed = args.packed;
  int32_t* sums = args.sums;
  const auto group = static_cast<uint32_t>(block_x()), matrix = divide(group, args.groups);
  const int first = static_cast<int>(group - matrix * args.groups.d) * kIntegerTile;
  x += matrix * static_cast<size_t>(args.matrix);
  constexpr int kEach = 16, kAcross = kIntegerLineBytes / kEach;
  static_assert(kIntegerThreads == kIntegerTile * kAcross, "16 bytes of each step for every work-item");
  // Adjacent work-items read adjacent bytes.
  const bool along_k = args.k == 1;
  const int line = thread_x() / kAcross, column = thread_x() % kAcross * kEach;
  const bool exists = first + line < args.lines;
  const size_t row = matrix * static_cast<size_t>(args.lines) + static_cast<size_t>(first + line);
  int32_t sum = 0;
  for (int k = 0; k < args.row; k += kIntegerLineBytes) {
    barrier();
    UNROLL for (int i = 0; i < kEach; ++i) {
      const int at = i * kIntegerThreads + thread_x();
      const int from_line = along_k ? at / kIntegerLineBytes : at % kIntegerTile;
      const int from_k = along_k ? at % kIntegerLineBytes : at / kIntegerTile;
      const uint32_t tap = divide(static_cast<uint32_t>(k + from_k), args.tap_bytes);
      const int at_k = k + from_k - static_cast<int>(tap * args.tap_bytes.d);
      const bool inside = first + from_line < args.lines && at_k < args.K && k + from_k < args.row;
      uint8_t byte = 0;
      if (inside) {
        byte =
            x[static_cast<size_t>(first + from_line) * static_cast<size_t>(args.line) +
              static_cast<size_t>(at_k) * static_cast<size_t>(args.k) + tap * static_cast<size_t>(args.tap)];
        byte = static_cast<uint8_t>(byte ^ args.inverted_bits);
      }
      lds.bytes[from_line][from_k] = byte;
    }
    barrier();
    const auto bytes = load_pack(reinterpret_cast<const uint32_t*>(&lds.bytes[line][column]));
    UNROLL for (int i = 0; i < 4; ++i) sum += sum_of_bytes(bytes.v[i]);
    if (packed != nullptr && exists && k + column < args.row) {
      store_pack(reinterpret_cast<uint32_t*>(packed + row * static_cast<size_t>(args.row) + (k + column)),
                 bytes);
    }
  }
  if (sums == nullptr) return;
  UNROLL for (int mask = kAcross / 2; mask > 0; mask /= 2) {
    sum += static_cast<int32_t>(shuffle_xor(static_cast<uint32_t>(sum), mask));
  }
  if (exists && column == 0) sums[row] = sum;
}

KERNEL(integer_blocks, kIntegerThreads, IntegerBlocksArgs, x, columns, packed) {
  const uint8_t* x = args.x;
  const IntegerColumnsHeader* header = args.columns;
  uint32_t* packed = args.packed;
  const uint32_t i = work_item(kIntegerThreads);
  if (i >= args.total) return;
  const uint32_t row = divide(i, args.across), image = divide(row, args.down);
  const auto first_w = static_cast<int>(i - row * args.across.d) * args.stride_w;
  const auto first_h = static_cast<int>(row - image * args.down.d) * args.stride_h;
  x += image * static_cast<size_t>(args.x_image);
  const uint32_t zero = header->outside[0];
  Pack<uint32_t> block = {{zero, zero, zero, zero}};
  int c = 0, right = 0, below = 0;  // of the byte in its block, equal in all work-items
  UNROLL for (int e = 0; e < 16; ++e) {
    const int h = first_h + below, w = first_w + right;
    if (below < args.stride_h && h < args.H && w < args.W) {
      const uint32_t byte = x[h * args.x_row + w * args.x_column + c * args.x_channel];
      block.v[e / 4] = (block.v[e / 4] & ~(0xffu << 8 * (e % 4))) | byte << 8 * (e % 4);
    }
    if (++c < args.C) continue;
    c = 0;
    if (++right < args.stride_w) continue;
    right = 0;
    ++below;
  }
  store_pack(packed + static_cast<size_t>(i) * 4, block);
}

KERNEL(integer_columns, kIntegerThreads, IntegerColumnsArgs, sums, bias, left_zero, right_zero, left_scale,
       right_scale, y_scale, y_zero, columns) {
  const int32_t *sums = args.sums, *integer_bias = args.bias;
  const float *bias = args.bias, *left_scale = args.left_scale, *right_scale = args.right_scale,
              *y_scale = args.y_scale;
  const uint8_t *left_zero = args.left_zero, *right_zero = args.right_zero, *y_zero = args.y_zero;
  IntegerColumnsHeader* header = args.columns;
  const uint32_t i = work_item(kIntegerThreads);
  if (i >= args.total) return;
  const int32_t zero_of_left = signed_zero(left_zero, 0, args.left_signed != 0);
  if (i == 0) {
    const uint32_t outside = left_zero == nullptr ? 0 : left_zero[0] * 0x01010101u;
    const float scale_of_y = y_scale == nullptr ? 1.0f : y_scale[0];
    const float zero_of_y =
        y_zero == nullptr ? 0.0f : static_cast<float>(byte_value(y_zero[0], args.y_signed != 0));
    *header = {{outside, outside, outside, outside}, scale_of_y, zero_of_y, {0, 0}};
  }
  const uint32_t matrix = divide(i, args.padded);
  const auto n = static_cast<int>(i - matrix * args.padded.d), padded = static_cast<int>(args.padded.d);
  float scale = 0, shift = 0;
  int32_t offset = 0, zero = 0, unconverted = 0;
  if (n < args.N) {
    zero = signed_zero(right_zero, n * args.right_zero_step, args.right_signed != 0);
    const int32_t sum = sums[matrix * static_cast<size_t>(args.N) + static_cast<size_t>(n)];
    // Unsigned arithmetic, because the sums wrap around.
    // The sum of the right column without its zero point, negated.
    const uint32_t right = static_cast<uint32_t>(args.K * zero) - static_cast<uint32_t>(sum);
    offset = static_cast<int32_t>(static_cast<uint32_t>(zero_of_left) * right);
    unconverted = args.left_signed != 0
                      ? offset
                      : static_cast<int32_t>(static_cast<uint32_t>(zero_of_left + 128) * right);
    const int at = n * args.bias_step;
    if (bias != nullptr && args.is_float_bias != 0) shift = bias[at];
    if (bias != nullptr && args.is_float_bias == 0) {
      offset += integer_bias[at];
      unconverted += integer_bias[at];
    }
    scale = args.alpha;
    if (left_scale != nullptr) scale *= left_scale[0];
    if (right_scale != nullptr) scale *= right_scale[n * args.right_scale_step];
    if (y_scale != nullptr && args.has_activation == 0) scale /= y_scale[0];
  }
  auto* const words = reinterpret_cast<uint32_t*>(header + 1) +
                      static_cast<size_t>(matrix) * kIntegerArrays * args.padded.d + n;
  words[0] = bit_cast<uint32_t>(scale);
  words[padded] = bit_cast<uint32_t>(shift);
  words[2 * padded] = static_cast<uint32_t>(offset);
  words[3 * padded] = static_cast<uint32_t>(zero);
  words[4 * padded] = static_cast<uint32_t>(unconverted);
}
