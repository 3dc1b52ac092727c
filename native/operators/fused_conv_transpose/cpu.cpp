// The elements of y whose places, counted with the padding, leave the same remainder modulo the stride are a phase of
// y: a convolution of x, with stride 1, by those taps k whose places k dilation leave this remainder, too.
//
//   y[q stride + remainder - pad] = sum of x[q - distance] w[k],   distance stride + remainder = k dilation
//
// All phases lie on the same grid of q. x is packed once for all distances, strip by strip of the grid
// (fused_conv/strips.h), and the phases of some channels of y are the rows of a product over its pixels. Where the
// kernel is a multiple of the stride all phases have the same distances, and rows of one block may be of any. The sums
// of neighbouring phases are interleaved in the first-level cache and leave as rows of y.
#include <cstring>
#include <map>
#include <type_traits>
#include <vector>

#include "blocks/cpu/block.h"
#include "blocks/cpu/workspace.h"
#include "device/cpu/parallel_for.h"
#include "operators/fused_conv/finish.h"
#include "operators/fused_conv/strips.h"
#include "operators/fused_conv_transpose/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

using Problem = ConvolutionProblem;
using Axes = Problem::Axes;

constexpr int64_t kMostPhases = 16;      // of all axes that are computed together
constexpr int64_t kMostSums = 64;        // rows of a bundle
constexpr int64_t kStepsTogether = 128;  // steps whose words of x stay in the first-level cache
constexpr int64_t kAhead = 16;           // steps from a prefetch to its use
constexpr int64_t kFullRows = 4;         // that keep the multipliers busy

// --- Which taps reach which elements

// The taps that reach the elements of an axis with this remainder, and how far before q they read x.
struct AxisPhase {
  int64_t remainder;
  std::vector<int64_t> taps, distances;
};

// Those that any taps reach.
std::vector<AxisPhase> phases_of(const Problem& p, size_t axis) {
  std::map<int64_t, AxisPhase> found;
  for (int64_t k = 0; k < p.kernel[axis]; ++k) {
    const int64_t place = k * p.dilation[axis], remainder = place % p.stride[axis];
    AxisPhase& phase = found[remainder];
    phase.remainder = remainder;
    phase.taps.push_back(k);
    phase.distances.push_back(place / p.stride[axis]);
  }
  std::vector<AxisPhase> phases;
  for (auto& [remainder, phase] : found) phases.push_back(std::move(phase));
  return phases;
}

// Phases of the same distances: rows of one product.
struct Product {
  std::vector<int64_t> distances;          // of each tap, among those of the plan
  std::vector<std::vector<int64_t>> taps;  // of each phase, among those of the kernel
};

// A row of y's from the sums of phases along the last axis.
struct Row {
  int64_t depth, height;        // remainders
  std::vector<int64_t> phases;  // by remainder
};

// Phases that are computed together, numbered product by product.
struct Set {
  std::vector<Product> products;
  std::vector<Row> rows;
  int64_t phases = 0, taps = 0;
};

// Channels of y, those of a group from `first` on, with the phases of a set.
struct Bundle {
  size_t set;
  int64_t first, channels;
  int64_t weights;  // where they begin among those of the group
};

int64_t blocks_of(int64_t rows) { return ceil_div(rows, kMaxRows); }

struct Plan {
  std::vector<int64_t> remainders;  // along the last axis
  bool whole;                       // which are all that there are
  bool covers;                      // each element of y has taps
  std::vector<Axes> distances;      // that there are
  std::vector<Set> sets;
  std::vector<Bundle> bundles;
  int64_t most_sums = 0;  // of a bundle

