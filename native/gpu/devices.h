// The devices of this process. Opened when first needed, never closed: sessions may outlive static objects.
#pragma once

#include "gpu/device.h"

namespace graphopt::gpu {

// Kernels compiled for the CPU take the GPU's place: GRAPHOPT_HOST_KERNELS=PATH. Null when not set.
const char* host_kernels();

// How many devices the driver shows: AMD's, else NVIDIA's, if this library has code for any of that kind; one
// when GRAPHOPT_HOST_KERNELS is set. A driver that can't be used leaves a warning on stderr, and 0.
int device_count();
// Of all of them.
Backend backend();

// Null when it can't be opened, for instance because this library has no code for its architecture: said once
// on stderr.
Device* usable_device(int number);
// The one that is current in the calling thread.
Device* usable_current_device();

// Throw std::runtime_error where these are null.
Device& device(int number);
Device& current_device();

}  // namespace graphopt::gpu
