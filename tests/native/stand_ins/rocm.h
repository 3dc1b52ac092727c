// What the stand-ins of ROCm's libraries ask the runtime that they are linked with, as the real ones do.
#pragma once

#include <string>

extern "C" int hipGetDevice(int* device);
extern "C" int hipGetDevicePropertiesR0600(char* properties, int device);

// Of the current device, without features.
inline std::string current_arch() {
  static thread_local char properties[1472];
  int device = 0;
  hipGetDevice(&device);
  hipGetDevicePropertiesR0600(properties, device);
  const std::string name = properties + 1160;
  return name.substr(0, name.find(':'));
}
