// The devices of this process. Opened when first needed, never closed: sessions may outlive static objects.
#pragma once

#include <utility>
#include <vector>

#include "device/device.h"

namespace graphopt::gpu {

// Kernels compiled for the CPU take the GPU's place: GRAPHOPT_HOST_KERNELS=PATH. Null when not set.
const char* host_kernels();

// How many devices the drivers show: AMD's, then NVIDIA's, of each kind that this library has code for; one
// when GRAPHOPT_HOST_KERNELS is set. None of them is opened for it. A driver that can't be used leaves a
// warning on stderr, and no devices.
int device_count();
// The backend of a device; `number` is in [0, device_count()).
Backend backend(int number);

// What is known of a device without opening it; null when this library can't use it, which is said once on
// stderr.
const DeviceFacts* usable_device(int number);
// The AMD device that is current in the calling thread, where ONNX Runtime's ROCm provider
// computes. NVIDIA's driver is not looked for.
const DeviceFacts* usable_rocm_device();

// Opened when first asked for. Throw std::runtime_error where these are null, and when it can't be opened.
Device& device(int number);
Device& rocm_device();

// What each driver shows, AMD's first, for reports; all of them, also where this library has no device code.
std::vector<std::pair<Backend, Present>> all_devices();

}  // namespace graphopt::gpu
