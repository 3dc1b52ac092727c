// The one allocator of device memory: tensors, constants, weights that sessions share, workspaces of vendors' libraries.
// When a device is exhausted, sessions give back idle memory before an allocation fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "device/device.h"

namespace graphopt::gpu {

// Uses of device memory, as messages name them. Pools divide their blocks among the first four.
enum class Holder : uint8_t { kTensors, kArenas, kConstants, kIdle, kWeights, kWorkspaces };
constexpr size_t kHolders = 6;
using BytesByHolder = std::array<size_t, kHolders>;

// The owner of memory above this layer: the provider's pools and plans.
class MemoryKeeper {
 public:
  virtual ~MemoryKeeper() = default;
  // Gives memory of the device back that is not in use, of any session; false when there is none left. Called without
  // locks of this file.
  virtual bool give_back(Device& device) noexcept = 0;
  // How many bytes of the device it has, by holder.
  virtual BytesByHolder bytes(const Device& device) const = 0;
};
// For the life of the process.
void set_memory_keeper(MemoryKeeper& keeper);

// Memory of the device, which must be current. When the device is exhausted, the keeper gives memory back and the call is repeated. Throws
// OutOfMemory, which names the missing bytes and the holders of the rest. Freed by Device::free.
void* allocate(Device& device, size_t bytes, Holder holder);

struct FreeMemory {
  Device* device;
  void operator()(void* memory) const { device->free(memory); }
};
using DeviceMemory = std::unique_ptr<void, FreeMemory>;
// As allocate; null for 0 bytes.
DeviceMemory allocate_owned(Device& device, size_t bytes, Holder holder);

// This library's memory on all devices of the process. Thread-safe.
class Allocations {
 public:
  struct Statistics {
    size_t bytes = 0, most = 0;  // now, and at once so far
    size_t recordings = 0;       // graphs that there are, whose memory is the driver's own
  };

  void add(const Device& device, const void* memory, size_t bytes);
  void hold(const void* memory, Holder holder);
  void remove(const void* memory) noexcept;
  void add_recording();
  void remove_recording() noexcept;
  Statistics statistics() const;
  // Without the blocks of pools, which the keeper counts.
  BytesByHolder bytes(const Device& device) const;

 private:
  struct Block {
    const Device* device;
    size_t bytes;
    Holder holder;
  };
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;
  Statistics statistics_;
};

Allocations& allocations();

}  // namespace graphopt::gpu
