// DynamicQuantizeLinear, for operators that quantize their input dynamically.
#pragma once

#include "device/program.h"

namespace graphopt {

// Adds launches to the program that quantize x (float, of this shape) to y (uint8), with the scale and the zero point
// computed from the range of x.
void quantize_dynamically(gpu::Program& program, const Shape& shape, bool aligned, gpu::Ref x, gpu::Ref y,
                          gpu::Ref scale, gpu::Ref zero);

}  // namespace graphopt
