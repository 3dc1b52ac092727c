// A phase of y has the elements whose positions, counted with the padding, are equal modulo the stride. A phase is a
// convolution of x with stride 1. Its taps are the k for which k * dilation has the same remainder modulo the stride.
//
//   y[q * stride + remainder - pad] = sum of x[q - distance] * w[k], where distance * stride + remainder = k * dilation
//
// All phases share one grid of positions q. x is packed once for all distances, in strips of the grid
// (fused_conv/strips.h). The phases of a phase set (phases_cpu.h) are computed together: all phases if there are at
// most kMostPhases, otherwise the phases of one row of y. The phases of a set with the same distances share a GEMM. Its
// rows are the phases of some channels of y, and its columns are the pixels of the grid. Without dilation, all phases
// of a set share one GEMM if the kernel size is a multiple of the stride. The sums of adjacent phases are interleaved
// in the first-level cache and stored as rows of y.
#include <vector>

#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/fused_conv/strips.h"
#include "operators/conv/fused_conv_transpose/finish_cpu.h"
#include "operators/conv/fused_conv_transpose/op.h"
#include "operators/conv/fused_conv_transpose/phases_cpu.h"
#include "operators/conv/fused_conv_transpose/segments_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// The words of x for this number of steps fit in the first-level cache.
constexpr int64_t kStepsTogether = 128;
constexpr int64_t kPrefetchSteps = 16;  // steps from a prefetch to its use

// A strip of x, and the tables of its GEMMs.
struct StripTables {
  Strip strip;
  bool grid_is_x;                  // the grid is x itself: pack_panels() packs it, otherwise pack_strip()
  std::vector<Segments> segments;  // for each PhaseSet
  // [set][GEMM][step]: offsets in the packed x. kPrefetchSteps copies of the last one follow, for prefetches.
  std::vector<std::vector<std::vector<int64_t>>> offsets;

  StripTables(const ConvolutionProblem& p, const ConvolutionProblem& grid, const PhasePlan& plan,
              const Strip& of)
      : strip(of), grid_is_x(is_grid_x(grid)) {
    std::vector<int64_t> channel_offsets;  // offset in a packed channel for each distance
    for (const ConvolutionProblem::Axes& distance : plan.distances) {
      ConvolutionProblem::Axes tap;
      for (size_t i = 0; i < 3; ++i) tap[i] = grid.kernel[i] - 1 - distance[i];
      channel_offsets.push_back(strip.offset(grid, tap));
    }
    for (const PhaseSet& set : plan.sets) {
      segments.emplace_back(p, plan, set, of);
      auto& own = offsets.emplace_back();
      for (const PhaseGemm& gemm : set.gemms) {
        auto& steps = own.emplace_back();
        steps.reserve(static_cast<size_t>(grid.C) * gemm.distances.size() + kPrefetchSteps);
        for (int64_t c = 0; c < grid.C; ++c) {
          for (const int64_t distance : gemm.distances) {
            steps.push_back(grid_is_x ? c * kPanelWidth
                                      : c * strip.words + channel_offsets[static_cast<size_t>(distance)]);
          }
        }
        steps.resize(steps.size() + kPrefetchSteps, steps.empty() ? 0 : steps.back());
      }
    }
  }

  int64_t panels() const { return ceil_div(strip.span(), kPanelWidth); }
};

// The packed x: panels of pixels (pack_panels) or a strip (pack_strip).
struct PackedX {
  const Word* x;
  int64_t group, panel;  // strides of groups and panels, in words
};
// The packed x and the loop that packs it.
struct PackedInput {
  PackedX source;
  Loop pack_channels;
};

