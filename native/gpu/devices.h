// The devices of this process. Opened when first needed, never closed: sessions may outlive static objects.
#pragma once

#include "gpu/device.h"

namespace graphopt::gpu {

// Kernels compiled for the CPU take the GPU's place: GRAPHOPT_HOST_KERNELS=PATH. Null when not set.
const char* host_kernels();

// How many devices this library has code for: AMD's, else NVIDIA's; one when GRAPHOPT_HOST_KERNELS is set.
// 0 when there is none. The first failure to open one leaves a warning on stderr, and 0.
int device_count();

// Throws std::runtime_error when it can't be opened.
Device& device(int number);

// The one that is current in the calling thread.
Device& current_device();

}  // namespace graphopt::gpu
