// The devices of this process. Opened when first needed, never closed: sessions may outlive static objects.
#pragma once

#include "gpu/device.h"

namespace graphopt::gpu {

// Kernels compiled for the CPU take the GPU's place: GRAPHOPT_HOST_KERNELS=PATH. Null when not set.
const char* host_kernels();

// How many devices the drivers show: AMD's, then NVIDIA's, of each kind that this library has code for; one
// when GRAPHOPT_HOST_KERNELS is set. A driver that can't be used leaves a warning on stderr, and no devices.
int device_count();
// Of a device in [0, device_count()).
Backend backend(int number);

// Null when it can't be opened, for instance because this library has no code for its architecture: said once
// on stderr.
Device* usable_device(int number);
// Of AMD's the one that is current in the calling thread, which is where ONNX Runtime's ROCm provider
// computes. NVIDIA's driver is not looked for.
Device* usable_rocm_device();

// Throw std::runtime_error where these are null.
Device& device(int number);
Device& rocm_device();

}  // namespace graphopt::gpu
