// Cast between floats, integers and bool. Bound by memory: each element is read once and written once, and a
// work-item issues all its loads before it waits for the first. Casts between float and float16 load and
// store packs. scripts/gpu_bench.py compares the kernels with a copy.
#include "device/platform.h"
#include "operators/elementwise/cast/args.h"

namespace graphopt::hip {

// A value in a type that represents it exactly.
struct Number {
  enum Kind { kReal, kDouble, kInteger, kUnsigned } kind;
  float real;
  double wide;
  int64_t integer;  // for kUnsigned: the bits of the value
};

DEVICE Number real_number(float x) { return {Number::kReal, x, 0, 0}; }
DEVICE Number integer_number(int64_t x) { return {Number::kInteger, 0, 0, x}; }

// Returns the bits of element i, zero-extended to 64 bits.
DEVICE uint64_t bits_at(const void* x, uint32_t i, ElementType type) {
  switch (type) {
    case ElementType::kDouble:
    case ElementType::kInt64:
    case ElementType::kUint64:
      return static_cast<const uint64_t*>(x)[i];
    case ElementType::kFloat:
    case ElementType::kInt32:
    case ElementType::kUint32:
      return static_cast<const uint32_t*>(x)[i];
    case ElementType::kHalf:
    case ElementType::kInt16:
    case ElementType::kUint16:
      return static_cast<const uint16_t*>(x)[i];
    default:
      return static_cast<const uint8_t*>(x)[i];
  }
}

struct Half {  // a wrapper, because half_t is a class on the CPU and bit_cast cannot return it
  half_t value;
};

DEVICE Number read_number(uint64_t bits, ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return real_number(bit_cast<float>(static_cast<uint32_t>(bits)));
    case ElementType::kHalf:
      return real_number(to_float(bit_cast<Half>(static_cast<uint16_t>(bits)).value));
    case ElementType::kDouble:
      return {Number::kDouble, 0, bit_cast<double>(bits), 0};
    case ElementType::kInt32:
      return integer_number(static_cast<int32_t>(bits));
    case ElementType::kInt16:
      return integer_number(static_cast<int16_t>(bits));
    case ElementType::kInt8:
      return integer_number(static_cast<int8_t>(bits));
    case ElementType::kUint64:
      return {Number::kUnsigned, 0, 0, static_cast<int64_t>(bits)};
    default:
      return integer_number(static_cast<int64_t>(bits));
  }
}

template <class Float>
DEVICE Float as_float(const Number& n) {
  switch (n.kind) {
    case Number::kReal:
      return static_cast<Float>(n.real);
    case Number::kDouble:
      return static_cast<Float>(n.wide);
    case Number::kInteger:
      return static_cast<Float>(n.integer);
    default:
      return static_cast<Float>(static_cast<uint64_t>(n.integer));
  }
}

// Converts to integer bits, rounding towards 0. Floats above the range of int64 are converted as uint64.
DEVICE int64_t as_integer(const Number& n) {
  if (n.kind == Number::kInteger || n.kind == Number::kUnsigned) return n.integer;
  const double x = n.kind == Number::kReal ? static_cast<double>(n.real) : n.wide;
  return x >= 9223372036854775808.0 ? static_cast<int64_t>(static_cast<uint64_t>(x))
                                    : static_cast<int64_t>(x);
}

DEVICE bool is_true(const Number& n) {
  return n.kind == Number::kReal ? n.real != 0 : n.kind == Number::kDouble ? n.wide != 0 : n.integer != 0;
}

DEVICE void write_number(void* y, uint32_t i, ElementType type, const Number& n) {
  switch (type) {
    case ElementType::kFloat:
      static_cast<float*>(y)[i] = as_float<float>(n);
      break;
    case ElementType::kHalf:
      static_cast<half_t*>(y)[i] = from_float<half_t>(as_float<float>(n));
      break;
    case ElementType::kDouble:
      static_cast<double*>(y)[i] = as_float<double>(n);
      break;
    case ElementType::kInt32:
    case ElementType::kUint32:
      static_cast<uint32_t*>(y)[i] = static_cast<uint32_t>(as_integer(n));
      break;
    case ElementType::kInt64:
    case ElementType::kUint64:
      static_cast<int64_t*>(y)[i] = as_integer(n);
      break;
    case ElementType::kInt16:
    case ElementType::kUint16:
      static_cast<uint16_t*>(y)[i] = static_cast<uint16_t>(as_integer(n));
      break;
    case ElementType::kBool:
      static_cast<uint8_t*>(y)[i] = is_true(n);
      break;
    default:
      static_cast<uint8_t*>(y)[i] = static_cast<uint8_t>(as_integer(n));
      break;
  }
}

// Four adjacent elements, loaded or stored with one instruction.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};

template <class From, class To>
DEVICE void cast_packs(const CastArgs& args) {
  const From* x = args.x;
  To* y = args.y;
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kCastThreads * kCastPacks);
  Four<From> in[kCastPacks];
  UNROLL for (int k = 0; k < kCastPacks; ++k) {
    const uint32_t i = 4 * (begin + static_cast<uint32_t>(k * kCastThreads + thread_x()));
    if (i + 4 <= args.total) in[k] = *reinterpret_cast<const Four<From>*>(x + i);
  }
  UNROLL for (int k = 0; k < kCastPacks; ++k) {
    const uint32_t i = 4 * (begin + static_cast<uint32_t>(k * kCastThreads + thread_x()));
    if (i + 4 <= args.total) {
      Four<To> out;
      UNROLL for (int j = 0; j < 4; ++j) out.v[j] = from_float<To>(to_float(in[k].v[j]));
      *reinterpret_cast<Four<To>*>(y + i) = out;
    } else {
      NO_UNROLL for (uint32_t j = i; j < args.total; ++j) y[j] = from_float<To>(to_float(x[j]));
    }
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(cast_number, kCastThreads, CastArgs, x, y) {
  const void* x = args.x.address;
  void* y = args.y.address;
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kCastThreads * kCastElements);
  uint64_t bits[kCastElements] = {};
  UNROLL for (int k = 0; k < kCastElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCastThreads + thread_x());
    if (i < args.total) bits[k] = bits_at(x, i, args.from);
  }
  UNROLL for (int k = 0; k < kCastElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCastThreads + thread_x());
    if (i < args.total) write_number(y, i, args.to, read_number(bits[k], args.from));
  }
}

KERNEL_OF(cast_f32_to_f16, (cast_packs<float, half_t>), kCastThreads, CastArgs, x, y)
KERNEL_OF(cast_f16_to_f32, (cast_packs<half_t, float>), kCastThreads, CastArgs, x, y)
