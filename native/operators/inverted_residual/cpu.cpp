// Some rows of y at a time, so that what lies between the three convolutions stays in the second-level cache:
//
//   s [vectors of M][rows][columns][L]   the first convolution's result, with the window's padding
//   d [vectors of M][pixels][L]          the second one's
//
// Vectors are channels, so that planes of 7x7 and 14x14 fill them. A pixel of the products is a number that is spread
// over a vector: the first product takes it from planes, where neighbouring pixels are neighbours, the second from d.
// A row of s takes the place of one that is not needed any more. Several lanes compute all rows of y at a time, in bands;
// one that does not go on where its lane's last one ended begins with what its windows reach of the one before.
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "blocks/cpu/activation.h"
#include "blocks/cpu/product.h"
#include "blocks/cpu/workspace.h"
#include "device/cpu/cache.h"
#include "device/cpu/parallel_for.h"
#include "operators/inverted_residual/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

using Problem = InvertedResidualProblem;

constexpr int64_t L = kWidth;
constexpr int64_t kTogether = 7;          // pixels of the window's convolution: as many sums
constexpr int64_t kStepBytes = 20 << 10;  // of s for a panel: most of a first-level cache
// Of the second-level cache.
constexpr double kWhole = 0.5;     // d, where all rows of y are computed at a time
constexpr double kBlock = 0.1875;  // where they are not
constexpr double kWeights = 0.375;
constexpr int64_t kFewestRows = 4;   // of a tile of the third convolution, where several lanes share them
constexpr int64_t kEnoughItems = 8;  // of a lane: more would divide no better
constexpr int64_t kStoring = 4;      // what bounds and a store cost beside a multiplication

int64_t part_of_cache(double part) {
  return static_cast<int64_t>(part * static_cast<double>(second_level_cache()));
}

// How y is computed.
struct Plan {
  int64_t panels;         // of M
  int64_t images;         // at a time
  int64_t rows;           // of y at a time
  int64_t step;           // of these, for one panel at a time
  int64_t height, width;  // of s, whose rows are used again and again
  int64_t plane;          // numbers of one vector of s
  int64_t bands;          // of rows, which different lanes may compute
  int64_t lanes;

  Plan(const Problem& p, int64_t all_lanes) : lanes(all_lanes) {
    const int64_t numbers = round_up(p.M, L) * p.out[1];  // of a row of d
    panels = ceil_div(p.M, kPanelWidth);
    width = std::max((p.out[1] - 1) * p.stride[1] + p.kernel[1], p.pad[1] + p.in[1]);
    const auto parts_of = [](int64_t all, int64_t most) {
      return ceil_div(all, ceil_div(all, std::clamp<int64_t>(most, 1, all)));
    };
    rows = p.out[0];
    images = lanes == 1 ? 1
                        : std::clamp<int64_t>(lanes * part_of_cache(kWhole) / (4 * numbers * rows + 1), 1,
                                              std::max<int64_t>(p.N, 1));
    if (lanes == 1 && 4 * numbers * rows > part_of_cache(kWhole)) {
      rows = parts_of(rows, part_of_cache(kBlock) / (4 * numbers));
    }
    const int64_t first = std::max<int64_t>(kStepBytes / (4 * width * kPanelWidth) - p.kernel[0], 0);
    step = parts_of(rows, first / p.stride[0] + 1);
    height = (step - 1) * p.stride[0] + p.kernel[0];
    plane = height * width * L;
    // A band that another lane takes repeats rows: half a row for each, on average.
    bands = parts_of_least_cost(1, std::min(rows, enough(panels * images)), panels * images, lanes,
                                [&](int64_t n) { return 2 * ceil_div(rows, n) + 1; });
  }
  // How many tiles `pixels` pixels of the third convolution are, for panels of O.
  int64_t tiles(int64_t pixels, int64_t panels_of_y) const {
    const int64_t least = ceil_div(pixels, kMaxRows), most = ceil_div(pixels, kFewestRows);
    return parts_of_least_cost(
        least, std::min(most, std::max(least, enough(panels_of_y * images))), panels_of_y * images, lanes,
        [&](int64_t n) { return ceil_div(pixels, n) + 1; });  // a step reads weights, too
  }
  // s is of one panel for each lane where all rows are computed at a time, or of all panels.
  bool whole(const Problem& p) const { return rows == p.out[0]; }
  int64_t slots(const Problem& p) const { return whole(p) ? lanes : panels; }
  int64_t s_numbers(const Problem& p) const { return slots(p) * kPanel * plane; }
  // Of an image.
  int64_t d_numbers(const Problem& p) const { return round_up(p.M, L) * rows * p.out[1]; }

