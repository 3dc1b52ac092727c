// Cast between floats, whole numbers and bool. Bound by memory: each element is read once and written once.
// scripts/gpu_bench.py sets it beside a copy.
#include "device/platform.h"
#include "operators/cast/args.h"

namespace graphopt::hip {

// In the type that holds it exactly.
struct Number {
  enum Kind { kReal, kDouble, kWhole, kUnsigned } kind;
  float real;
  double wide;
  int64_t whole;  // the bits of an unsigned one
};

DEVICE Number real_number(float x) { return {Number::kReal, x, 0, 0}; }
DEVICE Number whole_number(int64_t x) { return {Number::kWhole, 0, 0, x}; }

template <class T>
DEVICE T number_at(const void* x, uint32_t i) {
  return static_cast<const T*>(x)[i];
}

DEVICE Number read_number(const void* x, uint32_t i, ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return real_number(number_at<float>(x, i));
    case ElementType::kHalf:
      return real_number(to_float(number_at<half_t>(x, i)));
    case ElementType::kDouble:
      return {Number::kDouble, 0, number_at<double>(x, i), 0};
    case ElementType::kInt32:
      return whole_number(number_at<int32_t>(x, i));
    case ElementType::kUint32:
      return whole_number(number_at<uint32_t>(x, i));
    case ElementType::kInt64:
      return whole_number(number_at<int64_t>(x, i));
    case ElementType::kUint64:
      return {Number::kUnsigned, 0, 0, static_cast<int64_t>(number_at<uint64_t>(x, i))};
    case ElementType::kInt16:
      return whole_number(number_at<int16_t>(x, i));
    case ElementType::kUint16:
      return whole_number(number_at<uint16_t>(x, i));
    case ElementType::kInt8:
      return whole_number(number_at<int8_t>(x, i));
    default:
      return whole_number(number_at<uint8_t>(x, i));
  }
}

template <class Float>
DEVICE Float as_float(const Number& n) {
  switch (n.kind) {
    case Number::kReal:
      return static_cast<Float>(n.real);
    case Number::kDouble:
      return static_cast<Float>(n.wide);
    case Number::kWhole:
      return static_cast<Float>(n.whole);
    default:
      return static_cast<Float>(static_cast<uint64_t>(n.whole));
  }
}

// The bits of it, towards 0. What lies beyond int64 is a uint64.
DEVICE int64_t as_whole(const Number& n) {
  if (n.kind == Number::kWhole || n.kind == Number::kUnsigned) return n.whole;
  const double x = n.kind == Number::kReal ? static_cast<double>(n.real) : n.wide;
  return x >= 9223372036854775808.0 ? static_cast<int64_t>(static_cast<uint64_t>(x))
                                    : static_cast<int64_t>(x);
}

DEVICE bool is_true(const Number& n) {
  return n.kind == Number::kReal ? n.real != 0 : n.kind == Number::kDouble ? n.wide != 0 : n.whole != 0;
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
      static_cast<uint32_t*>(y)[i] = static_cast<uint32_t>(as_whole(n));
      break;
    case ElementType::kInt64:
    case ElementType::kUint64:
      static_cast<int64_t*>(y)[i] = as_whole(n);
      break;
    case ElementType::kInt16:
    case ElementType::kUint16:
      static_cast<uint16_t*>(y)[i] = static_cast<uint16_t>(as_whole(n));
      break;
    case ElementType::kBool:
      static_cast<uint8_t*>(y)[i] = is_true(n);
      break;
    default:
      static_cast<uint8_t*>(y)[i] = static_cast<uint8_t>(as_whole(n));
      break;
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(cast_number, kCastThreads, CastArgs, x, y) {
  const void* x = args.x.address;
  void* y = args.y.address;
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kCastThreads * kCastElements);
  for (int k = 0; k < kCastElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCastThreads + thread_x());
    if (i < args.total) write_number(y, i, args.to, read_number(x, i, args.from));
  }
}
