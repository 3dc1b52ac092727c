// The only allocator of device memory: for tensors, constants, weights shared by sessions and workspaces of
// vendor libraries. If a device has too little free memory, sessions free idle memory before an allocation fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "device/device.h"

namespace graphopt::gpu {

// Uses of device memory, named in messages. Pools count their blocks under the first four.
enum class MemoryUse : uint8_t { kTensors, kArenas, kConstants, kIdle, kWeights, kWorkspaces };
constexpr size_t kMemoryUses = 6;
using BytesByUse = std::array<size_t, kMemoryUses>;

// Interface to the provider's pools and plans, which hold device memory and belong to a higher layer.
class MemoryReclaimer {
 public:
  virtual ~MemoryReclaimer() = default;
  // Frees unused memory of any session on the device. Returns false if there is none. The caller holds no
  // lock of this file.
  virtual bool release_unused(Device& device) noexcept = 0;
  // Returns the bytes that pools and plans hold on the device, for each use.
  virtual BytesByUse bytes(const Device& device) const = 0;
};
// The reclaimer must live until the process ends.
void set_memory_reclaimer(MemoryReclaimer& reclaimer);

// Allocates memory of the device, which must be current. If the device has too little free memory, the reclaimer
// frees memory and the allocation is repeated. Throws OutOfMemory with the requested bytes and the bytes in use, by
// MemoryUse. The caller frees the memory with Device::free.
void* allocate(Device& device, size_t bytes, MemoryUse memory_use);

struct FreeMemory {
  Device* device;
  void operator()(void* memory) const { device->free(memory); }
};
using DeviceMemory = std::unique_ptr<void, FreeMemory>;
// Like allocate; null for 0 bytes.
DeviceMemory allocate_owned(Device& device, size_t bytes, MemoryUse memory_use);

// The memory of this library on all devices of the process. Thread-safe.
class Allocations {
 public:
  struct Statistics {
    size_t bytes = 0, peak = 0;  // bytes allocated now, and their maximum so far
    size_t graphs = 0;           // existing captured graphs; the driver owns their memory
  };

  void add(const Device& device, const void* memory, size_t bytes);
  void set_use(const void* memory, MemoryUse memory_use);
  void remove(const void* memory) noexcept;
  void add_graph();
  void remove_graph() noexcept;
  Statistics statistics() const;
  // Excludes the blocks of pools, which the reclaimer counts.
  BytesByUse bytes(const Device& device) const;

 private:
  struct Block {
    const Device* device;
    size_t bytes;
    MemoryUse memory_use;
  };
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;
  Statistics statistics_;
};

Allocations& allocations();

}  // namespace graphopt::gpu
