#include "device/allocations.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "device/stream_context.h"

namespace graphopt::gpu {
namespace {

constexpr const char* kNames[kHolders] = {"tensors",       "arenas of regions", "constants",
                                          "idle in pools", "shared weights",    "workspaces of libraries"};

std::atomic<MemoryKeeper*> memory_keeper{nullptr};

std::string describe_shortage(Device& device, size_t bytes) {
  BytesByHolder held = allocations().bytes(device);
  if (const MemoryKeeper* keeper = memory_keeper) {
    const BytesByHolder kept = keeper->bytes(device);
    for (size_t i = 0; i < kHolders; ++i) held[i] += kept[i];
  }
  std::string text = "out of device memory: " + std::to_string(bytes) + " bytes; held by";
  size_t all = 0;
  for (size_t i = 0; i < kHolders; ++i) {
    all += held[i];
    text += (i > 0 ? ", " : " ") + std::string(kNames[i]) + " " + std::to_string(held[i]);
  }
  if (const auto memory = device.memory_info()) {
    const size_t used = memory->total - memory->free;
    text +=
        ", others " + std::to_string(used > all ? used - all : 0) + ", of " + std::to_string(memory->total);
  }
  return text;
}

}  // namespace

void set_memory_keeper(MemoryKeeper& keeper) { memory_keeper = &keeper; }

void* allocate(Device& device, size_t bytes, Holder holder) {
  for (;;) {
    try {
      void* memory = device.allocate(bytes);
      allocations().hold(memory, holder);
      return memory;
    } catch (const OutOfMemory&) {
      MemoryKeeper* keeper = memory_keeper;
      if (keeper != nullptr && keeper->release_unused(device)) continue;
      if (!StreamContext::destroy_idle(device)) throw OutOfMemory(describe_shortage(device, bytes));
    }
  }
}

DeviceMemory allocate_owned(Device& device, size_t bytes, Holder holder) {
  return DeviceMemory(bytes > 0 ? allocate(device, bytes, holder) : nullptr, FreeMemory{&device});
}

void Allocations::add(const Device& device, const void* memory, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_[memory] = {&device, bytes, Holder::kWorkspaces};
  statistics_.bytes += bytes;
  statistics_.most = std::max(statistics_.most, statistics_.bytes);
}

void Allocations::hold(const void* memory, Holder holder) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(memory);
  if (found != blocks_.end()) found->second.holder = holder;
}

void Allocations::remove(const void* memory) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) return;
  statistics_.bytes -= found->second.bytes;
  blocks_.erase(found);
}

void Allocations::add_graph() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++statistics_.graphs;
}

void Allocations::remove_graph() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --statistics_.graphs;
}

Allocations::Statistics Allocations::statistics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

BytesByHolder Allocations::bytes(const Device& device) const {
  BytesByHolder held = {};
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [memory, block] : blocks_) {
    if (block.device == &device && block.holder > Holder::kIdle)
      held[static_cast<size_t>(block.holder)] += block.bytes;
  }
  return held;
}

Allocations& allocations() {
  static auto& all = *new Allocations;  // sessions may outlive static objects
  return all;
}

}  // namespace graphopt::gpu