// Packs x in panels of pixels. The words of all channels are contiguous in a panel, because each bundle of output
// channels reads the panel again.
template <class T>
PackedInput pack_panels(const ConvolutionProblem& p, const StripTables& tables, const T* image,
                        Word* gathered) {
  const int64_t panels = tables.panels(), pixels = tables.strip.span(), size = p.C * kPanelWidth;
  const ConvolutionProblem::Axes& first = tables.strip.first;
  const T* from = image + (first[0] * p.in[1] + first[1]) * p.in[2] + first[2];
  const auto pack_channels = [=, &p](int64_t channel, size_t) {
    const T* plane = from + channel * p.in_size();
    Word* to = gathered + channel / p.C * panels * size + channel % p.C * kPanelWidth;
    for (int64_t i = 0; i < panels * kPanelWidth; i += kPanelWidth, to += size) {
      for (int64_t j = 0; j < kPanelWidth; j += L) {
        const Vec v = load_range(plane + i + j, 0, pixels - i - j);
        store_aligned(reinterpret_cast<float*>(to + j), v);
      }
    }
  };
  return {{gathered, panels * size, size}, {p.x_channels(), pack_channels}};
}

template <class T>
PackedInput pack_strip(const ConvolutionProblem& grid, const StripTables& tables, const T* image,
                       Word* packed) {
  const auto pack_channels = [=, &grid, &tables](int64_t c, size_t) {
    pack_words(Float32(), grid, tables.strip, image + c * grid.in_size(), Second{},
               packed + c * tables.strip.words);
  };
  return {{packed, grid.C * tables.strip.words, kPanelWidth}, {grid.x_channels(), pack_channels}};
}

// Prefetches words at irregular offsets, which hardware prefetching cannot predict.
struct PrefetchedTable : Table {
  const Word* at(const Word* v, int64_t step, int64_t) const {
    __builtin_prefetch(v + offsets[step + kPrefetchSteps]);
    return v + offsets[step];
  }
};

// Adds the sums of some steps to the sums of the previous steps at o. `first`: there are no previous steps.
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

// Computes the sums of a bundle for a panel of pixels: [phase][channel][vectors * L]. All rows process kStepsTogether
// steps before the next steps, which keeps x in the first-level cache.
void multiply_bundle(const PhasePlan& plan, const StripTables& tables, const ChannelBundle& bundle,
                     const Word* x, const Word* w, int64_t vectors, float* sums) {
  const PhaseSet& set = plan.sets[bundle.set];
  for (size_t i = 0; i < set.gemms.size(); ++i) {
    const int64_t* offsets = tables.offsets[bundle.set][i].data();
    const int64_t steps = static_cast<int64_t>(tables.offsets[bundle.set][i].size()) - kPrefetchSteps,
                  rows = bundle.channels * static_cast<int64_t>(set.gemms[i].taps.size()),
                  blocks = phase_blocks(rows);
    for (int64_t step = 0; step == 0 || step < steps; step += kStepsTogether) {
      const int64_t depth = std::min(kStepsTogether, steps - step);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = rows * block / blocks, here = rows * (block + 1) / blocks - first;
        const Word* words = w + first * steps + step * here;
        float* o = sums + first * vectors * L;
        if (tables.grid_is_x) {
          const Table table = {offsets + step};
          pick_multiply<Float32, Table, Add>(here, vectors)(words, x, table, depth, o, Add{step == 0});
        } else {
          const PrefetchedTable table = {{offsets + step}};
          pick_multiply<Float32, PrefetchedTable, Add>(here, vectors)(words, x, table, depth, o,
                                                                      Add{step == 0});
        }
      }
    }
    w += rows * steps;
    sums += rows * vectors * L;
  }
}

