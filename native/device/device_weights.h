// Weights that were brought into a kernel's layout, once in a process and on each device: sessions that load equal
// weights share them. What cpu/weight_cache.h is for kernels on the CPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "device/device.h"

namespace graphopt::gpu {

// Compared are the bytes that kernels will read, all of them: the weights that they were made from may be gone by
// then, and a copy of those would be kept for nothing else. An entry dies with its last user.
class DeviceWeights {
 public:
  static DeviceWeights& process();

  // Device memory as `write` fills it on a stream, complete; or memory that holds the same bytes in the same
  // layout and that someone still has. The device must be current here and where the last user lets go.
  std::shared_ptr<void> get(Device& device, const std::string& layout, size_t bytes,
                            const std::function<void(void* memory, void* stream)>& write);

  // Entries that someone holds.
  size_t size();

 private:
  std::mutex mutex_;
  // By the device, the layout, the size and the first bytes, which select what is compared.
  std::unordered_multimap<std::string, std::weak_ptr<void>> entries_;
};

}  // namespace graphopt::gpu
