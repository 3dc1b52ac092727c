// Sums over a work-group.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// The sum of x over all lanes of a wave, in all of them.
DEVICE float wave_sum(float x) {
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// One slot for each wave of the largest work-group (1024 work-items).
struct WaveSums {
  float sum[1024 / kWave];
};

// The sum of x over all `threads` work-items, in all of them. A second call needs a second `slots`, or a
// barrier in between.
DEVICE float group_sum(float x, WaveSums& slots, int threads) {
  x = wave_sum(x);
  if (lane_id() == 0) slots.sum[wave_id()] = x;
  barrier();
  return wave_sum(lane_id() < threads / kWave ? slots.sum[lane_id()] : 0.0f);
}

// The largest x of all `threads` work-items, in all of them, and NaN when one is; otherwise like group_sum.
DEVICE float group_max(float x, WaveSums& slots, int threads) {
  const auto larger = [](float a, float b) { return a > b || a != a ? a : b; };
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) x = larger(x, shuffle_xor(x, mask));
  if (lane_id() == 0) slots.sum[wave_id()] = x;
  barrier();
  const int waves = threads / kWave;
  float most = slots.sum[lane_id() < waves ? lane_id() : 0];
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) most = larger(most, shuffle_xor(most, mask));
  return most;
}

}  // namespace graphopt::hip