  explicit Plan(const Problem& p) {
    const std::vector<AxisPhase> d = phases_of(p, 0), h = phases_of(p, 1), w = phases_of(p, 2);
    for (const AxisPhase& phase : w) remainders.push_back(phase.remainder);
    const auto all = [&p](const std::vector<AxisPhase>& phases, size_t axis) {
      return static_cast<int64_t>(phases.size()) == p.stride[axis];
    };
    whole = all(w, 2);
    covers = whole && all(d, 0) && all(h, 1);
    const bool together = static_cast<int64_t>(d.size() * h.size() * w.size()) <= kMostPhases;
    if (together) sets.emplace_back();
    for (const AxisPhase& depth : d) {
      for (const AxisPhase& height : h) {
        if (!together) sets.emplace_back();
        add_row(p, sets.back(), depth, height, w);
      }
    }
    int64_t weights = 0;
    for (size_t i = 0; i < sets.size(); ++i) {
      number_phases(sets[i]);
      const int64_t parts = ceil_div(p.M, channels_together(p, sets[i]));
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = p.M * part / parts, channels = p.M * (part + 1) / parts - first;
        bundles.push_back({i, first, channels, weights});
        weights += channels * sets[i].taps * p.C;
        most_sums = std::max(most_sums, channels * sets[i].phases);
      }
    }
  }

 private:
  // Rows name a phase by its product and its place there until all of a set are known.
  static constexpr int64_t kProductOf = int64_t{1} << 32;

  void add_row(const Problem& p, Set& set, const AxisPhase& depth, const AxisPhase& height,
               const std::vector<AxisPhase>& columns) {
    Row row = {depth.remainder, height.remainder, {}};
    for (const AxisPhase& column : columns) {
      std::vector<int64_t> own, taps;
      for (size_t i = 0; i < depth.taps.size(); ++i) {
        for (size_t j = 0; j < height.taps.size(); ++j) {
          for (size_t k = 0; k < column.taps.size(); ++k) {
            own.push_back(distance_at({depth.distances[i], height.distances[j], column.distances[k]}));
            taps.push_back((depth.taps[i] * p.kernel[1] + height.taps[j]) * p.kernel[2] + column.taps[k]);
          }
        }
      }
      const auto same = std::find_if(set.products.begin(), set.products.end(),
                                     [&](const Product& product) { return product.distances == own; });
      const auto product = same - set.products.begin();
      if (same == set.products.end()) set.products.push_back({std::move(own), {}});
      auto& phases = set.products[static_cast<size_t>(product)].taps;
      row.phases.push_back(product * kProductOf + static_cast<int64_t>(phases.size()));
      set.taps += static_cast<int64_t>(taps.size());
      phases.push_back(std::move(taps));
    }
    set.rows.push_back(std::move(row));
  }

  int64_t distance_at(const Axes& distance) {
    const auto [at, added] = places_.emplace(distance, static_cast<int64_t>(distances.size()));
    if (added) distances.push_back(distance);
    return at->second;
  }

  static void number_phases(Set& set) {
    std::vector<int64_t> first;
    for (const Product& product : set.products) {
      first.push_back(set.phases);
      set.phases += static_cast<int64_t>(product.taps.size());
    }
    for (Row& row : set.rows) {
      for (int64_t& phase : row.phases)
        phase = first[static_cast<size_t>(phase / kProductOf)] + phase % kProductOf;
    }
  }

  // Channels whose rows fill blocks best, of which each bundle fetches x once more.
  static int64_t channels_together(const Problem& p, const Set& set) {
    int64_t best = 1;
    double lowest = 0;
    for (int64_t channels = 1; channels <= std::min<int64_t>(p.M, kMaxRows); ++channels) {
      if (channels > 1 && channels * set.phases > kMostSums) break;
      int64_t cost = 0, most = 0;
      for (const Product& product : set.products) {
        const auto taps = static_cast<int64_t>(product.distances.size());
        const int64_t rows = channels * static_cast<int64_t>(product.taps.size()), blocks = blocks_of(rows);
        cost += (std::max(rows, blocks * kFullRows) + blocks) * taps;
        most = std::max(most, taps);
      }
      const double each = static_cast<double>(cost + 2 * most) / static_cast<double>(channels);
      if (channels == 1 || each < lowest) best = channels, lowest = each;
    }
    return best;
  }

  std::map<Axes, int64_t> places_;  // of distances
};

