// InvertedResidual computes some rows of y at a time: the intermediate results remain in the second-level cache.
//
//   s [vectors of M][rows][columns][L]   the first convolution's result, with the window's padding
//   d [vectors of M][pixels][L]          the second convolution's result
//
// Vectors hold channels, because 7x7 and 14x14 planes would leave vectors of pixels partly empty. The pointwise
// convolutions broadcast one pixel of a channel: the first reads it from the planes of x, the last from d. s is a ring
// buffer of rows. Several threads compute all rows of y at a time, divided into bands. If a thread does not process
// adjacent bands in order, it recomputes the rows of s that the windows of two bands share.
#include <array>
#include <cstring>
#include <vector>

#include "cpu/microkernels/activation.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/inverted_residual/op.h"
#include "operators/conv/inverted_residual/plan_cpu.h"
#include "operators/conv/inverted_residual/sums_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// A block of rows of y.
struct RowsOfImage {
  const InvertedResidualProblem& p;
  const InvertedResidualPlan& plan;
  const PackedWeights& w;
  const Bounds finish;
  const float *x, *r;  // x and r of the image
  float *y, *s, *d;
  int64_t first, rows;  // rows of y

  int64_t pixels() const { return rows * p.out[1]; }
  // Returns the same rows, n images further.
  RowsOfImage of_image(int64_t n) const {
    RowsOfImage block = *this;
    block.x += n * p.C * p.in_size();
    if (p.has_residual) block.r += n * p.O * p.out_size();
    block.y += n * p.O * p.out_size();
    block.d += n * plan.d_floats(p);
    return block;
  }
  // Returns the address of row h in a plane of s. h counts from the first padding row.
  float* row_of(float* s, int64_t h) const { return s + h % plan.height * plan.width * L; }

