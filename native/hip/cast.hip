// Cast between float, float16, int32, int64, uint8 and bool. Bound by memory: each element is read once and
// written once. scripts/gpu_bench.py sets it beside a copy.
#include "hip/platform.h"

namespace graphopt::hip {

constexpr int kCastThreads = 256;
constexpr int kCastElements = 4;  // of a work-item

// ONNX's numbers.
enum Type : int32_t {
  kFloatType = 1,
  kUint8Type = 2,
  kInt32Type = 6,
  kInt64Type = 7,
  kBoolType = 9,
  kHalfType = 10
};

struct Number {
  float real;
  int64_t whole;
  bool is_real;
};

DEVICE Number read_number(const void* x, uint32_t i, int32_t type) {
  switch (type) {
    case kFloatType:
      return {static_cast<const float*>(x)[i], 0, true};
    case kHalfType:
      return {to_float(static_cast<const half_t*>(x)[i]), 0, true};
    case kInt32Type:
      return {0, static_cast<const int32_t*>(x)[i], false};
    case kInt64Type:
      return {0, static_cast<const int64_t*>(x)[i], false};
    default:
      return {0, static_cast<const uint8_t*>(x)[i], false};
  }
}

DEVICE void write_number(void* y, uint32_t i, int32_t type, const Number& n) {
  const float real = n.is_real ? n.real : static_cast<float>(n.whole);
  const int64_t whole = n.is_real ? static_cast<int64_t>(n.real) : n.whole;
  switch (type) {
    case kFloatType:
      static_cast<float*>(y)[i] = real;
      break;
    case kHalfType:
      static_cast<half_t*>(y)[i] = from_float<half_t>(real);
      break;
    case kInt32Type:
      static_cast<int32_t*>(y)[i] = static_cast<int32_t>(whole);
      break;
    case kInt64Type:
      static_cast<int64_t*>(y)[i] = whole;
      break;
    case kBoolType:
      static_cast<uint8_t*>(y)[i] = n.is_real ? n.real != 0 : n.whole != 0;
      break;
    default:
      static_cast<uint8_t*>(y)[i] = static_cast<uint8_t>(whole);
      break;
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL(cast_number, kCastThreads, (const void* x, void* y, uint32_t total, int32_t from, int32_t to)) {
  const uint32_t begin = static_cast<uint32_t>(block_x()) * (kCastThreads * kCastElements);
  for (int k = 0; k < kCastElements; ++k) {
    const uint32_t i = begin + static_cast<uint32_t>(k * kCastThreads + thread_x());
    if (i < total) write_number(y, i, to, read_number(x, i, from));
  }
}