// --- The grid

// The convolution that reads x for all phases: its window has a place for each distance, the farthest one first.
Problem grid_of(const Problem& p) {
  Problem grid = p;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t first = p.pad[i] / p.stride[i], last = (p.pad[i] + p.out[i] - 1) / p.stride[i];
    const int64_t farthest = (p.kernel[i] - 1) * p.dilation[i] / p.stride[i];
    grid.out[i] = last - first + 1;
    grid.kernel[i] = farthest + 1;
    grid.pad[i] = farthest - first;
    grid.stride[i] = grid.dilation[i] = 1;
  }
  return grid;
}

// Whether the grid is x itself: there is one distance, and no padding.
bool is_apart(const Problem& grid) {
  bool apart = true;
  for (size_t i = 0; i < 3; ++i) {
    apart = apart && grid.kernel[i] == 1 && grid.pad[i] == 0 && grid.out[i] == grid.in[i];
  }
  return apart;
}

// Sums of a row of phases, pixel by pixel, that are neighbours in a row of y, and where that is in its plane.
struct Segment {
  int64_t from, count, at;
};

// Those of a strip and a set.
class Segments {
 public:
  Segments(const Problem& p, const Plan& plan, const Set& set, const Strip& strip)
      : rows_(static_cast<int64_t>(set.rows.size())) {
    const int64_t panels = ceil_div(strip.span(), kPanelWidth);
    for (int64_t panel = 0; panel < panels; ++panel) {
      for (const Row& row : set.rows) {
        begins_.push_back(segments_.size());
        add(p, plan, row, strip, panel * kPanelWidth);
      }
    }
    begins_.push_back(segments_.size());
  }

  const Segment* begin(int64_t panel, int64_t row) const {
    return segments_.data() + begins_[static_cast<size_t>(panel * rows_ + row)];
  }
  const Segment* end(int64_t panel, int64_t row) const { return begin(panel, row + 1); }

 private:
  // Of a row of phases and the panel that begins with this pixel of s.
  void add(const Problem& p, const Plan& plan, const Row& row, const Strip& strip, int64_t first) {
    const auto columns = static_cast<int64_t>(plan.remainders.size());
    const auto place = [&](size_t axis, int64_t q) {
      return (p.pad[axis] / p.stride[axis] + strip.first[axis] + q) * p.stride[axis] - p.pad[axis];
    };
    int64_t w = first % strip.size[2], rest = first / strip.size[2];
    for (int64_t i = 0; i < kPanelWidth; ++rest, w = 0) {
      const int64_t qh = rest % strip.size[1], qd = rest / strip.size[1];
      const int64_t run = std::min(kPanelWidth - i, strip.size[2] - w);
      const int64_t d = place(0, qd) + row.depth, h = place(1, qh) + row.height;
      const bool inside =
          qd < strip.out[0] && qh < strip.out[1] && d >= 0 && d < p.out[0] && h >= 0 && h < p.out[1];
      const int64_t count = inside ? std::clamp<int64_t>(strip.out[2] - w, 0, run) : 0;
      add_run(p, plan, i * columns, count * columns, place(2, w), (d * p.out[1] + h) * p.out[2]);
      i += run;
    }
  }
  // Of sums that begin with those of a pixel at column w of a row of y.
  void add_run(const Problem& p, const Plan& plan, int64_t from, int64_t count, int64_t w, int64_t row) {
    if (plan.whole) {
      const int64_t begin = std::max<int64_t>(-w, 0), end = std::min(count, p.out[2] - w);
      if (begin < end) segments_.push_back({from + begin, end - begin, row + w + begin});
      return;
    }
    const auto columns = static_cast<int64_t>(plan.remainders.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = w + i / columns * p.stride[2] + plan.remainders[static_cast<size_t>(i % columns)];
      if (at >= 0 && at < p.out[2]) segments_.push_back({from + i, 1, row + at});
    }
  }

