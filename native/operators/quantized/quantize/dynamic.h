// DynamicQuantizeLinear, for the operators that begin with it.
#pragma once

#include "device/program.h"

namespace graphopt {

// Adds the quantization of x (float, of this shape) to y (uint8) to the program. Scale and zero point depend on the
// range of x.
void quantize_dynamically(gpu::Program& program, const Shape& shape, bool aligned, gpu::Ref x, gpu::Ref y,
                          gpu::Ref scale, gpu::Ref zero);

}  // namespace graphopt