 private:
  int64_t enough(int64_t of_panels) const { return ceil_div(kEnoughItems * lanes, of_panels); }
};

// What a lane has of the first two convolutions.
struct alignas(64) Lane {
  int64_t next = -1;     // the item, of all loops, whose rows go on where the last ones ended
  bool cleared = false;  // s beside its rows
};

// Packed weights: panels of W1 [C][M], the window [vectors of M][taps][L], panels of W3 [M][O], and the biases.
struct Weights {
  float *expand, *window, *project, *expand_bias, *window_bias, *project_bias;

  Weights(const Problem& p, Workspace& memory) {
    const int64_t M = round_up(p.M, L), O = round_up(p.O, L);
    expand = memory.take<float>(p.C * M);
    window = memory.take<float>(p.taps() * M);
    project = memory.take<float>(p.M * O);
    expand_bias = memory.take<float>(M);
    window_bias = memory.take<float>(M);
    project_bias = memory.take<float>(O);
  }
};

// The activation of sums on their way to memory: bounds, in registers, and what is no bound behind that.
struct Finish {
  Vec least = splat(-std::numeric_limits<float>::infinity()),
      most = splat(std::numeric_limits<float>::infinity());
  bool bounds;

  explicit Finish(const Activation& act) {
    const ActivationKind kind = act.kind;
    bounds = kind == ActivationKind::kNone || kind == ActivationKind::kRelu || kind == ActivationKind::kClip;
    if (kind == ActivationKind::kRelu) least = Vec{};
    if (kind == ActivationKind::kClip) least = splat(act.a), most = splat(act.b);
  }
  // NaN stays NaN.
  Vec operator()(Vec v) const { return smaller(most, larger(least, v)); }
};

// Half a vector, where there is such a one: it is added to twice as fast.
#if defined(__AVX512F__)
constexpr bool kHalves = true;
using Half = float __attribute__((vector_size(L * 2), may_alias));
Half half_of(Vec v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }
#else
constexpr bool kHalves = false;
using Half = Vec;
Half half_of(Vec v) { return v; }
#endif

// The sums of kRows pixels of a panel, whose last vector may count by its first half alone.
template <int kRows, int kVectors, bool kHalf>
struct Sums {
  static constexpr int kFull = kVectors - (kHalf ? 1 : 0);
  Vec full[kRows][kFull > 0 ? kFull : 1];
  Half half[kRows];

  explicit Sums(const float* bias) {
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kFull; ++j) full[i][j] = load_aligned(bias + j * L);
      if constexpr (kHalf) half[i] = half_of(load_aligned(bias + kFull * L));
    }
  }

  // Adds what step k's number of pixel i, x[k x_step + i x_pixel], gives with the vectors at w + k kVectors L.
  // kFetch: and fetches `pace` bytes for each step from `next` on.
  template <bool kFetch = false>
  void multiply(const float* x, int64_t x_step, int64_t x_pixel, const float* w, int64_t steps,
                const char* next = nullptr, int64_t pace = 0) {
    for (int64_t k = 0; k < steps; ++k, x += x_step, w += kVectors * L) {
      if constexpr (kFetch) {
        __builtin_prefetch(next, 0, 2);
        next += pace;
      }
      Vec v[kVectors];
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) v[j] = load_aligned(w + j * L);
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
        const Vec number = splat(x[i * x_pixel]);
#pragma GCC unroll 2
        for (int j = 0; j < kFull; ++j) full[i][j] += number * v[j];
        if constexpr (kHalf) half[i] += half_of(number) * half_of(v[kFull]);
      }
    }
  }
};

// How many of `all` each of some parts has, one part after another: as equal as they can be, without a division for
// each.
class Shares {
 public:
  Shares(int64_t all, int64_t parts)
      : parts_(std::max<int64_t>(parts, 1)), each_(all / parts_), rest_(all % parts_) {}
  int64_t next() {
    left_ += rest_;
    if (left_ < parts_) return each_;
    left_ -= parts_;
    return each_ + 1;
  }