  int64_t rows_;
  std::vector<Segment> segments_;
  std::vector<size_t> begins_;  // by panel and row
};

// --- What ends the sums

// The first n lanes, fewer than all, in as few pieces as there are bits in n.
inline void store_few(float* to, Vec v, int64_t n) {
  alignas(64) float lanes[L];
  store_aligned(lanes, v);
  int64_t at = 0;
  const auto put = [&](auto count) {
    if constexpr (count() < L) {
      if ((n & count()) == 0) return;
      std::memcpy(to + at, lanes + at, count() * sizeof(float));
      at += count();
    }
  };
  put(std::integral_constant<int64_t, 8>());
  put(std::integral_constant<int64_t, 4>());
  put(std::integral_constant<int64_t, 2>());
  put(std::integral_constant<int64_t, 1>());
}
inline void store_few(half* to, Vec v, int64_t n) { store_part(to, v, n, false); }

// y = act(sums + bias + residual) of a channel of an image.
template <class T>
struct Channel {
  Activation act;
  Bounds bounds;
  Vec bias;
  const T* residual;
  T* y;

  // n numbers from element `at` on; `buffer` has room for them and a vector.
  void end(int64_t at, const float* sums, int64_t n, float* buffer) const {
    T* to = y + at;
    if (!bounds.enough) {
      for (int64_t i = 0; i < n; i += L) store(buffer + i, summed(sums + i, at + i, n - i));
      float* result = target(to, buffer);
      activate_block(act, buffer, result, static_cast<size_t>(n));
      return store(to, result, static_cast<size_t>(n));
    }
    int64_t i = 0;
    for (; i + L <= n; i += L) put(at + i, load(sums + i));
    if (i < n) store_few(to + i, bounds(summed(sums + i, at + i, n - i)), n - i);
  }

  // A vector, where `bounds` are enough.
  void put(int64_t at, Vec v) const {
    v += bias;
    if (residual != nullptr) v += load_as_float(residual + at);
    store(y + at, bounds(v));
  }

 private:
  Vec summed(const float* sums, int64_t at, int64_t n) const {
    const Vec v = load(sums) + bias;
    return residual == nullptr ? v : v + load_range(residual + at, 0, n);
  }
};

// Of all channels of an image.
template <class T>
struct Ending {
  const Problem& p;
  const T *bias, *residual, *slopes;
  T* y;

  Ending(const Problem& problem, const T* b, const T* r, const T* each, T* to, int64_t n)
      : p(problem), bias(b), residual(r), slopes(each), y(to) {
    const int64_t image = n * p.y_channels() * p.out_size();
    y += image;
    if (residual != nullptr) residual += image;
  }

  Channel<T> of(int64_t channel) const {
    const int64_t first = channel * p.out_size();
    Bounds bounds(p.act);
    if (slopes != nullptr) bounds.slope = static_cast<float>(slopes[channel]);
    return {p.act, bounds, splat(static_cast<float>(bias[channel])),
            residual == nullptr ? nullptr : residual + first, y + first};
  }
};

template <int kFirst>
struct Interleaved {
  static constexpr int at(int i) { return kFirst + i / 2 + i % 2 * kWidth; }
};

// The numbers of two streams in turns.
inline void interleave(const float* even, const float* odd, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += L) {
    const Vec a = load(even + i), b = load(odd + i);
    store(to + 2 * i, shuffle(a, b, Interleaved<0>()));
    store(to + 2 * i + L, shuffle(a, b, Interleaved<L / 2>()));
  }
}

// One lane's memory.
struct Lane {
  float *sums, *turns, *others;
};

