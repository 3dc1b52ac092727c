// IEEE binary16 storage type for host code. Arithmetic is done in float.
#pragma once

#include <cstdint>

namespace graphopt {

// _Float16 of gcc/clang on x86-64 converts with F16C where it is enabled and by a library call elsewhere.
using half = _Float16;
static_assert(sizeof(half) == 2);

}  // namespace graphopt
