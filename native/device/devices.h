// The devices of this process. They are opened at the first use and never closed, because sessions may
// outlive static objects.
#pragma once

#include <utility>
#include <vector>

#include "device/device.h"

namespace graphopt::gpu {

// Returns the path in GRAPHOPT_HOST_KERNELS, a library of kernels for the CPU that replaces the GPU; null if
// not set.
const char* host_kernels();

// Returns the number of devices that the drivers report, without opening any: AMD's, then NVIDIA's, each only
// if this library has device code for that vendor. Returns 1 if GRAPHOPT_HOST_KERNELS is set. A driver that is
// missing or broken counts no devices; a broken one also causes a warning on stderr.
int device_count();
// Returns the usable devices in the order of the provider. Integrated GPUs come last: a caller that takes the first
// device then gets a discrete GPU if there is one. Warns once on stderr about each unusable device.
std::vector<int> provider_devices();
// Returns the backend of a device; `number` must be in [0, device_count()).
Backend backend(int number);

// Returns the facts of a device without opening it. For an unusable device it returns null and warns once on
// stderr.
const DeviceFacts* usable_device(int number);
// Does the same for the AMD device that is current in the calling thread, on which ONNX Runtime's ROCm
// provider computes. Does not load NVIDIA's driver.
const DeviceFacts* usable_rocm_device();

// Return a device, which the first call opens. Throw std::runtime_error if the device is unusable (the functions above
// return null) or cannot be opened.
Device& device(int number);
Device& rocm_device();

// Returns the devices of each driver for reports, AMD's first, with their index in the provider. The list includes
// devices for which this library has no device code.
std::vector<std::pair<Backend, DetectedDriver>> all_devices();

}  // namespace graphopt::gpu
