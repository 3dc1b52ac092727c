// A cache of weights in kernel layouts, one for the process. Sessions with equal weights on the same device
// share an entry. cpu/weight_cache.h is the corresponding cache for CPU kernels.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "device/device.h"

namespace graphopt::gpu {

// Compares the converted bytes. The source weights of an entry may already be freed, so comparing them would
// require a copy in the cache. An entry is removed with its last user.
class DeviceWeights {
 public:
  static DeviceWeights& process();

  // Returns device memory that `write` has filled on a stream, or the memory of an entry in use with the same
  // bytes and layout. The device must be current here and when the last user releases the memory.
  std::shared_ptr<void> get(Device& device, const std::string& layout, size_t bytes,
                            const std::function<void(void* memory, void* stream)>& write);

  // Number of entries in use.
  size_t size();

 private:
  std::mutex mutex_;
  // The key has the device, the layout, the size and the first bytes; all bytes are compared among equal
  // keys.
  std::unordered_multimap<std::string, std::weak_ptr<void>> entries_;
};

}  // namespace graphopt::gpu