 private:
  int64_t parts_, each_, rest_, left_ = 0;
};

// f(Rows<n>()) for the number of rows of a tile.
template <int kRows>
using Rows = std::integral_constant<int, kRows>;
template <int kRows = kMaxRows, class F>
inline void with_rows(int64_t rows, const F& f) {
  if constexpr (kRows == 1) {
    f(Rows<1>());
  } else if (rows == kRows) {
    f(Rows<kRows>());
  } else {
    with_rows<kRows - 1>(rows, f);
  }
}

// Some rows of y.
struct Block {
  const Problem& p;
  const Plan& plan;
  const Weights& w;
  const Finish finish;
  const float *x, *r;  // of the image
  float *y, *s, *d;
  int64_t first, rows;  // of y

  int64_t pixels() const { return rows * p.out[1]; }
  // The same rows of an image behind it.
  Block of_image(int64_t n) const {
    Block block = *this;
    block.x += n * p.C * p.in_size();
    if (p.has_residual) block.r += n * p.O * p.out_size();
    block.y += n * p.O * p.out_size();
    block.d += n * plan.d_numbers(p);
    return block;
  }
  // Where row h of x, counted from the first one of the padding, lies in a plane of s.
  float* row_of(float* s, int64_t h) const { return s + h % plan.height * plan.width * L; }

