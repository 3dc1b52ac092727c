#include "device/devices.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace graphopt::gpu {
namespace {

void warn(const std::string& which, const std::string& why) {
  std::fprintf(stderr, "graphopt: no GPU kernels%s, operators run on the CPU or as function bodies: %s\n",
               which.c_str(), why.c_str());
}

// The devices of one driver, which is loaded at the first query.
class Driver {
 public:
  explicit Driver(Backend backend) : backend_(backend) {}

  Backend backend() const { return backend_; }
  int count() { return has_code() ? static_cast<int>(detected().devices.size()) : 0; }

  const DetectedDriver& detected() {
    if (searched_) return detected_;
    searched_ = true;
    refuse_fork();
    detected_ = find();
    // A missing driver or device causes no warning: a session that needs one reports the reason.
    if (detected_.problem.code == "broken_runtime" && has_code()) warn("", detected_.problem.text);
    return detected_;
  }

  // Returns the facts of a device; null if it is unusable.
  const DeviceFacts* facts(int number) {
    if (number < 0 || number >= count()) return nullptr;
    const FoundDevice& found = detected().devices[static_cast<size_t>(number)];
    if (found.problem.code.empty()) return &found.facts;
    if (reported_.insert(number).second) warn(" for GPU " + std::to_string(number), found.problem.text);
    return nullptr;
  }

  Device& at(int number) {
    const DeviceFacts* known = facts(number);
    if (known == nullptr) {
      throw std::runtime_error("there is no GPU number " + std::to_string(number) + " that can be used");
    }
    auto& slot = opened_[number];
    if (slot == nullptr) slot = open(number, *known);
    return *slot;
  }

 private:
  bool has_code() const {
    if (backend_ == Backend::kHost) return true;
    return !architectures(backend_ == Backend::kHip ? "gfx" : "sm_").empty();
  }

  DetectedDriver find() const {
    switch (backend_) {
      case Backend::kHip:
        return find_hip();
      case Backend::kCuda:
        return find_cuda();
      case Backend::kHost:
        break;
    }
    DetectedDriver found;
    try {
      found.devices.push_back({open_host(host_kernels())->facts(), {}});
    } catch (const std::exception& e) {
      found.problem = {"broken_runtime", e.what()};
    }
    return found;
  }

  std::unique_ptr<Device> open(int number, const DeviceFacts& facts) const {
    switch (backend_) {
      case Backend::kHip:
        return open_hip(number, facts);
      case Backend::kCuda:
        return open_cuda(number, facts);
      case Backend::kHost:
        break;
    }
    return open_host(host_kernels());
  }

  Backend backend_;
  DetectedDriver detected_;
  bool searched_ = false;
  std::set<int> reported_;  // unusable devices
  std::map<int, std::unique_ptr<Device>> opened_;
};

// All accesses require the mutex.
struct Devices {
  std::mutex mutex;
  std::vector<Driver> drivers;

  Devices() {
    if (host_kernels() != nullptr) {
      drivers.emplace_back(Backend::kHost);
    } else {
      drivers.emplace_back(Backend::kHip);
      drivers.emplace_back(Backend::kCuda);
    }
  }

  int count() {
    int count = 0;
    for (Driver& driver : drivers) count += driver.count();
    return count;
  }

  std::vector<int> usable() {
    std::vector<int> found;
    for (const bool integrated : {false, true}) {
      for (int n = 0; n < count(); ++n) {
        const auto [driver, own] = find(n);
        const FoundDevice& device = driver->detected().devices[static_cast<size_t>(own)];
        if (device.problem.code.empty() && device.facts.integrated == integrated) found.push_back(n);
      }
    }
    return found;
  }

  // Returns the driver of device `number` and its number in that driver; null beyond the last device.
  std::pair<Driver*, int> find(int number) {
    if (number < 0) return {nullptr, 0};
    for (Driver& driver : drivers) {
      if (number < driver.count()) return {&driver, number};
      number -= driver.count();
    }
    return {nullptr, 0};
  }
};

Devices& devices() {
  static auto& all = *new Devices;
  return all;
}

int current_of(const Driver& driver) { return driver.backend() == Backend::kHip ? current_hip() : 0; }

}  // namespace

const char* host_kernels() { return std::getenv("GRAPHOPT_HOST_KERNELS"); }

int device_count() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  return devices().count();
}

std::vector<int> provider_devices() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  for (int n = 0; n < devices().count(); ++n) {
    const auto [driver, own] = devices().find(n);
    driver->facts(own);  // warns
  }
  return devices().usable();
}

Backend backend(int number) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  return devices().find(number).first->backend();
}

const DeviceFacts* usable_device(int number) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  const auto [driver, own] = devices().find(number);
  return driver != nullptr ? driver->facts(own) : nullptr;
}

const DeviceFacts* usable_rocm_device() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  Driver& driver = devices().drivers.front();
  return driver.count() > 0 ? driver.facts(current_of(driver)) : nullptr;
}

Device& device(int number) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  const auto [driver, own] = devices().find(number);
  if (driver == nullptr) throw std::runtime_error("there is no GPU number " + std::to_string(number));
  return driver->at(own);
}

Device& rocm_device() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  Driver& driver = devices().drivers.front();
  if (driver.count() == 0) throw std::runtime_error("there is no GPU that can be used");
  return driver.at(current_of(driver));
}

std::vector<std::pair<Backend, DetectedDriver>> all_devices() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  std::vector<std::pair<Backend, DetectedDriver>> all;
  const std::vector<int> usable = devices().usable();
  int first = 0;
  for (Driver& driver : devices().drivers) {
    auto& found = all.emplace_back(driver.backend(), driver.detected()).second.devices;
    for (int own = 0; own < driver.count(); ++own) {
      const auto at = std::find(usable.begin(), usable.end(), first + own);
      if (at != usable.end())
        found[static_cast<size_t>(own)].in_provider = static_cast<int>(at - usable.begin());
    }
    first += driver.count();
  }
  return all;
}

}  // namespace graphopt::gpu
