#include "device/cpu/weight_cache.h"

#include <cstring>
#include <utility>

namespace graphopt::cpu {
WeightCache& WeightCache::process() {
  static WeightCache cache(WeightFolder::of_process());
  return cache;
}

size_t WeightCache::size() {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t n = 0;
  for (const auto& [key, entry] : entries_) n += entry.expired() ? 0 : 1;
  return n;
}

std::shared_ptr<const void> WeightCache::get(const std::string& layout, const void* weights, size_t bytes,
                                             size_t prepared_bytes,
                                             const std::function<void(void* prepared)>& prepare) {
  const uint64_t key = hash_of(layout, weights, bytes);  // selects candidates for the full comparison
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      it = it->second.expired() ? entries_.erase(it) : std::next(it);
    }
    const auto [first, last] = entries_.equal_range(key);
    for (auto it = first; it != last && entry == nullptr; ++it) {
      const std::shared_ptr<Entry> candidate = it->second.lock();
      if (candidate != nullptr && candidate->layout == layout && candidate->bytes == bytes &&
          (bytes == 0 || std::memcmp(candidate->original, weights, bytes) == 0)) {
        entry = candidate;
      }
    }
    if (entry == nullptr) {
      const auto* p = static_cast<const unsigned char*>(weights);
      entry = std::make_shared<Entry>();
      entry->layout = layout;
      entry->bytes = bytes;
      entry->copy.assign(p, p + bytes);
      entry->original = entry->copy.data();
      entries_.emplace(key, entry);
    }
  }
  // Outside the lock, so that sessions which load at the same time transform different weights side by side.
  std::call_once(entry->made, [&] { make(*entry, key, prepared_bytes, prepare); });
  // The result keeps its entry alive, and so the bytes that later calls compare with.
  return std::shared_ptr<const void>(entry, entry->prepared.get());
}

void WeightCache::make(Entry& entry, uint64_t key, size_t prepared_bytes,
                       const std::function<void(void* prepared)>& prepare) {
  if (folder_ != nullptr) {
    MappedWeights mapped =
        folder_->get(key, entry.layout, entry.copy.data(), entry.bytes, prepared_bytes, prepare);
    if (mapped.prepared != nullptr) {
      entry.prepared = std::move(mapped.prepared);
      const std::lock_guard<std::mutex> lock(mutex_);  // of those who compare
      entry.original = mapped.original;
      std::vector<unsigned char>().swap(entry.copy);
      return;
    }
  }
  Memory memory = allocate_lines(prepared_bytes);
  prepare(memory.get());
  entry.prepared = std::shared_ptr<const void>(memory.release(), memory.get_deleter());
}

}  // namespace graphopt::cpu
