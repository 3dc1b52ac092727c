#include "device/allocations.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "device/stream_context.h"

namespace graphopt::gpu {
namespace {

constexpr const char* kNames[kMemoryUses] = {"tensors",       "arenas of regions", "constants",
                                             "idle in pools", "shared weights",    "workspaces of libraries"};

std::atomic<MemoryReclaimer*> memory_reclaimer{nullptr};

std::string describe_shortage(Device& device, size_t bytes) {
  BytesByUse held = allocations().bytes(device);
  if (const MemoryReclaimer* reclaimer = memory_reclaimer) {
    const BytesByUse kept = reclaimer->bytes(device);
    for (size_t i = 0; i < kMemoryUses; ++i) held[i] += kept[i];
  }
  std::string text = "out of device memory: " + std::to_string(bytes) + " bytes; held by";
  size_t all = 0;
  for (size_t i = 0; i < kMemoryUses; ++i) {
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

void set_memory_reclaimer(MemoryReclaimer& reclaimer) { memory_reclaimer = &reclaimer; }

void* allocate(Device& device, size_t bytes, MemoryUse memory_use) {
  for (;;) {
    try {
      void* memory = device.allocate(bytes);
      allocations().set_use(memory, memory_use);
      return memory;
    } catch (const OutOfMemory&) {
      MemoryReclaimer* reclaimer = memory_reclaimer;
      if (reclaimer != nullptr && reclaimer->release_unused(device)) continue;
      if (!StreamContext::destroy_idle(device)) throw OutOfMemory(describe_shortage(device, bytes));
    }
  }
}

DeviceMemory allocate_owned(Device& device, size_t bytes, MemoryUse memory_use) {
  return DeviceMemory(bytes > 0 ? allocate(device, bytes, memory_use) : nullptr, FreeMemory{&device});
}

void Allocations::add(const Device& device, const void* memory, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_[memory] = {&device, bytes, MemoryUse::kWorkspaces};
  statistics_.bytes += bytes;
  statistics_.peak = std::max(statistics_.peak, statistics_.bytes);
}

void Allocations::set_use(const void* memory, MemoryUse memory_use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(memory);
  if (found != blocks_.end()) found->second.memory_use = memory_use;
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

BytesByUse Allocations::bytes(const Device& device) const {
  BytesByUse held = {};
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [memory, block] : blocks_) {
    if (block.device == &device && block.memory_use > MemoryUse::kIdle)
      held[static_cast<size_t>(block.memory_use)] += block.bytes;
  }
  return held;
}

Allocations& allocations() {
  static auto& all = *new Allocations;  // sessions may outlive static objects
  return all;
}

}  // namespace graphopt::gpu
