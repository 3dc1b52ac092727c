// Arguments of cast_*.
#pragma once

#include "device/args.h"
#include "device/element_type.h"

namespace graphopt::hip {

constexpr int kCastThreads = 256;
constexpr int kCastElements = 4;  // elements per work-item of cast_number
constexpr int kCastPacks = 2;     // packs of 4 elements per work-item of the other kernels

struct CastArgs : Arguments<2, 32> {
  In x;
  Out y;
  uint32_t total;
  ElementType from, to;
};

}  // namespace graphopt::hip
