#include "device/cpu/weight_cache.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace graphopt::cpu {
namespace {

// FNV-1a over 8-byte words (G. Fowler, L. C. Noll, K.-P. Vo). It only selects candidates for the full
// comparison.
uint64_t hash(const std::string& layout, const void* weights, size_t bytes) {
  uint64_t h = 14695981039346656037ull;
  const auto mix = [&h](uint64_t word) { h = (h ^ word) * 1099511628211ull; };
  for (const char c : layout) mix(static_cast<unsigned char>(c));
  const auto* p = static_cast<const unsigned char*>(weights);
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, p + i, bytes - i < sizeof word ? bytes - i : sizeof word);
    mix(word);
  }
  return h;
}

}  // namespace

WeightCache& WeightCache::process() {
  static WeightCache cache;
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
  const uint64_t key = hash(layout, weights, bytes);
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      it = it->second.expired() ? entries_.erase(it) : std::next(it);
    }
    const auto [first, last] = entries_.equal_range(key);
    for (auto it = first; it != last && entry == nullptr; ++it) {
      const std::shared_ptr<Entry> candidate = it->second.lock();
      if (candidate != nullptr && candidate->layout == layout && candidate->original.size() == bytes &&
          (bytes == 0 || std::memcmp(candidate->original.data(), weights, bytes) == 0)) {
        entry = candidate;
      }
    }
    if (entry == nullptr) {
      const auto* p = static_cast<const unsigned char*>(weights);
      entry = std::make_shared<Entry>();
      entry->layout = layout;
      entry->original.assign(p, p + bytes);
      entries_.emplace(key, entry);
    }
  }
  // Outside the lock, so that sessions which load at the same time transform different weights side by side.
  std::call_once(entry->made, [&] {
    constexpr size_t kLine = 64;
    const size_t whole = std::max(prepared_bytes, size_t{1}) + kLine - 1;
    entry->prepared = {std::aligned_alloc(kLine, whole / kLine * kLine), std::free};
    if (entry->prepared == nullptr) throw std::bad_alloc();
    prepare(entry->prepared.get());
  });
  // The result keeps its entry alive, and so the bytes that later calls compare with.
  return std::shared_ptr<const void>(entry, entry->prepared.get());
}

}  // namespace graphopt::cpu
