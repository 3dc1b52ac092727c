#include "cpu/cache.h"

#include <unistd.h>

#include <algorithm>

namespace graphopt::cpu {
namespace {

constexpr int64_t kMinBytes = 256 << 10, kMaxBytes = 1 << 20;

int64_t query_second_level_cache() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return std::clamp(bytes, kMinBytes, kMaxBytes);
#endif
  return kMaxBytes;
}

}  // namespace

int64_t second_level_cache() {
  static const int64_t bytes = query_second_level_cache();
  return bytes;
}

}  // namespace graphopt::cpu
