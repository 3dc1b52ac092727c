#include "runtime/provider/pool.h"

#include <algorithm>
#include <memory>
#include <string>

#include "device/devices.h"

namespace graphopt::provider {

size_t few_sizes(size_t bytes, size_t least, size_t steps) {
  constexpr size_t kMost = size_t{1} << 56;  // so that no size that is made of it overflows
  if (bytes > kMost) {
    throw gpu::OutOfMemory("out of memory: no device has " + std::to_string(bytes) + " bytes");
  }
  size_t step = least;
  while (step * steps < bytes) step *= 2;
  return (std::max(bytes, size_t{1}) + step - 1) / step * step;
}

// Blocks of equal size serve each other.
size_t Pool::block_size(size_t bytes) { return few_sizes(bytes, 512, 16); }

gpu::Device& Pool::device() const {
  gpu::Device* known = device_;
  if (known == nullptr) device_ = known = &gpu::device(number_);
  return *known;
}

void* Pool::take(FreeBlocks& blocks, size_t least, size_t most, const void* stream) {
  const auto found = blocks.lower_bound(least);
  if (found == blocks.end() || found->first > most) return nullptr;
  const auto [size, memory] = *found;
  blocks.erase(found);
  used_[memory] = {size, stream};
  statistics_.in_use += size;
  statistics_.kept -= size;
  return memory;
}

void* Pool::allocate(size_t bytes, const void* stream, bool exact) {
  bytes = block_size(bytes);
  const size_t most = exact ? bytes : 2 * bytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (void* memory = take(free_[stream], bytes, most, stream)) return memory;
  if (void* memory = take(free_[nullptr], bytes, most, stream)) return memory;
  const gpu::OnDevice on(device());
  void* memory = nullptr;
  try {
    memory = device().allocate(bytes);
  } catch (const gpu::OutOfMemory&) {
    trim_locked();
    memory = device().allocate(bytes);
  }
  ++statistics_.device_allocations;
  statistics_.in_use += bytes;
  used_[memory] = {bytes, stream};
  return memory;
}

size_t Pool::free(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return 0;
  const Block block = found->second;
  used_.erase(found);
  if (block.stream == nullptr) {  // nobody knows which work may still use it
    const gpu::OnDevice on(device());
    device().synchronize();
  }
  // The last one of its size is the first to be handed out again: a session that does the same again gets the
  // same addresses, and region.h can use its recordings.
  FreeBlocks& blocks = free_[block.stream];
  blocks.emplace_hint(blocks.lower_bound(block.bytes), block.bytes, memory);
  statistics_.in_use -= block.bytes;
  statistics_.kept += block.bytes;
  return block.bytes;
}

void Pool::retire(const void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  retire_locked(stream);
}

void Pool::forget(const void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  retire_locked(stream);
  for (auto& [memory, block] : used_) {
    if (block.stream == stream) block.stream = nullptr;
  }
}

void Pool::retire_locked(const void* stream) {
  const auto found = free_.find(stream);
  if (stream == nullptr || found == free_.end()) return;
  free_[nullptr].merge(found->second);
  free_.erase(found);
}

void Pool::trim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  trim_locked();
}

void Pool::trim_locked() {
  const gpu::OnDevice on(device());
  device().synchronize();
  for (auto& [stream, blocks] : free_) {
    for (const auto& [size, memory] : blocks) device().free(memory);
  }
  free_.clear();
  statistics_.kept = 0;
}

Pool::Statistics Pool::statistics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

Pool& pool(int number) {
  static std::mutex mutex;
  static auto& pools = *new std::map<int, std::unique_ptr<Pool>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& slot = pools[number];
  if (slot == nullptr) slot = std::make_unique<Pool>(number);
  return *slot;
}

}  // namespace graphopt::provider
