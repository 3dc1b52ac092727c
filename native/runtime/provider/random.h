// RandomNormal, RandomUniform and their Like forms. The host draws the values, like the runtime's kernels, and uploads
// them (staging.h). Like forms use only the type and shape of their input.
#pragma once

#include "device/device.h"
#include "operators/table.h"

namespace graphopt::provider {

// Adds these operators. Without a device the registrations serve only for claims; they cannot create kernels.
Table with_random(Table table, gpu::Device* device);

}  // namespace graphopt::provider
