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

namespace graphopt::cpu {

// Keyed by content: two entries are the same when their layouts and all bytes of their weights are equal.
// Pointers are never compared, because a runtime reuses addresses. An entry keeps the original bytes for the
// comparison and dies with its last user.
class WeightCache {
 public:
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
    std::vector<unsigned char> original;
    std::once_flag made;
    std::unique_ptr<void, void (*)(void*)> prepared{nullptr, nullptr};
  };

  std::mutex mutex_;
  std::unordered_multimap<uint64_t, std::weak_ptr<Entry>> entries_;
};

}  // namespace graphopt::cpu
