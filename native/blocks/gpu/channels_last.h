// Loads and stores channels of one float16 pixel in channels-last layout: a pack of 8 channels in one
// instruction, or a single channel.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

struct OneChannel {
  half_t v[1];
};

template <int kSize>
using Channels = typename Select<kSize == 8, Pack<half_t>, OneChannel>::Type;

// With kSize 8, the address `from` must be a multiple of 16 bytes.
template <int kSize>
DEVICE Channels<kSize> load_channels(const half_t* from) {
  static_assert(kSize == 8 || kSize == 1, "a pack or a single channel");
  if constexpr (kSize == 8) {
    return load_pack(from);
  } else {
    return {{*from}};
  }
}

DEVICE void store_channels(half_t* to, const Pack<half_t>& from) { store_pack(to, from); }
DEVICE void store_channels(half_t* to, const OneChannel& from) { *to = from.v[0]; }

}  // namespace graphopt::hip
