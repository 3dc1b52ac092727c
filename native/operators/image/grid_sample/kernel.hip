// GridSample of images and volumes: nearest, linear and cubic. A work-item computes one point in several channels. It
// finds the neighbours of the point and their weights once.
//
// Memory-bound: X is read about once if adjacent points are close together, and Y is written once, in rows.
// Cubic weights: Keys, "Cubic convolution interpolation for digital image processing", 1981, with a = -0.75.
#include "device/platform.h"
#include "operators/image/grid_sample/args.h"

namespace graphopt::hip {

DEVICE float grid_floor(float x) {
  const auto down = static_cast<float>(static_cast<int>(x));
  return down > x ? down - 1 : down;
}

// Rounds to the nearest integer, ties to even.
DEVICE float grid_round(float x) {
  const float down = grid_floor(x), part = x - down;
  const bool odd = (static_cast<int>(down) & 1) != 0;
  return part > 0.5f || (part == 0.5f && odd) ? down + 1 : down;
}

// Reflects x at low and high until it is between them.
DEVICE float reflect(float x, float low, float high) {
  const float range = high - low;
  if (range <= 0) return low;
  const float over = x < low ? low - x : x - high;
  if (over <= 0) return x;
  const auto times = static_cast<int>(over / range);
  const float rest = over - static_cast<float>(times) * range;
  return (x < low) == ((times & 1) == 0) ? low + rest : high - rest;
}

// The neighbours of a coordinate along one axis: their indices in X and their weights.
template <int kTaps>
struct GridTaps {
  int at[kTaps];
  float weight[kTaps];
};

template <int kTaps>
DEVICE GridTaps<kTaps> grid_taps(const GridSampleArgs& args, float given, int size) {
  const auto n = static_cast<float>(size);
  const bool corners = args.corners != 0;
  float x = corners ? (given + 1) / 2 * (n - 1) : ((given + 1) * n - 1) / 2;
  // No element of X is beyond `limit`. Clamping makes larger coordinates and NaN convertible to integers.
  const float limit = 16777216;
  x = x > -limit ? (x < limit ? x : limit) : -limit;
  if (kTaps == 1) x = grid_round(x);
  const float low = corners ? 0 : -0.5f, high = corners ? n - 1 : n - 0.5f;
  if (x < low || x > high) {
    if (args.padding == GridPadding::kBorder) x = x < 0 ? 0 : n - 1;
    if (args.padding == GridPadding::kReflection) x = reflect(x, low, high);
  }
  const float base = kTaps == 1 ? x : grid_floor(x), t = x - base;
  GridTaps<kTaps> taps;
  if constexpr (kTaps == 1) {
    taps.weight[0] = 1;
  } else if constexpr (kTaps == 2) {
    taps.weight[0] = 1 - t;
    taps.weight[1] = t;
  } else {
    const float a = -0.75f, s = 1 - t;
    taps.weight[0] = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a;
    taps.weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    taps.weight[2] = ((a + 2) * s - (a + 3)) * s * s + 1;
    taps.weight[3] = ((a * (s + 1) - 5 * a) * (s + 1) + 8 * a) * (s + 1) - 4 * a;
  }
  UNROLL for (int k = 0; k < kTaps; ++k) {
    float at = base + static_cast<float>(k - (kTaps - 1) / 2);
    if (args.padding == GridPadding::kReflection) at = reflect(at, low, high);
    if (args.padding == GridPadding::kZeros && (at < 0 || at >= n)) taps.weight[k] = 0;
    taps.at[k] = max_int(0, min_int(static_cast<int>(at), size - 1));
  }
  return taps;
}

// Returns values[which]. Indexing by a variable would move the values from registers to memory.
template <int kTaps, class V>
DEVICE V element_of(const V (&values)[kTaps], int which) {
  V value = values[0];
  UNROLL for (int k = 1; k < kTaps; ++k) value = which == k ? values[k] : value;
  return value;
}

template <class T, int kTaps>
DEVICE void grid_sample(const GridSampleArgs& args) {
  const T* const grid = args.grid;
  const uint32_t i = work_item(kGridSampleThreads);
  if (i >= args.total) return;
  const uint32_t image = divide(i, args.points), point = i - image * args.points.d;
  const T* const coordinates = grid + static_cast<size_t>(i) * static_cast<size_t>(args.axes);
  const GridTaps<kTaps> columns = grid_taps<kTaps>(args, to_float(coordinates[0]), args.sizes[0]),
                        rows = grid_taps<kTaps>(args, to_float(coordinates[1]), args.sizes[1]);
  GridTaps<kTaps> layers = {};
  layers.weight[0] = 1;
  const int depth = args.axes == 3 ? kTaps : 1;
  if (args.axes == 3) layers = grid_taps<kTaps>(args, to_float(coordinates[2]), args.sizes[2]);
  const uint32_t area = static_cast<uint32_t>(args.sizes[0]) * static_cast<uint32_t>(args.sizes[1]),
                 volume = area * static_cast<uint32_t>(args.sizes[2]);
  const int first = block_y() * args.channels_each, last = min_int(first + args.channels_each, args.channels);
  const uint32_t plane = image * static_cast<uint32_t>(args.channels) + static_cast<uint32_t>(first);
  const T* x = static_cast<const T*>(args.x) + static_cast<size_t>(plane) * volume;
  T* y = static_cast<T*>(args.y) + static_cast<size_t>(plane) * args.points.d + point;
  NO_UNROLL for (int channel = first; channel < last; ++channel) {
    float sum = 0;
    // Elements with weight 0 are skipped: such an element may be infinite, and its product with 0 would be
    // NaN.
    NO_UNROLL for (int l = 0; l < depth; ++l) {
      const float layer_weight = element_of<kTaps>(layers.weight, l);
      if (layer_weight == 0) continue;
      const T* const layer = x + static_cast<uint32_t>(element_of<kTaps>(layers.at, l)) * area;
      UNROLL for (int r = 0; r < kTaps; ++r) {
        const float weight = layer_weight * rows.weight[r];
        const T* const row = layer + rows.at[r] * args.sizes[0];
        UNROLL for (int c = 0; c < kTaps; ++c) {
          const float w = weight * columns.weight[c];
          if (w != 0) sum += w * to_float(row[columns.at[c]]);
        }
      }
    }
    *y = from_float<T>(sum);
    x += volume;
    y += args.points.d;
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(grid_sample_nearest, (grid_sample<T, 1>), kGridSampleThreads, GridSampleArgs, x, grid, y)
FLOAT_KERNELS(grid_sample_linear, (grid_sample<T, 2>), kGridSampleThreads, GridSampleArgs, x, grid, y)
FLOAT_KERNELS(grid_sample_cubic, (grid_sample<T, 4>), kGridSampleThreads, GridSampleArgs, x, grid, y)
