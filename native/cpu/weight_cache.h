// Transformed weights, made once in a process and shared by all sessions that have equal weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "cpu/weight_folder.h"

namespace graphopt::cpu {

// Keyed by content, by a hash first: an entry is taken where its layout is the same and what these weights are
// packed to is what it holds, byte by byte, so that no copy of the weights themselves is kept. Pointers are never
// compared, because a runtime reuses addresses. An entry dies with its last user. Where there is a folder for it,
// it lies in a file with the weights that other processes map, too, and these are compared.
class WeightCache {
 public:
  explicit WeightCache(const WeightFolder* folder = nullptr) : folder_(folder) {}
  static WeightCache& process();

  // `prepared_bytes` at a cache line as prepare has written them, or what an earlier call with equal
  // weights made and someone still holds. `layout` names all that the transform depends on besides the weights.
  std::shared_ptr<const void> get(const std::string& layout, const void* weights, size_t bytes,
                                  size_t prepared_bytes, const std::function<void(void* prepared)>& prepare);

  // Entries that someone holds.
  size_t size();

 private:
  struct Entry {
    std::string layout;
    size_t bytes, prepared_bytes;
    std::once_flag made;
    std::shared_ptr<const void> prepared;
    const void* original = nullptr;  // the weights in the file, where there is one
  };
  using Prepare = std::function<void(void* prepared)>;

  // Whether the entry, which the first who asks makes, is of these weights.
  bool holds(Entry& entry, uint64_t key, const void* weights, const Prepare& prepare) const;

  const WeightFolder* folder_;
  std::mutex mutex_;
  std::unordered_multimap<uint64_t, std::weak_ptr<Entry>> entries_;
};

}  // namespace graphopt::cpu