// The sums of a row's phases, `distance` apart for neighbouring ones, pixel by pixel; `width` pixels.
const float* in_turns(const Row& row, const float* sums, int64_t distance, int64_t width, const Lane& lane) {
  const auto n = static_cast<int64_t>(row.phases.size());
  const auto phase = [&](int64_t i) { return sums + row.phases[static_cast<size_t>(i)] * distance; };
  if (n == 1) return phase(0);
  if ((n & (n - 1)) != 0) {
    for (int64_t i = 0; i < n; ++i) {
      const float* from = phase(i);
      for (int64_t j = 0; j < width; ++j) lane.turns[j * n + i] = from[j];
    }
    return lane.turns;
  }
  // Perfect shuffles of the phases' upper and lower halves.
  float *from = lane.turns, *to = lane.others;
  for (int64_t i = 0; i < n / 2; ++i) interleave(phase(i), phase(i + n / 2), width, from + 2 * i * width);
  for (int64_t pass = 2; pass < n; pass *= 2) {
    interleave(from, from + n / 2 * width, n / 2 * width, to);
    std::swap(from, to);
  }
  return from;
}

// Whatever has no taps.
template <class T>
void end_without_sums(const Problem& p, const Ending<T>& ending, Parallel& parallel) {
  parallel_for(parallel, p.y_channels(), [&](int64_t channel, size_t) {
    alignas(64) const float sums[kBlock + L] = {};
    alignas(64) float buffer[kBlock + L];
    const Channel<T> whole = ending.of(channel);
    for (int64_t at = 0; at < p.out_size(); at += kBlock) {
      whole.end(at, sums, std::min(kBlock, p.out_size() - at), buffer);
    }
  });
}

// --- The products

// A strip of x and what is the same for all of its items.
struct Piece {
  Strip strip;
  bool apart;                      // `gather` brings x
  std::vector<Segments> segments;  // of each set
  std::vector<std::vector<std::vector<int64_t>>>
      offsets;  // of the steps of each product of each set, and kAhead more

  Piece(const Problem& p, const Problem& grid, const Plan& plan, const Strip& of)
      : strip(of), apart(is_apart(grid)) {
    std::vector<int64_t> places;  // in a channel, of each distance
    for (const Axes& distance : plan.distances) {
      Axes place;
      for (size_t i = 0; i < 3; ++i) place[i] = grid.kernel[i] - 1 - distance[i];
      places.push_back(strip.offset(grid, place));
    }
    for (const Set& set : plan.sets) {
      segments.emplace_back(p, plan, set, of);
      auto& own = offsets.emplace_back();
      for (const Product& product : set.products) {
        auto& steps = own.emplace_back();
        steps.reserve(static_cast<size_t>(grid.C) * product.distances.size() + kAhead);
        for (int64_t c = 0; c < grid.C; ++c) {
          for (const int64_t distance : product.distances) {
            steps.push_back(apart ? c * kPanelWidth
                                  : c * strip.words + places[static_cast<size_t>(distance)]);
          }
        }
        steps.resize(steps.size() + kAhead, steps.empty() ? 0 : steps.back());
      }
    }
  }

  int64_t panels() const { return ceil_div(strip.span(), kPanelWidth); }
};

// Where products find x: panel after panel of each group, or the strip.
struct Source {
  const Word* x;
  int64_t group, panel;  // words to the next one
};
// And what brings it there.
struct Brought {
  Source source;
  Loop bring;
};

// Panels of pixels, whose words of all channels are neighbours then: each bundle reads them again.
template <class T>
Brought gather(const Problem& p, const Piece& piece, const T* image, Word* gathered) {
  const int64_t panels = piece.panels(), pixels = piece.strip.span(), size = p.C * kPanelWidth;
  const Axes& first = piece.strip.first;
  const T* from = image + (first[0] * p.in[1] + first[1]) * p.in[2] + first[2];
  const auto bring = [=, &p](int64_t channel, size_t) {
    const T* numbers = from + channel * p.in_size();
    Word* to = gathered + channel / p.C * panels * size + channel % p.C * kPanelWidth;
    for (int64_t i = 0; i < panels * kPanelWidth; i += kPanelWidth, to += size) {
      for (int64_t j = 0; j < kPanelWidth; j += L) {
        const Vec v = load_range(numbers + i + j, 0, pixels - i - j);
        store_aligned(reinterpret_cast<float*>(to + j), v);
      }
    }
  };
  return {{gathered, panels * size, size}, {p.x_channels(), bring}};
}

