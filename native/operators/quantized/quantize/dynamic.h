// DynamicQuantizeLinear, for the operators that begin with it.
#pragma once

#include "device/program.h"

namespace graphopt {

// Adds the steps to the program that quantize x (float, of this shape) to y (uint8). They compute scale and zero
// point from the range of x.
void quantize_dynamically(gpu::Program& program, const Shape& shape, bool aligned, gpu::Ref x, gpu::Ref y,
                          gpu::Ref scale, gpu::Ref zero);

}  // namespace graphopt
