#include "gpu/devices.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace graphopt::gpu {
namespace {

void warn(const std::string& which, const std::exception& e) {
  std::fprintf(stderr, "graphopt: no GPU kernels%s, operators run on the CPU or through their bodies: %s\n",
               which.c_str(), e.what());
}

// The devices of one driver, which is opened when it is first asked for one.
class Driver {
 public:
  explicit Driver(Backend backend) : backend_(backend) {}

  Backend backend() const { return backend_; }

  int count() {
    if (looked_) return present_.count;
    looked_ = true;
    try {
      present_ = find();
    } catch (const std::exception& e) {
      warn("", e);
    }
    return present_.count;
  }

  // Null when it can't be opened.
  Device* at(int number) {
    if (number < 0 || number >= count()) return nullptr;
    const auto found = opened_.find(number);
    if (found != opened_.end()) return found->second.get();
    auto& slot = opened_[number];
    try {
      slot = open(number);
    } catch (const std::exception& e) {
      warn(" for GPU " + std::to_string(number), e);
    }
    return slot.get();
  }

  Device* current() {
    for (const auto& [number, device] : opened_) {
      if (device == nullptr) continue;
      try {
        return at(device->current());
      } catch (const std::exception& e) {
        warn("", e);
        return nullptr;
      }
    }
    return count() > 0 ? at(present_.current) : nullptr;
  }

 private:
  Present find() const {
    switch (backend_) {
      case Backend::kHip:
        return architectures("gfx").empty() ? Present{} : find_hip();
      case Backend::kCuda:
        return architectures("sm_").empty() ? Present{} : find_cuda();
      case Backend::kHost:
        break;
    }
    return {1, 0};
  }

  std::unique_ptr<Device> open(int number) const {
    switch (backend_) {
      case Backend::kHip:
        return open_hip(number);
      case Backend::kCuda:
        return open_cuda(number);
      case Backend::kHost:
        break;
    }
    return open_host(host_kernels());
  }

  Backend backend_;
  Present present_;
  bool looked_ = false;
  std::map<int, std::unique_ptr<Device>> opened_;  // null: it can't be, which has been said
};

// The mutex must be held for all of it.
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

  // The driver of device `number`, and the number that the driver gives it; null beyond the last.
  std::pair<Driver*, int> find(int number) {
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

}  // namespace

const char* host_kernels() { return std::getenv("GRAPHOPT_HOST_KERNELS"); }

int device_count() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  int count = 0;
  for (Driver& driver : devices().drivers) count += driver.count();
  return count;
}

Backend backend(int number) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  return devices().find(number).first->backend();
}

Device* usable_device(int number) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  const auto [driver, own] = devices().find(number);
  return driver != nullptr && number >= 0 ? driver->at(own) : nullptr;
}

Device* usable_rocm_device() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  return devices().drivers.front().current();
}

Device& device(int number) {
  if (Device* found = usable_device(number)) return *found;
  throw std::runtime_error("there is no GPU number " + std::to_string(number) + " that can be used");
}

Device& rocm_device() {
  if (Device* found = usable_rocm_device()) return *found;
  throw std::runtime_error("there is no GPU that can be used");
}

}  // namespace graphopt::gpu