  // Rows [begin, end) of one panel of the first convolution, counted from the first one of the padding, to s.
  template <int kVectors>
  void expand(int64_t panel, int64_t begin, int64_t end, float* to, const float* results,
              int64_t lines) const {
    const auto inside = [&](int64_t h) { return std::clamp<int64_t>(h - p.pad[0], 0, p.in[0]); };
    const int64_t from = inside(begin), until = inside(end);
    for (int64_t h = begin; h < end; ++h) {
      if (inside(h) < inside(h + 1)) continue;
      for (int64_t j = 0; j < kVectors; ++j) {
        std::memset(row_of(to + j * plan.plane, h), 0, static_cast<size_t>(plan.width * L) * sizeof(float));
      }
    }
    const int64_t count = (until - from) * p.in[1], tiles = ceil_div(count, kMaxRows);
    const float* weights = w.expand + panel * kPanelWidth * p.C;
    const float* bias = w.expand_bias + panel * kPanelWidth;
    const int64_t columns = p.in[1], plane = plan.plane;
    const char* next = reinterpret_cast<const char*>(weights + p.C * kVectors * L);
    const int64_t pace = ceil_div(kVectors * L * 4, std::max<int64_t>(tiles, 1));
    int64_t row = from, column = 0;
    float* o = row_of(to, row + p.pad[0]) + p.pad[1] * L;
    Shares numbers(count, tiles), fetched(lines, tiles);
    const float* number = x + from * columns;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      for (int64_t line = fetched.next(); line > 0; --line, results += L) {
        for (int64_t j = 0; j < kVectors; ++j) __builtin_prefetch(results + j * pixels() * L, 1);
      }
      with_rows(numbers.next(), [&](auto n) {
        constexpr int kRows = n;
        Sums<kRows, kVectors, false> sums(bias);
        sums.template multiply<true>(number, p.in_size(), 1, weights, p.C, next + tile * p.C * pace, pace);
        number += kRows;
        const Vec least = finish.least, most = finish.most;
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i, o += L) {
#pragma GCC unroll 2
          for (int j = 0; j < kVectors; ++j)
            store_aligned(o + j * plane, smaller(most, larger(least, sums.full[i][j])));
          if (++column == columns) {
            column = 0;
            o = row_of(to, ++row + p.pad[0]) + (p.pad[1] - 1) * L;
          }
        }
      });
    }
    if (finish.bounds) return;
    for (int64_t h = from; h < until; ++h) {
      float* o = row_of(to, h + p.pad[0]) + p.pad[1] * L;
      for (int64_t j = 0; j < kVectors; ++j) activate_block(p.act, o + j * plane, o + j * plane, columns * L);
    }
  }

  // kColumns pixels of the window's convolution.
  template <int kColumns, int kKernel, int kStride>
  void window_at(const float* const* from, const float* weights, Vec bias, const Finish& act,
                 float* to) const {
    Vec sum[kColumns];
    for (Vec& v : sum) v = bias;
    if constexpr (kKernel > 0) {
      // Each number is read once for all pixels of a row that it counts for.
#pragma GCC unroll 5
      for (int h = 0; h < kKernel; ++h) {
        const float* row = from[h];
#pragma GCC unroll 20
        for (int column = 0; column < (kColumns - 1) * kStride + kKernel; ++column) {
          const Vec x = load_aligned(row + column * L);
#pragma GCC unroll 5
          for (int k = 0; k < kKernel; ++k) {
            const int i = (column - k) / kStride;
            if (column < k || (column - k) % kStride != 0 || i >= kColumns) continue;
            sum[i] += x * load_aligned(weights + (h * kKernel + k) * L);
          }
        }
      }
    } else {
      for (int64_t tap = 0; tap < p.taps(); ++tap) {
        const Vec v = load_aligned(weights + tap * L);
        const float* at = from[tap / p.kernel[1]] + tap % p.kernel[1] * L;
        for (int i = 0; i < kColumns; ++i) sum[i] += load_aligned(at + i * p.stride[1] * L) * v;
      }
    }
#pragma GCC unroll 7
    for (int i = 0; i < kColumns; ++i) store_aligned(to + i * L, act(sum[i]));
  }

  // Rows [begin, end) of the second convolution, of one vector of M, from s to d.
  template <int kKernel, int kStride>
  void window(int64_t vector, int64_t begin, int64_t end, float* from) const {
    const float* weights = w.window + vector * p.taps() * L;
    const Vec bias = load_aligned(w.window_bias + vector * L);
    float* to = d + (vector * pixels() + begin * p.out[1]) * L;
    const Finish act = finish;
    std::array<const float*, kKernel> fixed;
    std::vector<const float*> any;
    if constexpr (kKernel == 0) any.resize(static_cast<size_t>(p.kernel[0]));
    const float** lines = kKernel > 0 ? fixed.data() : any.data();
    const int64_t height = kKernel > 0 ? kKernel : p.kernel[0],
                  stride = (kStride > 0 ? kStride : p.stride[1]) * L;
    for (int64_t h = begin; h < end; ++h, to += p.out[1] * L) {
      const int64_t top = (first + h) * p.stride[0];
      const float* line = row_of(from, top);
      for (int64_t k = 0; k < height; ++k) {
        lines[k] = line;
        line += plan.width * L;
        if (line == from + plan.plane) line = from;
      }
      const auto next = [&](int64_t columns) {
        for (int64_t k = 0; k < height; ++k) lines[k] += columns * stride;
      };
      int64_t c = 0;
      for (; c + kTogether <= p.out[1]; c += kTogether, next(kTogether)) {
        window_at<kTogether, kKernel, kStride>(lines, weights, bias, act, to + c * L);
      }
      for (; c < p.out[1]; ++c, next(1))
        window_at<1, kKernel, kStride>(lines, weights, bias, act, to + c * L);
      if (!act.bounds) activate_block(p.act, to, to, static_cast<size_t>(p.out[1] * L));
    }
  }
  void window(int64_t vector, int64_t begin, int64_t end, float* from) const {
    const bool square = p.kernel[0] == p.kernel[1] && p.stride[0] == p.stride[1];
    const int64_t kernel = square ? p.kernel[0] : 0, stride = p.stride[1];
    if (kernel == 3 && stride == 1) return window<3, 1>(vector, begin, end, from);
    if (kernel == 3 && stride == 2) return window<3, 2>(vector, begin, end, from);
    if (kernel == 5 && stride == 1) return window<5, 1>(vector, begin, end, from);
    if (kernel == 5 && stride == 2) return window<5, 2>(vector, begin, end, from);
    window<0, 0>(vector, begin, end, from);
  }

  // Zeros beside the rows of a panel of s, which nothing is written to.
  void clear_sides(float* to) const {
    const int64_t inside = p.pad[1] + p.in[1];
    for (int64_t row = 0; row < kPanel * plan.height; ++row, to += plan.width * L) {
      std::fill_n(to, p.pad[1] * L, 0.0f);
      std::fill_n(to + inside * L, (plan.width - inside) * L, 0.0f);
    }
  }

  // Both, of a panel of M and a band of rows, which may go on where the rows ended that `memory` is from.
  void hidden(int64_t panel, int64_t band, bool goes_on, float* memory) const {
    const int64_t vectors = panel_vectors(p.M, panel), last = rows * (band + 1) / plan.bands;
    int64_t begin = rows * band / plan.bands, done = 0;  // rows of x that are in s
    if (goes_on) done = (first + begin - 1) * p.stride[0] + p.kernel[0];
    for (int64_t end; begin < last; begin = end) {
      end = std::min(last, begin + plan.step);
      const int64_t top = (first + begin) * p.stride[0],
                    bottom = (first + end - 1) * p.stride[0] + p.kernel[0];
      done = std::max(done, top);
      const float* results = d + (panel * kPanel * pixels() + begin * p.out[1]) * L;
      const int64_t lines = (end - begin) * p.out[1];
      if (vectors == kPanel) {
        expand<kPanel>(panel, done, bottom, memory, results, lines);
      } else {
        expand<1>(panel, done, bottom, memory, results, lines);
      }
      done = bottom;
      for (int64_t j = 0; j < vectors; ++j) window(panel * kPanel + j, begin, end, memory + j * plan.plane);
    }
  }

  // The third convolution, of some pixels and a panel of O, to rows of `o`.
  template <int kVectors, bool kHalf>
  void project(int64_t at, int64_t count, int64_t panel, float* o) const {
    const float* weights = w.project + panel * kPanelWidth * p.M;
    with_rows(count, [&](auto n) {
      constexpr int kRows = n;
      Sums<kRows, kVectors, kHalf> sums(w.project_bias + panel * kPanelWidth);
      for (int64_t m = 0; m < p.M; m += L) {
        sums.multiply(d + m * pixels() + at * L, 1, L, weights + m * kVectors * L, std::min(L, p.M - m));
      }
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < sums.kFull; ++j) store_aligned(o + (i * kPanel + j) * L, sums.full[i][j]);
        if constexpr (kHalf) *reinterpret_cast<Half*>(o + (i * kPanel + sums.kFull) * L) = sums.half[i];
      }
    });
  }

  // The same of `count` pixels, to y.
  void result(int64_t at, int64_t count, int64_t panel) const {
    alignas(64) float o[L * kPanelWidth], t[L * L];
    const int64_t channels = p.O - panel * kPanelWidth, vectors = panel_vectors(p.O, panel);
    const bool half = kHalves && channels <= vectors * L - L / 2;
    if (vectors == kPanel) {
      half ? project<kPanel, kHalves>(at, count, panel, o) : project<kPanel, false>(at, count, panel, o);
    } else {
      half ? project<1, kHalves>(at, count, panel, o) : project<1, false>(at, count, panel, o);
    }
    for (int64_t j = 0; j < vectors; ++j) {
      transpose(o + j * L, kPanelWidth, t, L);
      const int64_t channel = panel * kPanelWidth + j * L;
      for (int64_t i = 0; i < std::min(L, p.O - channel); ++i) {
        const int64_t place = (channel + i) * p.out_size() + first * p.out[1] + at;
        Vec v = load_aligned(t + i * L);
        if (p.has_residual) v += load_range(r + place, 0, count);
        store_part(y + place, v, count, false);
      }
    }
  }
};

}  // namespace

