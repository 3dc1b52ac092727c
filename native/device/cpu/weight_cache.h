// Transformed weights, made once in a process and shared by all sessions that have equal weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/cpu/weight_folder.h"

namespace graphopt::cpu {

// Keyed by content: two entries are the same when their layouts and all bytes of their weights are equal.
// Pointers are never compared, because a runtime reuses addresses. An entry keeps the original bytes for the
// comparison and dies with its last user. Where there is a folder for it, both lie in files that other
// processes map, too.
class WeightCache {
 public:
  explicit WeightCache(const WeightFolder* folder = nullptr) : folder_(folder) {}
  static WeightCache& process();

  // `prepared_bytes` at a cache line as prepare has written them, or what an earlier call with equal weights
  // made and someone still holds. `layout` names all that the transform depends on besides the weights.
  std::shared_ptr<const void> get(const std::string& layout, const void* weights, size_t bytes,
                                  size_t prepared_bytes, const std::function<void(void* prepared)>& prepare);

  // Entries that someone holds.
  size_t size();

 private:
  struct Entry {
    std::string layout;
    size_t bytes = 0;
    std::vector<unsigned char> copy;  // empty once they are mapped
    const void* original = nullptr;
    std::once_flag made;
    std::shared_ptr<const void> prepared;
  };

  void make(Entry& entry, uint64_t key, size_t prepared_bytes,
            const std::function<void(void* prepared)>& prepare);

  const WeightFolder* folder_;
  std::mutex mutex_;
  std::unordered_multimap<uint64_t, std::weak_ptr<Entry>> entries_;
};

}  // namespace graphopt::cpu