// Stores the rows of y from the sums of a bundle.
template <class T>
void finish_bundle(const ConvolutionProblem& p, const PhasePlan& plan, const StripTables& tables,
                   const ChannelBundle& bundle, int64_t g, int64_t panel, int64_t vectors,
                   const ImageEpilogue<T>& epilogue, const TransposeScratch& scratch) {
  const Segments& segments = tables.segments[bundle.set];
  const std::vector<PhaseRow>& rows = plan.sets[bundle.set].rows;
  const int64_t width = vectors * L, distance = bundle.channels * width;
  for (size_t j = 0; j < rows.size(); ++j) {
    const PhaseRow& row = rows[j];
    const Segment *begin = segments.begin(panel, static_cast<int64_t>(j)),
                  *end = segments.end(panel, static_cast<int64_t>(j));
    const bool stores_directly =
        plan.has_all_columns && row.phases.size() == 2 && begin != end && begin->count == 2 * width;
    for (int64_t i = 0; i < bundle.channels; ++i) {
      const ChannelEpilogue<T> channel = epilogue.of(g * p.M + bundle.first + i);
      const float* sums = scratch.sums + i * width;
      if (stores_directly && channel.bounds.is_complete) {
        const float *even = sums + row.phases[0] * distance, *odd = sums + row.phases[1] * distance;
        for (int64_t k = 0; k < width; k += L) {
          const Vec a = load_aligned(even + k), b = load_aligned(odd + k);
          channel.put(begin->at + 2 * k, shuffle(a, b, Interleaved<0>()));
          channel.put(begin->at + 2 * k + L, shuffle(a, b, Interleaved<L / 2>()));
        }
        continue;
      }
      const float* interleaved = interleave_phases(row, sums, distance, width, scratch);
      float* buffer = interleaved == scratch.interleaved ? scratch.shuffled : scratch.interleaved;
      for (auto at = begin; at != end; ++at)
        channel.finish(at->at, interleaved + at->from, at->count, buffer);
    }
  }
}

template <class T>
Loop multiply_strip(const ConvolutionProblem& p, const PhasePlan& plan, const StripTables& tables,
                    const PackedX& source, const Word* weights, const ImageEpilogue<T>& epilogue,
                    const std::vector<TransposeScratch>& memory) {
  const auto bundles = static_cast<int64_t>(plan.bundles.size()),
             workers = static_cast<int64_t>(memory.size());
  const int64_t panels = tables.panels(), all_vectors = ceil_div(tables.strip.span(), L);
  const int64_t parts = parts_of_least_cost(1, std::min(panels, 4 * workers), p.groups * bundles, workers,
                                            [&](int64_t n) { return ceil_div(panels, n); });
  const auto multiply = [=, &p, &plan, &tables, &memory](int64_t item, size_t worker) {
    const int64_t part = item % parts, g = item / parts / bundles;
    const ChannelBundle& bundle = plan.bundles[static_cast<size_t>(item / parts % bundles)];
    const Word* w = weights + g * p.M * p.C * p.taps() + bundle.weights;
    for (int64_t panel = panels * part / parts; panel < panels * (part + 1) / parts; ++panel) {
      const int64_t vectors = std::min<int64_t>(kPanel, all_vectors - panel * kPanel);
      const Word* x = source.x + g * source.group + panel * source.panel;
      multiply_bundle(plan, tables, bundle, x, w, vectors, memory[worker].sums);
      finish_bundle(p, plan, tables, bundle, g, panel, vectors, epilogue, memory[worker]);
    }
  };
  return {p.groups * bundles * parts, multiply};
}

Strips strips_of(const ConvolutionProblem& grid, size_t workers) {
  return Strips(grid, kStripBytes * static_cast<int64_t>(workers), grid.x_channels(), 1);
}

// Returns memory for x of a strip, with padding for vectors that read beyond it.
Word* take_strip(const ConvolutionProblem& grid, const Strips& strips, Workspace& workspace) {
  const Strip strip = strips.at(grid, 0);
  return workspace.take<Word>(grid.x_channels() * std::max(strip.words, round_up(strip.span(), kPanelWidth)) +
                              kPanelWidth);
}

std::vector<TransposeScratch> take_scratch(const PhasePlan& plan, size_t workers, Workspace& workspace) {
  const int64_t interleaved = static_cast<int64_t>(plan.remainders.size()) * kPanelWidth + L;
  std::vector<TransposeScratch> memory(workers);
  for (TransposeScratch& scratch : memory) {
    scratch.sums = workspace.take<float>(plan.most_rows * kPanelWidth + L);
    scratch.interleaved = workspace.take<float>(interleaved);
    scratch.shuffled = workspace.take<float>(interleaved);
  }
  return memory;
}

