// Transformed weights, made once in a process and shared by all sessions that have equal weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace graphopt::cpu {

// Keyed by content: two entries are the same when their tags (what the transform depends on besides the
// weights) and all bytes of their weights are equal. Pointers are never compared, because a runtime reuses
// addresses. An entry keeps the original bytes for the comparison and dies with its last user.
class WeightCache {
 public:
  static WeightCache& process();

  // The result of make() for these weights, or what an earlier call with equal weights made and someone still
  // holds.
  template <class T>
  std::shared_ptr<const T> get(const std::vector<int64_t>& tag, const void* weights, size_t bytes,
                               const std::function<std::shared_ptr<const T>()>& make) {
    return std::static_pointer_cast<const T>(
        get_erased(tag, weights, bytes, [&]() -> std::shared_ptr<const void> { return make(); }));
  }

  // Entries that someone holds.
  size_t size();

 private:
  struct Entry {
    std::vector<int64_t> tag;
    std::vector<unsigned char> original;
    std::once_flag made;
    std::shared_ptr<const void> value;
  };

  std::shared_ptr<const void> get_erased(const std::vector<int64_t>& tag, const void* weights, size_t bytes,
                                         const std::function<std::shared_ptr<const void>()>& make);

  std::mutex mutex_;
  std::unordered_multimap<uint64_t, std::weak_ptr<Entry>> entries_;
};

}  // namespace graphopt::cpu
