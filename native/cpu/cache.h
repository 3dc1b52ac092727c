// How much a core's caches hold, which says how much of a problem kernels compute at a time.
#pragma once

#include <cstdint>

namespace graphopt::cpu {

// Bytes of a core's second-level cache: 512 KiB of Zen 3, 1 MiB of Zen 4 and 5. As far as the system does not say, and
// where it is larger than any that was measured, 1 MiB.
int64_t second_level_cache();

}  // namespace graphopt::cpu