bool empty(const ConvolutionProblem& p) { return p.N == 0 || p.y_channels() == 0 || p.out_size() <= 0; }

}  // namespace

template <class T>
size_t fused_conv_transpose_weights(const ConvolutionProblem& p, OnlyAlgorithm) {
  return static_cast<size_t>(p.groups * p.M * p.C * p.taps()) * sizeof(Word);
}

template <class T>
void fused_conv_transpose_prepare(const ConvolutionProblem& p, OnlyAlgorithm, const T* w, void* weights) {
  const PhasePlan plan(p);
  auto* to = static_cast<Word*>(weights);
  for (int64_t g = 0; g < p.groups; ++g) {
    for (const ChannelBundle& bundle : plan.bundles) {
      for (const PhaseGemm& gemm : plan.sets[bundle.set].gemms) {
        const int64_t rows = bundle.channels * static_cast<int64_t>(gemm.taps.size()),
                      blocks = phase_blocks(rows);
        for (int64_t block = 0; block < blocks; ++block) {
          for (int64_t c = 0; c < p.C; ++c) {
            for (size_t tap = 0; tap < gemm.distances.size(); ++tap) {
              for (int64_t row = rows * block / blocks; row < rows * (block + 1) / blocks; ++row) {
                const int64_t m = bundle.first + row % bundle.channels;
                const auto& taps = gemm.taps[static_cast<size_t>(row / bundle.channels)];
                const T weight = w[((g * p.C + c) * p.M + m) * p.taps() + taps[tap]];
                *to++ = Float32::make_words(splat(static_cast<float>(weight)), Vec{})[0];
              }
            }
          }
        }
      }
    }
  }
}

template <class T>
size_t fused_conv_transpose_workspace(const ConvolutionProblem& p, OnlyAlgorithm, size_t workers) {
  if (empty(p)) return 0;
  const ConvolutionProblem grid = grid_of(p);
  Workspace workspace(nullptr);
  take_strip(grid, strips_of(grid, workers), workspace);
  take_scratch(PhasePlan(p), workers, workspace);
  return workspace.bytes();
}

template <class T>
void fused_conv_transpose(const ConvolutionProblem& p, OnlyAlgorithm, const T* x, const void* weights,
                          const T* b, const T* r, const T* slopes, T* y, Parallel& parallel, void* memory) {
  if (empty(p)) return;
  const auto* words = static_cast<const Word*>(weights);
  const PhasePlan plan(p);
  const ConvolutionProblem grid = grid_of(p);
  const Strips strips = strips_of(grid, parallel.workers());
  Workspace workspace(memory);
  Word* packed = take_strip(grid, strips, workspace);
  const std::vector<TransposeScratch> scratch = take_scratch(plan, parallel.workers(), workspace);
  for (int64_t n = 0; n < p.N; ++n) {
    const ImageEpilogue<T> epilogue(p, b, r, slopes, y, n);
    if (!plan.covers_y) finish_without_sums(p, epilogue, parallel);
  }
  for (int64_t begin = 0; begin < grid.out[strips.axis]; begin += strips.most) {
    const StripTables tables(p, grid, plan, strips.at(grid, begin));
    std::vector<Loop> loops;  // the loops of each image in turn
    for (int64_t n = 0; n < p.N; ++n) {
      const T* image = x + n * p.x_channels() * p.in_size();
      PackedInput input =
          tables.grid_is_x ? pack_panels(p, tables, image, packed) : pack_strip(grid, tables, image, packed);
      loops.push_back(std::move(input.pack_channels));
      loops.push_back(multiply_strip(p, plan, tables, input.source, words,
                                     ImageEpilogue<T>(p, b, r, slopes, y, n), scratch));
    }
    parallel_loops(parallel, loops);
  }
}

GRAPHOPT_INSTANTIATE(fused_conv_transpose_weights)
GRAPHOPT_INSTANTIATE(fused_conv_transpose_prepare)
GRAPHOPT_INSTANTIATE(fused_conv_transpose_workspace)
GRAPHOPT_INSTANTIATE(fused_conv_transpose)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
