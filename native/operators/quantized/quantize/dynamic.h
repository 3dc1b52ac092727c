// DynamicQuantizeLinear, for the operators that begin with it.
#pragma once

#include "device/program.h"

namespace graphopt {

// Adds to the program: x, float of this shape, in uint8 as y, with the scale and the zero point that its range gives.
void quantize_dynamically(gpu::Program& program, const Shape& shape, bool aligned, gpu::Ref x, gpu::Ref y,
                          gpu::Ref scale, gpu::Ref zero);

}  // namespace graphopt