template <class T>
Brought pack(const Problem& grid, const Piece& piece, const T* image, Word* packed) {
  const auto bring = [=, &grid, &piece](int64_t c, size_t) {
    pack_pair<Single>(grid, piece.strip, image + c * grid.in_size(), Second{},
                      packed + c * piece.strip.words);
  };
  return {{packed, grid.C * piece.strip.words, kPanelWidth}, {grid.x_channels(), bring}};
}

// Words at offsets that no prefetcher foresees.
struct FarTable : Table {
  const Word* at(const Word* v, int64_t step, int64_t) const {
    __builtin_prefetch(v + offsets[step + kAhead]);
    return v + offsets[step];
  }
};

// What becomes of a part of the sums: it is added to those of the steps before.
struct Add {
  bool first;
  Vec begin(int64_t) const { return Vec{}; }
  void step() const {}
  template <int kRows, int kVectors>
  [[gnu::always_inline]] void end(const Vec (&sum)[kRows][kVectors], float* o) const {
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j, o += L)
        store_aligned(o, first ? sum[i][j] : sum[i][j] + load_aligned(o));
    }
  }
};

// The sums of a bundle for a panel of pixels: [phase][channel][vectors L]. Some steps of all rows at a time, so that x
// stays in the first-level cache.
void multiply_bundle(const Plan& plan, const Piece& piece, const Bundle& bundle, const Word* x, const Word* w,
                     int64_t vectors, float* sums) {
  const Set& set = plan.sets[bundle.set];
  for (size_t i = 0; i < set.products.size(); ++i) {
    const int64_t* offsets = piece.offsets[bundle.set][i].data();
    const int64_t steps = static_cast<int64_t>(piece.offsets[bundle.set][i].size()) - kAhead,
                  rows = bundle.channels * static_cast<int64_t>(set.products[i].taps.size()),
                  blocks = blocks_of(rows);
    for (int64_t step = 0; step == 0 || step < steps; step += kStepsTogether) {
      const int64_t depth = std::min(kStepsTogether, steps - step);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = rows * block / blocks, here = rows * (block + 1) / blocks - first;
        const Word* words = w + first * steps + step * here;
        float* o = sums + first * vectors * L;
        if (piece.apart) {
          const Table table = {offsets + step};
          pick_multiply<Single, Table, Add>(here, vectors)(words, x, table, depth, o, Add{step == 0});
        } else {
          const FarTable table = {{offsets + step}};
          pick_multiply<Single, FarTable, Add>(here, vectors)(words, x, table, depth, o, Add{step == 0});
        }
      }
    }
    w += rows * steps;
    sums += rows * vectors * L;
  }
}

// The rows of y that they make.
template <class T>
void end_bundle(const Problem& p, const Plan& plan, const Piece& piece, const Bundle& bundle, int64_t g,
                int64_t panel, int64_t vectors, const Ending<T>& ending, const Lane& lane) {
  const Segments& segments = piece.segments[bundle.set];
  const std::vector<Row>& rows = plan.sets[bundle.set].rows;
  const int64_t width = vectors * L, distance = bundle.channels * width;
  for (size_t j = 0; j < rows.size(); ++j) {
    const Row& row = rows[j];
    const Segment *begin = segments.begin(panel, static_cast<int64_t>(j)),
                  *end = segments.end(panel, static_cast<int64_t>(j));
    const bool in_pairs = plan.whole && row.phases.size() == 2 && begin != end && begin->count == 2 * width;
    for (int64_t i = 0; i < bundle.channels; ++i) {
      const Channel<T> channel = ending.of(g * p.M + bundle.first + i);
      const float* sums = lane.sums + i * width;
      if (in_pairs && channel.bounds.enough) {
        const float *even = sums + row.phases[0] * distance, *odd = sums + row.phases[1] * distance;
        for (int64_t k = 0; k < width; k += L) {
          const Vec a = load_aligned(even + k), b = load_aligned(odd + k);
          channel.put(begin->at + 2 * k, shuffle(a, b, Interleaved<0>()));
          channel.put(begin->at + 2 * k + L, shuffle(a, b, Interleaved<L / 2>()));
        }
        continue;
      }
      const float* turns = in_turns(row, sums, distance, width, lane);
      float* buffer = turns == lane.turns ? lane.others : lane.turns;
      for (auto at = begin; at != end; ++at) channel.end(at->at, turns + at->from, at->count, buffer);
    }
  }
}

