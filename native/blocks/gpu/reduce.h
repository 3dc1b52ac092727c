// Reductions and scans over a wave or a work-group.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// Returns the sum of x over the wave to every work-item of the wave.
DEVICE float wave_sum(float x) {
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// One slot for each wave of the largest work-group (1024 work-items).
struct WaveSums {
  float sum[1024 / kWave];
};

// Returns the sum of x over all `threads` work-items of the group to each of them. A second call needs
// different `slots`, or a barrier before it.
DEVICE float group_sum(float x, WaveSums& slots, int threads) {
  x = wave_sum(x);
  if (lane_id() == 0) slots.sum[wave_id()] = x;
  barrier();
  return wave_sum(lane_id() < threads / kWave ? slots.sum[lane_id()] : 0.0f);
}

// Returns the largest x of all `threads` work-items to each of them, or NaN if any x is NaN. A second call
// needs different `slots`, or a barrier before it.
DEVICE float group_max(float x, WaveSums& slots, int threads) {
  const auto larger = [](float a, float b) { return a > b || a != a ? a : b; };
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) x = larger(x, shuffle_xor(x, mask));
  if (lane_id() == 0) slots.sum[wave_id()] = x;
  barrier();
  const int waves = threads / kWave;
  float largest = slots.sum[lane_id() < waves ? lane_id() : 0];
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) largest =
      larger(largest, shuffle_xor(largest, mask));
  return largest;
}

DEVICE float from_lane(float x, int lane) { return shuffle(x, lane); }
DEVICE uint32_t from_lane(uint32_t x, int lane) { return shuffle(x, lane); }
DEVICE uint64_t from_lane(uint64_t x, int lane) {
  const uint32_t low = shuffle(static_cast<uint32_t>(x), lane),
                 high = shuffle(static_cast<uint32_t>(x >> 32), lane);
  return static_cast<uint64_t>(high) << 32 | low;
}

template <class S, int kThreads>
struct ScanLds {
  S of_wave[kThreads / kWave];
};

// The result of group_scan: `before` is the sum over the work-items before this one, `all` the sum over the whole
// work-group. A second call of group_scan needs a barrier before it.
template <class S>
struct GroupScan {
  S before, all;
};
template <class S, int kThreads>
DEVICE GroupScan<S> group_scan(S own, ScanLds<S, kThreads>& totals) {
  S through = own;
  UNROLL for (int step = 1; step < kWave; step *= 2) {
    const S other = from_lane(through, max_int(lane_id() - step, 0));
    through += lane_id() >= step ? other : S(0);
  }
  if (lane_id() == kWave - 1) totals.of_wave[wave_id()] = through;
  barrier();
  S before = from_lane(through, max_int(lane_id() - 1, 0)), all = 0;
  before = lane_id() > 0 ? before : S(0);
  UNROLL for (int wave = 0; wave < kThreads / kWave; ++wave) {
    before = wave < wave_id() ? totals.of_wave[wave] + before : before;
    all += totals.of_wave[wave];
  }
  return {before, all};
}

}  // namespace graphopt::hip
