// What cast_number take.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

constexpr int kCastThreads = 256;
constexpr int kCastElements = 4;  // of a work-item

// ONNX's numbers.
enum class CastType : int32_t {
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kHalf = 10,
  kDouble = 11,
  kUint32 = 12,
  kUint64 = 13,
};

struct CastArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  uint32_t total;
  CastType from, to;
};
static_assert(is_args<CastArgs>(32), "one layout for all compilers");

}  // namespace graphopt::hip