template <class T>
size_t inverted_residual_weights(const Problem& p) {
  Workspace memory(nullptr);
  Weights(p, memory);
  return memory.bytes();
}

template <class T>
void inverted_residual_prepare(const Problem& p, const InvertedResidualWeights<T>& from, void* weights) {
  Workspace memory(weights);
  const Weights to(p, memory);
  const auto [expand, expand_bias, window, window_bias, project, project_bias] = from;
  std::memset(weights, 0, memory.bytes());
  const auto in_panel = [](int64_t rows, int64_t columns, int64_t row, int64_t column) {
    const int64_t panel = column / kPanelWidth, width = panel_vectors(columns, panel) * L;
    return panel * kPanelWidth * rows + row * width + column % kPanelWidth;
  };
  for (int64_t m = 0; m < p.M; ++m) {
    for (int64_t c = 0; c < p.C; ++c) to.expand[in_panel(p.C, p.M, c, m)] = expand[m * p.C + c];
    for (int64_t k = 0; k < p.taps(); ++k) {
      to.window[(m / L * p.taps() + k) * L + m % L] = window[m * p.taps() + k];
    }
    for (int64_t o = 0; o < p.O; ++o) to.project[in_panel(p.M, p.O, m, o)] = project[o * p.M + m];
  }
  std::copy_n(expand_bias, p.M, to.expand_bias);
  std::copy_n(window_bias, p.M, to.window_bias);
  std::copy_n(project_bias, p.O, to.project_bias);
}

