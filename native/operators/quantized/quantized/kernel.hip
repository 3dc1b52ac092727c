// Functions of quantized 8-bit values, computed in float and rounded once. Functions of one value have 256 results,
// which are equal to the lookup tables of ONNX Runtime's CPU kernels.
//
// Memory-bound: a few FLOPs for each byte read and written. A work-item processes 16 elements.
#include "blocks/gpu/activation.h"
#include "blocks/gpu/operands.h"
#include "blocks/gpu/quantized.h"
#include "device/platform.h"
#include "operators/quantized/quantized/args.h"

namespace graphopt::hip {

DEVICE float zero_point(const uint8_t* zero, bool is_signed) {
  return zero == nullptr ? 0.0f : static_cast<float>(byte_value(zero[0], is_signed));
}

// The scales and zero points, which are the same for all elements.
struct Quantization {
  bool is_signed;
  float a_scale = 1, a_zero = 0, b_scale = 1, b_zero = 0, y_scale, y_zero;

  DEVICE explicit Quantization(const QuantizedArgs& args) : is_signed(args.is_signed != 0) {
    const float *a = args.a_scale, *b = args.b_scale, *y = args.y_scale;
    a_scale = a[0];
    a_zero = zero_point(args.a_zero, is_signed);
    if (b != nullptr) b_scale = b[0];
    b_zero = zero_point(args.b_zero, is_signed);
    y_scale = y[0];
    y_zero = zero_point(args.y_zero, is_signed);
  }
};

// y = op(a, b). All elements have the same operator, so a work-item branches once.
template <int kCount>
DEVICE void compute(const QuantizedArgs& args, const Quantization& q, const uint8_t (&a)[kCount],
                    const uint8_t (&b)[kCount], uint8_t (&y)[kCount]) {
  const auto number = [&](uint8_t x) { return static_cast<float>(byte_value(x, q.is_signed)); };
  if (args.op == QuantizedOp::kAdd) {
    const float left = q.a_scale / q.y_scale, right = q.b_scale / q.y_scale;
    const float fixed = q.y_zero - (left * q.a_zero + right * q.b_zero);
    const float least = args.act.kind == ActivationKind::kRelu ? q.y_zero : -infinity();
    UNROLL for (int j = 0; j < kCount; ++j) {
      const float sum =
          fused_multiply_add(number(a[j]), left, fused_multiply_add(number(b[j]), right, fixed));
      y[j] = saturate_to_byte(max_float(round_to_even(sum), least), q.is_signed);
    }
    return;
  }
  if (args.op == QuantizedOp::kMul) {
    const float scale = q.a_scale * q.b_scale / q.y_scale;
    UNROLL for (int j = 0; j < kCount; ++j) {
      const float product = (number(a[j]) - q.a_zero) * (number(b[j]) - q.b_zero);
      y[j] = saturate_to_byte(round_to_even(product * scale + q.y_zero), q.is_signed);
    }
    return;
  }
  float x[kCount];
  UNROLL for (int j = 0; j < kCount; ++j) x[j] = q.a_scale * (number(a[j]) - q.a_zero);
  activate(args.act, x);
  UNROLL for (int j = 0; j < kCount; ++j) {
    y[j] = saturate_to_byte(round_to_even(x[j] / q.y_scale) + q.y_zero, q.is_signed);
  }
}

// The line of x [lines / inner, size, inner] that kQuantizedLineItems work-items share, and this work-item's index
// among them (`item`). `exists` is false for work-items without a line. They still take part in the sums, because the
// shuffles need all work-items.
struct SharedLine {
  uint32_t line, first, step, item;
  bool exists;

