#include "runtime/provider/pool.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "device/allocations.h"
#include "device/devices.h"
#include "device/stream_context.h"

namespace graphopt::provider {
namespace {

// Those of the process, never freed: sessions may outlive static objects.
struct Pools {
  std::mutex mutex;
  std::set<Pool*> all;
};
Pools& pools() {
  static auto& one = *new Pools;
  return one;
}

// It is not the limit that is in the way.
class DeviceFull final : public gpu::OutOfMemory {
 public:
  using OutOfMemory::OutOfMemory;
};

}  // namespace

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

Pool::Pool(int number, size_t limit) : number_(number), limit_(limit) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  pools().all.insert(this);
}

Pool::~Pool() {
  {
    const std::lock_guard<std::mutex> lock(pools().mutex);
    pools().all.erase(this);
  }
  try {
    if (statistics_.kept > 0) trim();
  } catch (const std::exception&) {  // a broken device
  }
}

gpu::Device& Pool::device() const {
  gpu::Device* known = device_;
  if (known == nullptr) device_ = known = &gpu::device(number_);
  return *known;
}

void* Pool::take(FreeBlocks& blocks, size_t least, size_t most, const void* stream) {
  const auto found = blocks.lower_bound(least);
  if (found == blocks.end() || found->first > most) return nullptr;
  const size_t size = found->first;
  void* memory = found->second.memory;
  blocks.erase(found);
  used_[memory] = {size, stream};
  statistics_.in_use += size;
  statistics_.kept -= size;
  return memory;
}

void* Pool::allocate(size_t requested, const void* stream) {
  try {
    return allocate_once(requested, stream);
  } catch (const DeviceFull&) {
    trim_all(number_);
    return allocate_once(requested, stream);
  }
}

void* Pool::allocate_once(size_t requested, const void* stream) {
  const size_t bytes = block_size(requested), most = limit_ > 0 ? bytes : 2 * bytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (limit_ > 0 && (bytes > limit_ || statistics_.in_use > limit_ - bytes)) {
    throw gpu::OutOfMemory("out of device memory: " + std::to_string(requested) + " bytes, of the limit of " +
                           std::to_string(limit_) + " bytes " + std::to_string(statistics_.in_use) +
                           " are in use");
  }
  if (void* memory = take(free_[stream], bytes, most, stream)) return memory;
  if (void* memory = take(free_[nullptr], bytes, most, stream)) return memory;
  make_room(bytes);
  const gpu::OnDevice on(device());
  void* memory = nullptr;
  try {
    memory = device().allocate(bytes);
  } catch (const gpu::OutOfMemory& e) {
    throw DeviceFull(e.what());
  }
  ++statistics_.device_allocations;
  statistics_.in_use += bytes;
  statistics_.most = std::max(statistics_.most, statistics_.in_use + statistics_.kept);
  used_[memory] = {bytes, stream};
  return memory;
}

void Pool::free(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return;
  const Block block = found->second;
  used_.erase(found);
  if (block.stream == nullptr) {  // nobody knows which work may still use it
    const gpu::OnDevice on(device());
    gpu::StreamContext::synchronize_all(device());
  }
  // The last one of its size is the first to be handed out again: a session that does the same again gets the
  // same addresses, and region.h can use its recordings.
  FreeBlocks& blocks = free_[block.stream];
  blocks.emplace_hint(blocks.lower_bound(block.bytes), block.bytes, FreeBlock{memory, ++clock_});
  statistics_.in_use -= block.bytes;
  statistics_.kept += block.bytes;
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
  const gpu::OnDevice on(device());
  gpu::StreamContext::synchronize_all(device());
  for (auto& [stream, blocks] : free_) {
    for (const auto& [size, block] : blocks) device().free(block.memory);
  }
  free_.clear();
  statistics_.kept = 0;
}

void Pool::trim_all(int number) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  for (Pool* pool : pools().all) {
    if (pool->number_ == number) pool->trim();
  }
}

void Pool::make_room(size_t bytes) {
  if (limit_ == 0 || statistics_.in_use + statistics_.kept + bytes <= limit_) return;
  const gpu::OnDevice on(device());
  gpu::StreamContext::synchronize_all(device());
  while (statistics_.kept > 0 && statistics_.in_use + statistics_.kept + bytes > limit_) {
    FreeBlocks* of = nullptr;
    FreeBlocks::iterator oldest;
    for (auto& [stream, blocks] : free_) {
      for (auto at = blocks.begin(); at != blocks.end(); ++at) {
        if (of != nullptr && oldest->second.since < at->second.since) continue;
        of = &blocks;
        oldest = at;
      }
    }
    device().free(oldest->second.memory);
    statistics_.kept -= oldest->first;
    of->erase(oldest);
  }
}

Pool::Statistics Pool::statistics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

Pool& pool(int number) {
  static std::mutex mutex;
  static auto& shared = *new std::map<int, std::unique_ptr<Pool>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& slot = shared[number];
  if (slot == nullptr) slot = std::make_unique<Pool>(number);
  return *slot;
}

std::string describe_memory() {
  const gpu::Allocations::Statistics all = gpu::allocations().statistics();
  const auto number = [](const char* name, size_t value) {
    return std::string("\"") + name + "\": " + std::to_string(value);
  };
  std::string text = "{" + number("bytes", all.bytes) + ", " + number("most", all.most) + ", " +
                     number("recordings", all.recordings) + ", \"pools\": [";
  const std::lock_guard<std::mutex> lock(pools().mutex);
  bool first = true;
  for (const Pool* pool : pools().all) {
    const Pool::Statistics s = pool->statistics();
    text += std::string(first ? "" : ", ") + "{\"device\": " + std::to_string(pool->number()) + ", " +
            number("limit", pool->limit()) + ", " + number("in_use", s.in_use) + ", " +
            number("kept", s.kept) + ", " + number("most", s.most) + "}";
    first = false;
  }
  return text + "]}";
}

}  // namespace graphopt::provider
