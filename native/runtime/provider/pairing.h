// Matches the driver's devices with the runtime's hardware devices. The runtime lists the devices of Linux's
// DRM subsystem in no fixed order. A driver has its own order: by default, CUDA lists the fastest device
// first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphopt::provider {

struct Hardware {
  uint32_t vendor = 0;
  std::string bus_id;  // "0000:03:00.0"; empty if unknown
};

// Returns for each device the index of its hardware, or -1. Devices are matched by bus ID first; the
// remaining devices get the first unmatched hardware of their vendor.
std::vector<int> pair_devices(const std::vector<Hardware>& devices, const std::vector<Hardware>& hardware);

// Returns the bus ID of a DRM card, /sys/class/drm/card<number>; empty if there is no such card.
std::string bus_id_of_card(const std::string& number);

}  // namespace graphopt::provider
