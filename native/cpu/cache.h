// Cache sizes. Kernels derive their block sizes from them.
#pragma once

#include <cstdint>

namespace graphopt::cpu {

// Returns the size of a core's second-level cache in bytes, clamped to the range from 256 KiB to 1 MiB: 512
// KiB on Zen 3, 1 MiB on Zen 4 and 5. Larger values have not been measured. Returns 1 MiB if the size is
// unknown.
int64_t second_level_cache();

}  // namespace graphopt::cpu