  template <class Args>
  DEVICE explicit SharedLine(const Args& args) {
    const uint32_t i = work_item(kQuantizedThreads);
    line = i / kQuantizedLineItems;
    item = i % kQuantizedLineItems;
    exists = line < args.lines;
    if (!exists) line = 0;
    const uint32_t outer = divide(line, args.inner);
    step = args.inner.d;
    first = outer * args.size * step + (line - outer * step);
  }
  DEVICE uint32_t at(uint32_t i) const { return first + i * step; }
};

// Converts sums of x minus its zero point to quantized means.
struct QuantizedMean {
  float scale, zero;
  bool is_signed;

  DEVICE explicit QuantizedMean(const QuantizedMeanArgs& args) : is_signed(args.is_signed != 0) {
    const float *x_scale = args.x_scale, *y_scale = args.y_scale;
    scale = x_scale[0] / (y_scale[0] * static_cast<float>(args.size));
    zero = zero_point(args.y_zero, is_signed);
  }
  DEVICE uint8_t operator()(int32_t sum) const {
    return saturate_to_byte(round_to_even(static_cast<float>(sum) * scale) + zero, is_signed);
  }
};

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(quantized, kQuantizedThreads, QuantizedArgs, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero,
       table, y) {
  if (args.op == QuantizedOp::kTable) {
    const uint8_t* table = args.table;
    map_operands<kQuantizedThreads, uint8_t, uint8_t>(
        args, [&](uint32_t, const auto& x, const auto&, auto& results) {
          constexpr int kCount = sizeof(results);
          UNROLL for (int j = 0; j < kCount; ++j) results[j] = table[x[j]];
        });
    return;
  }
  const Quantization q(args);
  map_operands<kQuantizedThreads, uint8_t, uint8_t>(
      args, [&](uint32_t, const auto& left, const auto& right, auto& results) {
        compute(args, q, left, right, results);
      });
}

// Sums are int32, which is exact for lines of up to 2^23 elements.
KERNEL(quantized_mean, kQuantizedThreads, QuantizedMeanArgs, x, x_scale, x_zero, y_scale, y_zero, y) {
  const uint8_t *x = args.x, *x_zero = args.x_zero;
  uint8_t* y = args.y;
  const bool is_signed = args.is_signed != 0;
  const SharedLine shared(args);
  int32_t sum = 0;
  if (shared.exists) {
    const int32_t zero = x_zero == nullptr ? 0 : byte_value(x_zero[0], is_signed);
    for (uint32_t i = shared.item; i < args.size; i += kQuantizedLineItems) {
      sum += byte_value(x[shared.at(i)], is_signed) - zero;
    }
  }
  UNROLL for (int mask = kQuantizedLineItems / 2; mask > 0; mask /= 2) {
    sum += static_cast<int32_t>(shuffle_xor(static_cast<uint32_t>(sum), mask));
  }
  if (shared.exists && shared.item == 0) y[shared.line] = QuantizedMean(args)(sum);
}

// Lines that are not contiguous: a word holds one element of each of kQuantizedAdjacent adjacent lines. A work-item
// reads words and keeps one sum for each line, so that the accesses of a wave cover whole sectors of memory.
KERNEL(quantized_mean_adjacent, kQuantizedThreads, QuantizedMeanArgs, x, x_scale, x_zero, y_scale, y_zero,
       y) {
  constexpr uint32_t kParts = kQuantizedLineItems / kQuantizedWords;
  const uint8_t *x = args.x, *x_zero = args.x_zero;
  uint32_t* y = args.y;
  const bool is_signed = args.is_signed != 0;
  const uint32_t i = work_item(kQuantizedThreads), item = i % kQuantizedLineItems;
  const uint32_t word = i / kQuantizedLineItems * kQuantizedWords + item % kQuantizedWords;
  const uint32_t line = word * kQuantizedAdjacent;
  const bool exists = line < args.lines;
  int32_t sums[kQuantizedAdjacent] = {};
  if (exists) {
    const uint32_t outer = divide(line, args.inner), inner = args.inner.d;
    x += outer * static_cast<size_t>(args.size) * inner + (line - outer * inner);
    const int32_t zero = x_zero == nullptr ? 0 : byte_value(x_zero[0], is_signed);
    UNROLL_A_LITTLE for (uint32_t k = item / kQuantizedWords; k < args.size; k += kParts) {
      const uint32_t bytes = *reinterpret_cast<const uint32_t*>(x + k * static_cast<size_t>(inner));
      UNROLL for (int j = 0; j < kQuantizedAdjacent; ++j) {
        sums[j] += byte_value(static_cast<uint8_t>(bytes >> 8 * j), is_signed) - zero;
      }
    }
  }
  uint32_t means = 0;
  UNROLL for (int j = 0; j < kQuantizedAdjacent; ++j) {
    UNROLL for (int mask = kQuantizedWords; mask < kQuantizedLineItems; mask *= 2) {
      sums[j] += static_cast<int32_t>(shuffle_xor(static_cast<uint32_t>(sums[j]), mask));
    }
  }
  if (!exists || item >= kQuantizedWords) return;
  const QuantizedMean mean(args);
  UNROLL for (int j = 0; j < kQuantizedAdjacent; ++j) {
    means |= static_cast<uint32_t>(mean(sums[j])) << 8 * j;
  }
  y[word] = means;
}

// Computes a table of e^x in double: x = k ln 2 + r, and the series of e^r up to r^13.
KERNEL(quantized_exponentials, kExponentials, ExponentialsArgs, x_scale, table) {
  const float* x_scale = args.x_scale;
  float* table = args.table;
  const double scale = static_cast<double>(x_scale[0]);
  const double x = (args.largest / scale - static_cast<double>(thread_x())) * scale;
  if (!(x > -104 && x < 89)) {  // the result underflows, or the scale is not valid
    table[thread_x()] = 0;
    return;
  }
  const auto k = static_cast<int32_t>(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
  const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
  double series = 1;
  UNROLL for (int n = 13; n > 0; --n) series = 1 + series * r / n;
  const auto power = bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
  table[thread_x()] = static_cast<float>(series * power);
}

KERNEL(quantized_softmax, kQuantizedThreads, QuantizedSoftmaxArgs, x, table, y_scale, y_zero, y) {
  const uint8_t *x = args.x, *y_zero = args.y_zero;
  const float *table = args.table, *y_scale = args.y_scale;
  uint8_t* y = args.y;
  const bool is_signed = args.is_signed != 0;
  const SharedLine shared(args);
  const auto number = [&](uint32_t i) {
    return static_cast<uint32_t>(byte_value(x[shared.at(i)], is_signed) + 128);
  };
  uint32_t most = 0;
  if (shared.exists) {
    for (uint32_t i = shared.item; i < args.size; i += kQuantizedLineItems) {
      const uint32_t v = number(i);
      most = v > most ? v : most;
    }
  }
  UNROLL for (int mask = kQuantizedLineItems / 2; mask > 0; mask /= 2) {
    const uint32_t other = shuffle_xor(most, mask);
    most = other > most ? other : most;
  }
  float sum = 0;
  if (shared.exists) {
    for (uint32_t i = shared.item; i < args.size; i += kQuantizedLineItems) sum += table[most - number(i)];
  }
  UNROLL for (int mask = kQuantizedLineItems / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (!shared.exists) return;
  const float inverse = 1.0f / y_scale[0];
  // ONNX Runtime's CPU kernel also rounds 1 / y_scale down.
  const float steps =
      inverse > 0 && inverse < 8388608.0f ? static_cast<float>(static_cast<int32_t>(inverse)) : inverse;
  const float zero = zero_point(y_zero, is_signed);
  for (uint32_t i = shared.item; i < args.size; i += kQuantizedLineItems) {
    const float part = table[most - number(i)] * steps / sum;
    y[shared.at(i)] = saturate_to_byte(round_to_even(part) + zero, is_signed);
  }
}
