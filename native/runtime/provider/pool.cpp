#include "runtime/provider/pool.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "device/devices.h"
#include "device/stream_context.h"

namespace graphopt::provider {
namespace {

// The pools of the process. Never freed, because sessions may outlive static objects.
class Pools final : public gpu::MemoryReclaimer {
 public:
  Pools() { gpu::set_memory_reclaimer(*this); }

  // Frees idle memory of pools first, then plans and arenas of idle sessions, which return them to their pools.
  bool release_unused(gpu::Device& device) noexcept override {
    try {
      if (trim(device)) return true;
      std::vector<Session> owners;
      {
        const std::lock_guard<std::mutex> lock(mutex);
        owners = sessions;
      }
      for (const auto& [weak, release_memory] : owners) {
        if (const auto owner = weak.lock(); owner != nullptr && release_memory()) return true;
      }
    } catch (const std::exception&) {  // a broken device, or no memory on the host
    }
    return false;
  }

  gpu::BytesByUse bytes(const gpu::Device& device) const override {
    gpu::BytesByUse sum = {};
    const std::lock_guard<std::mutex> lock(mutex);
    for (const Pool* pool : all) {
      if (!pool->is_of(device)) continue;
      const gpu::BytesByUse bytes = pool->bytes();
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += bytes[i];
    }
    return sum;
  }

  using Session = std::pair<std::weak_ptr<void>, std::function<bool()>>;
  mutable std::mutex mutex;
  std::set<Pool*> all;
  std::vector<Session> sessions;

 private:
  bool trim(const gpu::Device& device) {
    bool any = false;
    const std::lock_guard<std::mutex> lock(mutex);
    for (Pool* pool : all) {
      if (pool->is_of(device) && pool->trim()) any = true;
    }
    return any;
  }
};
Pools& pools() {
  static auto& one = *new Pools;
  return one;
}

// Pools without a limit, one for each device. Thread-safe.
class PoolsByDevice {
 public:
  explicit PoolsByDevice(Pool::Memory memory) : memory_(memory) {}

  Pool& of(int number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& slot = pools_[number];
    if (slot == nullptr) slot = std::make_unique<Pool>(number, 0, memory_);
    return *slot;
  }

 private:
  Pool::Memory memory_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Pool>> pools_;
};

// Returns true if GRAPHOPT_GUARD_MEMORY is set, for tests: freed blocks are then returned to the device at
// once, and a guarded device checks them (device/emulator/guarded_memory.h).
bool keeps_nothing() {
  static const bool guards = std::getenv("GRAPHOPT_GUARD_MEMORY") != nullptr;
  return guards;
}

}  // namespace

void on_out_of_memory(std::weak_ptr<void> owner, std::function<bool()> release_idle) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  auto& all = pools().sessions;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& s) { return s.first.expired(); }),
            all.end());
  all.emplace_back(std::move(owner), std::move(release_idle));
}

size_t size_class(size_t bytes, size_t min_step, size_t steps) {
  constexpr size_t kMaxBytes = size_t{1} << 56;  // prevents overflow in sizes computed from `bytes`
  if (bytes > kMaxBytes) {
    throw gpu::OutOfMemory("out of memory: no device has " + std::to_string(bytes) + " bytes");
  }
  size_t step = min_step;
  while (step * steps < bytes) step *= 2;
  return (std::max(bytes, size_t{1}) + step - 1) / step * step;
}

// Rounding the sizes makes more blocks interchangeable.
size_t Pool::block_size(size_t bytes) { return size_class(bytes, 512, 16); }

Pool::Pool(int number, size_t limit, Memory memory) : number_(number), limit_(limit), kind_(memory) {
  if (kind_ == Memory::kPinned) return;
  const std::lock_guard<std::mutex> lock(pools().mutex);
  pools().all.insert(this);
}

Pool::~Pool() {
  {
    const std::lock_guard<std::mutex> lock(pools().mutex);
    pools().all.erase(this);
  }
  try {
    trim();
  } catch (const std::exception&) {  // a broken device
  }
}

gpu::Device& Pool::device() const {
  gpu::Device* known = device_;
  if (known == nullptr) device_ = known = &gpu::device(number_);
  return *known;
}

void* Pool::take(FreeBlocks& blocks, size_t min_bytes, size_t max_bytes) {
  const auto found = blocks.lower_bound(min_bytes);
  if (found == blocks.end() || found->first > max_bytes) return nullptr;
  void* memory = found->second.memory;
  used_[memory].bytes = found->first;
  statistics_.kept -= found->first;
  statistics_.in_use += found->first;
  blocks.erase(found);
  return memory;
}