template <class T>
Loop multiply_piece(const Problem& p, const Plan& plan, const Piece& piece, const Source& source,
                    const Word* weights, const Ending<T>& ending, const std::vector<Lane>& memory) {
  const auto bundles = static_cast<int64_t>(plan.bundles.size()), lanes = static_cast<int64_t>(memory.size());
  const int64_t panels = piece.panels(), all_vectors = ceil_div(piece.strip.span(), L);
  const int64_t parts = parts_of_least_cost(1, std::min(panels, 4 * lanes), p.groups * bundles, lanes,
                                            [&](int64_t n) { return ceil_div(panels, n); });
  const auto multiply = [=, &p, &plan, &piece, &memory](int64_t item, size_t lane) {
    const int64_t part = item % parts, g = item / parts / bundles;
    const Bundle& bundle = plan.bundles[static_cast<size_t>(item / parts % bundles)];
    const Word* w = weights + g * p.M * p.C * p.taps() + bundle.weights;
    for (int64_t panel = panels * part / parts; panel < panels * (part + 1) / parts; ++panel) {
      const int64_t vectors = std::min<int64_t>(kPanel, all_vectors - panel * kPanel);
      const Word* x = source.x + g * source.group + panel * source.panel;
      multiply_bundle(plan, piece, bundle, x, w, vectors, memory[lane].sums);
      end_bundle(p, plan, piece, bundle, g, panel, vectors, ending, memory[lane]);
    }
  };
  return {p.groups * bundles * parts, multiply};
}

// --- Memory

Strips strips_of(const Problem& grid, size_t lanes) {
  return Strips(grid, kStripBytes * static_cast<int64_t>(lanes), grid.x_channels(), 1);
}

// x of a strip, for vectors that may read beyond it.
Word* take_strip(const Problem& grid, const Strips& strips, Workspace& workspace) {
  const Strip strip = strips.at(grid, 0);
  return workspace.take<Word>(grid.x_channels() * std::max(strip.words, round_up(strip.span(), kPanelWidth)) +
                              kPanelWidth);
}

std::vector<Lane> take_lanes(const Plan& plan, size_t lanes, Workspace& workspace) {
  const int64_t turns = static_cast<int64_t>(plan.remainders.size()) * kPanelWidth + L;
  std::vector<Lane> memory(lanes);
  for (Lane& lane : memory) {
    lane.sums = workspace.take<float>(plan.most_sums * kPanelWidth + L);
    lane.turns = workspace.take<float>(turns);
    lane.others = workspace.take<float>(turns);
  }
  return memory;
}

bool empty(const Problem& p) { return p.N == 0 || p.y_channels() == 0 || p.out_size() <= 0; }

