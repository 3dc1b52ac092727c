#include "gpu/devices.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace graphopt::gpu {
namespace {

bool has_code_for(const char* prefix) {
  const auto& objects = code_objects();
  return std::any_of(objects.begin(), objects.end(), [prefix](const CodeObject& object) {
    return std::string(object.arch).rfind(prefix, 0) == 0;
  });
}

struct Devices {
  std::mutex mutex;
  std::map<int, std::unique_ptr<Device>> opened;
  Backend backend = Backend::kHip;
  int count = -1;  // not looked for yet

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

  int find() {
    if (host_kernels() != nullptr) {
      backend = Backend::kHost;
      return 1;
    }
    if (has_code_for("gfx")) {
      backend = Backend::kHip;
      if (const int n = count_hip()) return n;
    }
    if (has_code_for("sm_")) {
      backend = Backend::kCuda;
      return count_cuda();
    }
    return 0;
  }

  // The mutex must be held.
  int look() {
    if (count >= 0) return count;
    count = 0;
    try {
      if (const int n = find()) {
        auto any = open(kCurrent);
        const int number = any->current();
        opened[number] = std::move(any);
        count = n;
      }
    } catch (const std::exception& e) {
      std::fprintf(stderr, "graphopt: no GPU kernels, operators run on the CPU or through their bodies: %s\n",
                   e.what());
    }
    return count;
  }

  Device& at(int number) {
    auto& slot = opened[number];
    if (slot == nullptr) slot = open(number);
    return *slot;
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
  return devices().look();
}

Device& device(int number) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  if (number < 0 || number >= devices().look()) {
    throw std::runtime_error("there is no GPU number " + std::to_string(number));
  }
  return devices().at(number);
}

Device& current_device() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  if (devices().look() == 0) throw std::runtime_error("there is no GPU");
  return devices().at(devices().opened.begin()->second->current());
}

}  // namespace graphopt::gpu
