#include "cpu/weight_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace graphopt::cpu {
WeightCache& WeightCache::process() {
  static auto& cache = *new WeightCache(WeightFolder::of_process());  // sessions may outlive static objects
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
  std::vector<std::shared_ptr<Entry>> others;            // same key, different weights
  while (true) {
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
            candidate->prepared_bytes == prepared_bytes &&
            std::find(others.begin(), others.end(), candidate) == others.end()) {
          entry = candidate;
        }
      }
      if (entry == nullptr) {
        entry = std::make_shared<Entry>();
        entry->layout = layout;
        entry->bytes = bytes;
        entry->prepared_bytes = prepared_bytes;
        entries_.emplace(key, entry);
      }
    }
    // Called without the lock, so sessions that load at the same time can prepare different weights in parallel.
    if (prepare_once(*entry, key, weights, prepare)) {
      return std::shared_ptr<const void>(entry, entry->prepared.get());
    }
    others.push_back(std::move(entry));
  }
}

bool WeightCache::prepare_once(Entry& entry, uint64_t key, const void* weights,
                               const Prepare& prepare) const {
  const auto packed = [&] {
    Memory memory = allocate_lines(entry.prepared_bytes);
    // prepare() does not write padding, which is compared as well.
    std::memset(memory.get(), 0, entry.prepared_bytes);
    prepare(memory.get());
    return memory;
  };
  bool prepared_here = false;
  std::call_once(entry.made, [&] {
    prepared_here = true;
    if (folder_ != nullptr) {
      MappedWeights mapped =
          folder_->get(key, entry.layout, weights, entry.bytes, entry.prepared_bytes, prepare);
      if (mapped.prepared != nullptr) {
        entry.original = mapped.original;
        entry.prepared = std::move(mapped.prepared);
        return;
      }
    }
    Memory memory = packed();
    entry.prepared = std::shared_ptr<const void>(memory.release(), memory.get_deleter());
  });
  if (prepared_here) return true;
  const auto equal = [](const void* a, const void* b, size_t bytes) {
    return bytes == 0 || std::memcmp(a, b, bytes) == 0;
  };
  if (entry.original != nullptr) return equal(entry.original, weights, entry.bytes);
  return equal(entry.prepared.get(), packed().get(), entry.prepared_bytes);
}

}  // namespace graphopt::cpu
