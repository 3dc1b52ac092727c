// RandomNormal, RandomUniform and their Like forms. The host draws the numbers, as the runtime's own kernels
// do, and they are copied without waiting: of a tensor on the device nothing but its shape is asked.
#pragma once

#include "device/device.h"
#include "operators/table.h"

namespace graphopt::provider {

// Adds them; without a device only what is claimed, of which no kernel can be made.
Table with_random(Table table, gpu::Device* device);

}  // namespace graphopt::provider
