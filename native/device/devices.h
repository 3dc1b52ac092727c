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

// Returns the number of devices that the drivers report, without opening any: AMD's, then NVIDIA's, of each
// kind that this library has code for; one if GRAPHOPT_HOST_KERNELS is set. An unusable driver causes a
// warning on stderr and counts no devices.
int device_count();
// Returns the backend of a device; `number` must be in [0, device_count()).
Backend backend(int number);

// Returns the facts of a device without opening it. For an unusable device it returns null and warns once on
// stderr.
const DeviceFacts* usable_device(int number);
// Returns the AMD device that is current in the calling thread, where ONNX Runtime's ROCm provider computes.
// It does not load NVIDIA's driver.
const DeviceFacts* usable_rocm_device();

// Open the device at the first call. Throw std::runtime_error if the functions above return null, or if the
// device cannot be opened.
Device& device(int number);
Device& rocm_device();

// Returns the devices of each driver, AMD's first, for reports. It includes devices without device code in
// this library.
std::vector<std::pair<Backend, DetectedDriver>> all_devices();

}  // namespace graphopt::gpu
