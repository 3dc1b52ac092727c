#include "runtime/provider/pairing.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace graphopt::provider {
namespace {

// Normalizes a bus ID: drivers write the domain with four or eight digits, and letters in either case.
std::string normal(std::string bus_id) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  const size_t first = bus_id.find_first_not_of('0');
  return first == std::string::npos ? std::string() : bus_id.substr(first);
}

}  // namespace

std::vector<int> pair_devices(const std::vector<Hardware>& devices, const std::vector<Hardware>& hardware) {
  std::vector<int> pairs(devices.size(), -1);
  std::vector<bool> taken(hardware.size());
  const auto pair = [&](bool by_bus_id) {
    for (size_t d = 0; d < devices.size(); ++d) {
      for (size_t h = 0; h < hardware.size() && pairs[d] < 0; ++h) {
        if (taken[h] || hardware[h].vendor != devices[d].vendor) continue;
        if (by_bus_id &&
            (hardware[h].bus_id.empty() || normal(hardware[h].bus_id) != normal(devices[d].bus_id)))
          continue;
        pairs[d] = static_cast<int>(h);
        taken[h] = true;
      }
    }
  };
  pair(true);
  pair(false);
  return pairs;
}

std::string bus_id_of_card(const std::string& number) {
  if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos) return {};
  char* path = realpath(("/sys/class/drm/card" + number + "/device").c_str(), nullptr);
  if (path == nullptr) return {};
  const std::string resolved = path;
  std::free(path);
  const std::string name = resolved.substr(resolved.rfind('/') + 1);
  return name.find(':') != std::string::npos ? name : std::string();
}

}  // namespace graphopt::provider
