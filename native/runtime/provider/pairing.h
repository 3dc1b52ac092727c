// Which of the runtime's hardware devices is which of the driver's: the runtime lists those of the kernel's
// DRM in no order, a driver its own in the order of the bus.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphopt::provider {

struct Hardware {
  uint32_t vendor = 0;
  std::string bus_id;  // "0000:03:00.0"; empty where it is not known
};

// For each device the index of its hardware, -1 for none: that of its bus id, else the first of its vendor
// that is no other device's.
std::vector<int> pair_devices(const std::vector<Hardware>& devices, const std::vector<Hardware>& hardware);

// The bus id of a DRM card, /sys/class/drm/card<number>; empty where there is none.
std::string bus_id_of_card(const std::string& number);

}  // namespace graphopt::provider
