// Queries of the runtime that the stand-ins of ROCm's libraries make, as the real libraries do.
#pragma once

#include <cstddef>
#include <string>

extern "C" int hipGetDevice(int* device);
extern "C" int hipGetDevicePropertiesR0600(char* properties, int device);
extern "C" int hipRuntimeGetVersion(int* version);
extern "C" int hipMalloc(void** memory, size_t bytes);
extern "C" int hipMemset(void* memory, int value, size_t bytes);
extern "C" int hipFree(void* memory);
extern "C" int hipDeviceSynchronize();
extern "C" int hipStreamIsCapturing(void* stream, int* state);
extern "C" int hipStreamQuery(void* stream);

// Returns the architecture of the current device, without features.
inline std::string current_arch() {
  static thread_local char properties[1472];
  int device = 0;
  hipGetDevice(&device);
  hipGetDevicePropertiesR0600(properties, device);
  const std::string name = properties + 1160;
  return name.substr(0, name.find(':'));
}

// Returns 10,000,000 major + 100,000 minor + patch.
inline int runtime_version() {
  int version = 0;
  hipRuntimeGetVersion(&version);
  return version;
}