template <class T>
size_t inverted_residual_workspace(const Problem& p, size_t lanes) {
  const Plan plan(p, static_cast<int64_t>(lanes));
  Workspace memory(nullptr);
  memory.take<float>(plan.s_numbers(p));
  memory.take<float>(plan.images * plan.d_numbers(p));
  return memory.bytes();
}

template <class T>
void inverted_residual(const Problem& p, const T* x, const void* weights, const T* r, T* y,
                       Parallel& parallel, void* workspace) {
  if (p.N * p.O * p.out_size() == 0) return;
  const Plan plan(p, static_cast<int64_t>(parallel.lanes()));
  Workspace memory(workspace), packed(const_cast<void*>(weights));
  auto* s = memory.take<float>(plan.s_numbers(p));
  auto* d = memory.take<float>(plan.images * plan.d_numbers(p));
  const Weights w(p, packed);
  std::vector<Lane> slots(static_cast<size_t>(plan.slots(p)));
  const int64_t panels = ceil_div(p.O, kPanelWidth);
  // Weights that would not stay in the cache beside d pass once.
  const bool by_panels = 4 * p.M * p.O > part_of_cache(kWeights);
  std::vector<Loop> loops;
  int64_t items = 0;  // of the loops before
  for (int64_t n = 0; n < p.N; n += plan.images) {
    const int64_t of_y = n * p.O * p.out_size(), images = std::min(plan.images, p.N - n);
    for (int64_t first = 0; first < p.out[0]; first += plan.rows) {
      const Block block = {p,
                           plan,
                           w,
                           Finish(p.act),
                           x + n * p.C * p.in_size(),
                           p.has_residual ? r + of_y : nullptr,
                           y + of_y,
                           s,
                           d,
                           first,
                           std::min(plan.rows, p.out[0] - first)};
      const int64_t hidden = plan.panels * plan.bands;  // items of an image
      loops.push_back({images * hidden, [&, block, items, hidden](int64_t item, size_t lane) {
                         const int64_t panel = item % hidden / plan.bands,
                                       slot = plan.whole(p) ? static_cast<int64_t>(lane) : panel;
                         float* const mine = s + slot * kPanel * plan.plane;
                         Lane& state = slots[static_cast<size_t>(slot)];
                         if (!state.cleared) block.clear_sides(mine);
                         const int64_t band = item % plan.bands;
                         const bool goes_on =
                             plan.whole(p) ? band > 0 && items + item == state.next : block.first > 0;
                         block.of_image(item / hidden).hidden(panel, band, goes_on, mine);
                         state = {items + item + 1, true};
                       }});
      items += loops.back().items;
      const int64_t pixels = block.pixels(), parts = plan.tiles(pixels, panels);
      loops.push_back({images * parts * panels, [&, block, pixels, parts](int64_t all, size_t) {
                         const int64_t image = all / (parts * panels), item = all % (parts * panels);
                         const int64_t part = by_panels ? item % parts : item / panels,
                                       panel = by_panels ? item / parts : item % panels;
                         const int64_t at = pixels * part / parts;
                         block.of_image(image).result(at, pixels * (part + 1) / parts - at, panel);
                       }});
    }
  }
  parallel_loops(parallel, loops);
}

template size_t inverted_residual_weights<float>(const Problem&);
template void inverted_residual_prepare(const Problem&, const InvertedResidualWeights<float>&, void*);
template size_t inverted_residual_workspace<float>(const Problem&, size_t);
template void inverted_residual(const Problem&, const float*, const void*, const float*, float*, Parallel&,
                                void*);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