template <class T>
void transposed(const Problem& p, const T* x, const Word* weights, const T* b, const T* r, const T* slopes,
                T* y, Parallel& parallel, void* memory) {
  if (empty(p)) return;
  const Plan plan(p);
  const Problem grid = grid_of(p);
  const Strips strips = strips_of(grid, parallel.lanes());
  Workspace workspace(memory);
  Word* packed = take_strip(grid, strips, workspace);
  const std::vector<Lane> lanes = take_lanes(plan, parallel.lanes(), workspace);
  for (int64_t n = 0; n < p.N; ++n) {
    const Ending<T> ending(p, b, r, slopes, y, n);
    if (!plan.covers) end_without_sums(p, ending, parallel);
  }
  for (int64_t begin = 0; begin < grid.out[strips.axis]; begin += strips.most) {
    const Piece piece(p, grid, plan, strips.at(grid, begin));
    std::vector<Loop> loops;  // of all images, one after the other
    for (int64_t n = 0; n < p.N; ++n) {
      const T* image = x + n * p.x_channels() * p.in_size();
      Brought brought = piece.apart ? gather(p, piece, image, packed) : pack(grid, piece, image, packed);
      loops.push_back(std::move(brought.bring));
      loops.push_back(
          multiply_piece(p, plan, piece, brought.source, weights, Ending<T>(p, b, r, slopes, y, n), lanes));
    }
    parallel_loops(parallel, loops);
  }
}

}  // namespace

// --- What the room calls

template <class T>
size_t fused_conv_transpose_weights(const Problem& p, OnlyWay) {
  return static_cast<size_t>(p.groups * p.M * p.C * p.taps()) * sizeof(Word);
}

template <class T>
void fused_conv_transpose_prepare(const Problem& p, OnlyWay, const T* w, void* weights) {
  const Plan plan(p);
  auto* to = static_cast<Word*>(weights);
  for (int64_t g = 0; g < p.groups; ++g) {
    for (const Bundle& bundle : plan.bundles) {
      for (const Product& product : plan.sets[bundle.set].products) {
        const int64_t rows = bundle.channels * static_cast<int64_t>(product.taps.size()),
                      blocks = blocks_of(rows);
        for (int64_t block = 0; block < blocks; ++block) {
          for (int64_t c = 0; c < p.C; ++c) {
            for (size_t tap = 0; tap < product.distances.size(); ++tap) {
              for (int64_t row = rows * block / blocks; row < rows * (block + 1) / blocks; ++row) {
                const int64_t m = bundle.first + row % bundle.channels;
                const auto& taps = product.taps[static_cast<size_t>(row / bundle.channels)];
                const T weight = w[((g * p.C + c) * p.M + m) * p.taps() + taps[tap]];
                *to++ = Single::join(splat(static_cast<float>(weight)), Vec{})[0];
              }
            }
          }
        }
      }
    }
  }
}

template <class T>
size_t fused_conv_transpose_workspace(const Problem& p, OnlyWay, size_t lanes) {
  if (empty(p)) return 0;
  const Problem grid = grid_of(p);
  Workspace workspace(nullptr);
  take_strip(grid, strips_of(grid, lanes), workspace);
  take_lanes(Plan(p), lanes, workspace);
  return workspace.bytes();
}

template <class T>
void fused_conv_transpose(const Problem& p, OnlyWay, const T* x, const void* weights, const T* b, const T* r,
                          T* y, Parallel& parallel, void* workspace) {
  transposed<T>(p, x, static_cast<const Word*>(weights), b, r, nullptr, y, parallel, workspace);
}

template <class T>
void prelu_conv_transpose(const Problem& p, const T* x, const void* weights, const T* b, const T* r,
                          const T* slopes, T* y, Parallel& parallel, void* workspace) {
  transposed(p, x, static_cast<const Word*>(weights), b, r, slopes, y, parallel, workspace);
}

GRAPHOPT_INSTANTIATE_PACKED(fused_conv_transpose, ConvolutionProblem, OnlyWay, float)
GRAPHOPT_INSTANTIATE_PACKED(fused_conv_transpose, ConvolutionProblem, OnlyWay, half)
template void prelu_conv_transpose(const Problem&, const float*, const void*, const float*, const float*,
                                   const float*, float*, Parallel&, void*);
template void prelu_conv_transpose(const Problem&, const half*, const void*, const half*, const half*,
                                   const half*, half*, Parallel&, void*);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
