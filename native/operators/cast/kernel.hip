// Cast between float, float16, int32, int64, uint8 and bool. Bound by memory: each element is read once and
// written once. scripts/gpu_bench.py sets it beside a copy.
#include "device/platform.h"
#include "operators/cast/args.h"

namespace graphopt::hip {

struct Number {
  float real;
  int64_t whole;
  bool is_real;
};

DEVICE Number read_number(const void* x, uint32_t i, CastType type) {
  switch (type) {
    case CastType::kFloat:
      return {static_cast<const float*>(x)[i], 0, true};
    case CastType::kHalf:
      return {to_float(static_cast<const half_t*>(x)[i]), 0, true};
    case CastType::kInt32:
      return {0, static_cast<const int32_t*>(x)[i], false};
    case CastType::kInt64:
      return {0, static_cast<const int64_t*>(x)[i], false};
    default:
      return {0, static_cast<const uint8_t*>(x)[i], false};
  }
}

DEVICE void write_number(void* y, uint32_t i, CastType type, const Number& n) {
  const float real = n.is_real ? n.real : static_cast<float>(n.whole);
  const int64_t whole = n.is_real ? static_cast<int64_t>(n.real) : n.whole;
  switch (type) {
    case CastType::kFloat:
      static_cast<float*>(y)[i] = real;
      break;
    case CastType::kHalf:
      static_cast<half_t*>(y)[i] = from_float<half_t>(real);
      break;
    case CastType::kInt32:
      static_cast<int32_t*>(y)[i] = static_cast<int32_t>(whole);
      break;
    case CastType::kInt64:
      static_cast<int64_t*>(y)[i] = whole;
      break;
    case CastType::kBool:
      static_cast<uint8_t*>(y)[i] = n.is_real ? n.real != 0 : n.whole != 0;
      break;
    default:
      static_cast<uint8_t*>(y)[i] = static_cast<uint8_t>(whole);
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