  // Computes rows [begin, end) of one panel of the first convolution and stores them to s. begin and end count from the
  // first padding row. Prefetches `lines` pixels of d from `results` on, for the second convolution.
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
    const int64_t prefetch_bytes = ceil_div(kVectors * L * 4, std::max<int64_t>(tiles, 1));
    int64_t row = from, column = 0;
    float* o = row_of(to, row + p.pad[0]) + p.pad[1] * L;
    BalancedParts tile_pixels(count, tiles), fetched(lines, tiles);
    const float* pixel = x + from * columns;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      for (int64_t line = fetched.next(); line > 0; --line, results += L) {
        for (int64_t j = 0; j < kVectors; ++j) __builtin_prefetch(results + j * pixels() * L, 1);
      }
      with_rows(tile_pixels.next(), [&](auto n) {
        constexpr int kRows = n;
        PixelSums<kRows, kVectors, false> sums(bias);
        sums.template multiply<true>(pixel, p.in_size(), 1, weights, p.C, next + tile * p.C * prefetch_bytes,
                                     prefetch_bytes);
        pixel += kRows;
        const Bounds act = finish;
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i, o += L) {
#pragma GCC unroll 2
          for (int j = 0; j < kVectors; ++j) store_aligned(o + j * plane, act.clamp(sums.full[i][j]));
          if (++column == columns) {
            column = 0;
            o = row_of(to, ++row + p.pad[0]) + (p.pad[1] - 1) * L;
          }
        }
      });
    }
    if (finish.clamps()) return;
    for (int64_t h = from; h < until; ++h) {
      float* o = row_of(to, h + p.pad[0]) + p.pad[1] * L;
      for (int64_t j = 0; j < kVectors; ++j) activate_block(p.act, o + j * plane, o + j * plane, columns * L);
    }
  }

  // Computes kColumns pixels of the second convolution.
  template <int kColumns, int kKernel, int kStride>
  void window_at(const float* const* from, const float* weights, Vec bias, const Bounds& act,
                 float* to) const {
    Vec sum[kColumns];
    for (Vec& v : sum) v = bias;
    if constexpr (kKernel > 0) {
      // Each element is read once for all pixels of a row that use it.
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
    for (int i = 0; i < kColumns; ++i) store_aligned(to + i * L, act.clamp(sum[i]));
  }

  // Computes rows [begin, end) of the second convolution for one vector of M, from s to d.
  template <int kKernel, int kStride>
  void window(int64_t vector, int64_t begin, int64_t end, float* from) const {
    const float* weights = w.window + vector * p.taps() * L;
    const Vec bias = load_aligned(w.window_bias + vector * L);
    float* to = d + (vector * pixels() + begin * p.out[1]) * L;
    const Bounds act = finish;
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
      for (; c + kWindowPixels <= p.out[1]; c += kWindowPixels, next(kWindowPixels)) {
        window_at<kWindowPixels, kKernel, kStride>(lines, weights, bias, act, to + c * L);
      }
      for (; c < p.out[1]; ++c, next(1))
        window_at<1, kKernel, kStride>(lines, weights, bias, act, to + c * L);
      if (!act.clamps()) activate_block(p.act, to, to, static_cast<size_t>(p.out[1] * L));
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

  // Sets the padding columns of a panel of s to zero. No convolution writes to them.
  void clear_sides(float* to) const {
    const int64_t inside = p.pad[1] + p.in[1];
    for (int64_t row = 0; row < kPanel * plan.height; ++row, to += plan.width * L) {
      std::fill_n(to, p.pad[1] * L, 0.0f);
      std::fill_n(to + inside * L, (plan.width - inside) * L, 0.0f);
    }
  }

  // Computes the first two convolutions for a panel of M and a band of rows. `continues`: s at `memory` has the last
  // rows of the previous band.
  void compute_d(int64_t panel, int64_t band, bool continues, float* memory) const {
    const int64_t vectors = panel_vectors(p.M, panel), last = rows * (band + 1) / plan.bands;
    int64_t begin = rows * band / plan.bands, done = 0;  // rows up to `done` are in s
    if (continues) done = (first + begin - 1) * p.stride[0] + p.kernel[0];
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

  // Computes the third convolution for `count` pixels from `at` on and a panel of O, and stores it to `o`
  // [pixels][panel].
  template <int kVectors, bool kHalf>
  void project(int64_t at, int64_t count, int64_t panel, float* o) const {
    const float* weights = w.project + panel * kPanelWidth * p.M;
    with_rows(count, [&](auto n) {
      constexpr int kRows = n;
      PixelSums<kRows, kVectors, kHalf> sums(w.project_bias + panel * kPanelWidth);
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

  // Computes the third convolution for `count` pixels and a panel of O, adds the residual, and stores the result to y.
  void compute_y(int64_t at, int64_t count, int64_t panel) const {
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
size_t inverted_residual_weights(const InvertedResidualProblem& p) {
  Workspace memory(nullptr);
  PackedWeights(p, memory);
  return memory.bytes();
}

template <class T>
void inverted_residual_prepare(const InvertedResidualProblem& p, const InvertedResidualWeights<T>& from,
                               void* weights) {
  Workspace memory(weights);
  const PackedWeights to(p, memory);
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
size_t inverted_residual_workspace(const InvertedResidualProblem& p, size_t workers) {
  const InvertedResidualPlan plan(p, static_cast<int64_t>(workers));
  Workspace memory(nullptr);
  memory.take<float>(plan.s_floats(p));
  memory.take<float>(plan.images * plan.d_floats(p));
  return memory.bytes();
}

template <class T>
void inverted_residual(const InvertedResidualProblem& p, const T* x, const void* weights, const T* r, T* y,
                       Parallel& parallel, void* workspace) {
  if (p.N * p.O * p.out_size() == 0) return;
  const InvertedResidualPlan plan(p, static_cast<int64_t>(parallel.workers()));
  Workspace memory(workspace), packed(const_cast<void*>(weights));
  auto* s = memory.take<float>(plan.s_floats(p));
  auto* d = memory.take<float>(plan.images * plan.d_floats(p));
  const PackedWeights w(p, packed);
  std::vector<BandState> slots(static_cast<size_t>(plan.slots(p)));
  const int64_t panels = ceil_div(p.O, kPanelWidth);
  // If d and W3 do not fit into the cache together, each panel of W3 is read once for all pixels.
  const bool by_panels = 4 * p.M * p.O > part_of_cache(kWeights);
  std::vector<Loop> loops;
  int64_t items = 0;  // number of items in the previous loops of the first two convolutions
  for (int64_t n = 0; n < p.N; n += plan.images) {
    const int64_t of_y = n * p.O * p.out_size(), images = std::min(plan.images, p.N - n);
    for (int64_t first = 0; first < p.out[0]; first += plan.rows) {
      const RowsOfImage block = {p,
                                 plan,
                                 w,
                                 Bounds(p.act),
                                 x + n * p.C * p.in_size(),
                                 p.has_residual ? r + of_y : nullptr,
                                 y + of_y,
                                 s,
                                 d,
                                 first,
                                 std::min(plan.rows, p.out[0] - first)};
      const int64_t hidden = plan.panels * plan.bands;  // items of an image
      loops.push_back({images * hidden, [&, block, items, hidden](int64_t item, size_t worker) {
                         const int64_t panel = item % hidden / plan.bands,
                                       slot =
                                           plan.computes_all_rows(p) ? static_cast<int64_t>(worker) : panel;
                         float* const mine = s + slot * kPanel * plan.plane;
                         BandState& state = slots[static_cast<size_t>(slot)];
                         if (!state.cleared) block.clear_sides(mine);
                         const int64_t band = item % plan.bands;
                         const bool continues = plan.computes_all_rows(p)
                                                    ? band > 0 && items + item == state.next
                                                    : block.first > 0;
                         block.of_image(item / hidden).compute_d(panel, band, continues, mine);
                         state = {items + item + 1, true};
                       }});
      items += loops.back().items;
      const int64_t pixels = block.pixels(), parts = plan.tiles(pixels, panels);
      loops.push_back({images * parts * panels, [&, block, pixels, parts](int64_t all, size_t) {
                         const int64_t image = all / (parts * panels), item = all % (parts * panels);
                         const int64_t part = by_panels ? item % parts : item / panels,
                                       panel = by_panels ? item / parts : item % panels;
                         const int64_t at = pixels * part / parts;
                         block.of_image(image).compute_y(at, pixels * (part + 1) / parts - at, panel);
                       }});
    }
  }
  parallel_loops(parallel, loops);
}

template decltype(inverted_residual_weights<float>) inverted_residual_weights<float>;
template decltype(inverted_residual_prepare<float>) inverted_residual_prepare<float>;
template decltype(inverted_residual_workspace<float>) inverted_residual_workspace<float>;
template decltype(inverted_residual<float>) inverted_residual<float>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
