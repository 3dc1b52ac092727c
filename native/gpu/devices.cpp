#include "gpu/devices.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

namespace graphopt::gpu {
namespace {

struct Devices {
  std::mutex mutex;
  std::map<int, std::unique_ptr<Device>> opened;  // null: it can't be, which has been said
  Backend backend = Backend::kHip;
  Present present;
  bool looked = false;

  std::unique_ptr<Device> open(int number) const {
    switch (backend) {
      case Backend::kHip:
        return open_hip(number);
      case Backend::kCuda:
        return open_cuda(number);
      case Backend::kHost:
        break;
    }
    return open_host(host_kernels());
  }

  void find() {
    if (host_kernels() != nullptr) {
      backend = Backend::kHost;
      present.count = 1;
      return;
    }
    if (!architectures("gfx").empty()) {
      backend = Backend::kHip;
      present = find_hip();
    }
    if (present.count == 0 && !architectures("sm_").empty()) {
      backend = Backend::kCuda;
      present = find_cuda();
    }
  }

  // The mutex must be held.
  int count() {
    if (looked) return present.count;
    looked = true;
    try {
      find();
    } catch (const std::exception& e) {
      warn("", e);
    }
    return present.count;
  }

  Device* at(int number) {
    if (number < 0 || number >= count()) return nullptr;
    const auto found = opened.find(number);
    if (found != opened.end()) return found->second.get();
    auto& slot = opened[number];
    try {
      slot = open(number);
    } catch (const std::exception& e) {
      warn(" for GPU " + std::to_string(number), e);
    }
    return slot.get();
  }

  Device* current() {
    for (const auto& [number, device] : opened) {
      if (device == nullptr) continue;
      try {
        return at(device->current());
      } catch (const std::exception& e) {
        warn("", e);
        return nullptr;
      }
    }
    return count() > 0 ? at(present.current) : nullptr;
  }

  static void warn(const std::string& which, const std::exception& e) {
    std::fprintf(stderr, "graphopt: no GPU kernels%s, operators run on the CPU or through their bodies: %s\n",
                 which.c_str(), e.what());
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
  return devices().count();
}

Backend backend() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  devices().count();
  return devices().backend;
}

Device* usable_device(int number) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  return devices().at(number);
}

Device* usable_current_device() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  return devices().current();
}

Device& device(int number) {
  if (Device* found = usable_device(number)) return *found;
  throw std::runtime_error("there is no GPU number " + std::to_string(number) + " that can be used");
}

Device& current_device() {
  if (Device* found = usable_current_device()) return *found;
  throw std::runtime_error("there is no GPU that can be used");
}

}  // namespace graphopt::gpu
