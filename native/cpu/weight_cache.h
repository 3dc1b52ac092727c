// Cache of prepared (packed) weights, created once in a process and shared by all sessions with equal weights.
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

// Finds entries by a hash of the content. An entry matches if its layout is equal and the weights pack to the same
// bytes, so no copy of the original weights is needed. Pointers are never compared, because a runtime reuses addresses.
// An entry is destroyed with its last user. With a folder, the entry is stored in a file that other processes map as
// well. Such a file also contains the original weights, which are compared instead of the packed ones.
class WeightCache {
 public:
  explicit WeightCache(const WeightFolder* folder = nullptr) : folder_(folder) {}
  static WeightCache& process();

  // Returns packed weights, which start at a cache line: those of an entry with equal weights, or `prepared_bytes`
  // bytes written by `prepare`. `layout` names everything except the weights that the packed bytes depend on.
  std::shared_ptr<const void> get(const std::string& layout, const void* weights, size_t bytes,
                                  size_t prepared_bytes, const std::function<void(void* prepared)>& prepare);

  // Returns the number of entries in use.
  size_t size();

 private:
  struct Entry {
    std::string layout;
    size_t bytes, prepared_bytes;
    std::once_flag made;
    std::shared_ptr<const void> prepared;
    const void* original = nullptr;  // the original weights in the file; null without a file
  };
  using Prepare = std::function<void(void* prepared)>;

  // Prepares the weights of a new entry. Returns whether the entry matches these weights.
  bool prepare_once(Entry& entry, uint64_t key, const void* weights, const Prepare& prepare) const;

  const WeightFolder* folder_;
  std::mutex mutex_;
  std::unordered_multimap<uint64_t, std::weak_ptr<Entry>> entries_;
};

}  // namespace graphopt::cpu
