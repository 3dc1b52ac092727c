// What cast_number takes.
#pragma once

#include "device/args.h"
#include "device/element_type.h"

namespace graphopt::hip {

constexpr int kCastThreads = 256;
constexpr int kCastElements = 4;  // of a work-item

struct CastArgs {
  static constexpr int kSlots = 2;
  In x;
  Out y;
  uint32_t total;
  ElementType from, to;
};
static_assert(is_args<CastArgs>(32), "one layout for all compilers");

}  // namespace graphopt::hip