void* Pool::take(size_t min_bytes, size_t max_bytes, const void* stream) {
  void* memory = take(free_[stream], min_bytes, max_bytes);
  return memory != nullptr ? memory : take(free_[nullptr], min_bytes, max_bytes);
}

void* Pool::allocate(size_t requested, const void* stream, gpu::MemoryUse memory_use) {
  const size_t bytes = block_size(requested), max_bytes = limit_ > 0 ? bytes : 2 * bytes;
  std::unique_lock<std::mutex> lock(mutex_);
  if (limit_ > 0 && (bytes > limit_ || statistics_.in_use > limit_ - bytes)) {
    throw gpu::OutOfMemory("out of device memory: " + std::to_string(requested) + " bytes requested; " +
                           std::to_string(statistics_.in_use) + " of the " + std::to_string(limit_) +
                           " bytes of memory_limit are in use");
  }
  void* memory = take(bytes, max_bytes, stream);
  if (memory == nullptr) {
    free_memory(bytes);
    const gpu::OnDevice on(device());
    statistics_.in_use += bytes;  // reserved within the limit during the call
    statistics_.peak = std::max(statistics_.peak, statistics_.in_use + statistics_.kept);
    lock.unlock();  // gpu::allocate trims all pools if the device has too little free memory
    try {
      memory = kind_ == Memory::kPinned ? device().allocate_pinned(bytes)
                                        : gpu::allocate(device(), bytes, memory_use);
    } catch (...) {
      lock.lock();
      statistics_.in_use -= bytes;
      throw;
    }
    lock.lock();
    // The pool counts the use of its blocks itself.
    if (kind_ == Memory::kDevice) gpu::allocations().set_use(memory, gpu::MemoryUse::kIdle);
    ++statistics_.device_allocations;
    used_[memory].bytes = bytes;
  }
  Block& block = used_[memory];
  block.stream = stream;
  block.memory_use = memory_use;
  return memory;
}

void Pool::free(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return;
  const Block block = found->second;
  used_.erase(found);
  if (block.stream == nullptr) {  // unknown work may still use it
    const gpu::OnDevice on(device());
    gpu::StreamContext::synchronize_all(device());
  }
  if (keeps_nothing() && kind_ == Memory::kDevice) {
    const gpu::OnDevice on(device());
    device().free(memory);
    statistics_.in_use -= block.bytes;
    return;
  }
  // The last freed block of a size is reused first: a session that repeats its requests gets the same addresses, and
  // region.h can replay its captured graphs.
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

bool Pool::trim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (statistics_.kept == 0 || kind_ == Memory::kPinned) return false;
  const gpu::OnDevice on(device());
  gpu::StreamContext::synchronize_all(device());
  for (auto& [stream, blocks] : free_) {
    for (const auto& [size, block] : blocks) device().free(block.memory);
  }
  free_.clear();
  statistics_.kept = 0;
  return true;
}

gpu::BytesByUse Pool::bytes() const {
  gpu::BytesByUse bytes = {};
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [memory, block] : used_) bytes[static_cast<size_t>(block.memory_use)] += block.bytes;
  bytes[static_cast<size_t>(gpu::MemoryUse::kIdle)] += statistics_.kept;
  return bytes;
}

void Pool::free_memory(size_t bytes) {
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
  static auto& shared = *new PoolsByDevice(Pool::Memory::kDevice);
  return shared.of(number);
}

Pool& pinned_pool(int number) {
  static auto& shared = *new PoolsByDevice(Pool::Memory::kPinned);
  return shared.of(number);
}

std::string describe_memory() {
  const gpu::Allocations::Statistics all = gpu::allocations().statistics();
  const auto number = [](const char* name, size_t value) {
    return std::string("\"") + name + "\": " + std::to_string(value);
  };
  std::string text = "{" + number("bytes", all.bytes) + ", " + number("most", all.peak) + ", " +
                     number("recordings", all.graphs) + ", \"pools\": [";
  const std::lock_guard<std::mutex> lock(pools().mutex);
  bool first = true;
  for (const Pool* pool : pools().all) {
    const Pool::Statistics s = pool->statistics();
    text += std::string(first ? "" : ", ") + "{\"device\": " + std::to_string(pool->number()) + ", " +
            number("limit", pool->limit()) + ", " + number("in_use", s.in_use) + ", " +
            number("kept", s.kept) + ", " + number("most", s.peak) + "}";
    first = false;
  }
  return text + "]}";
}

}  // namespace graphopt::provider
