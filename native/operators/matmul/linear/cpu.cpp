// Computes X W with W packed in panels. X is packed in blocks of rows, which remain in the second-level cache while
// they are multiplied by all panels. Bias, residual and activation are applied while a result is in the first-level
// cache. Large problems in float32 use Strassen's algorithm, which needs seven eighths of the multiplications
// (strassen.h).
#include "operators/matmul/linear/cpu.h"

#include <vector>

#include "cpu/microkernels/gemm.h"
#include "cpu/microkernels/tiles.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/matmul/linear/finish.h"
#include "operators/matmul/linear/strassen.h"
#include "operators/matmul/linear/tiles.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Returns the number of steps of a panel along K.
int64_t weight_steps(const LinearProblem& p) {
  return p.bfloat16 ? tiled_steps(ceil_div(p.K, Bfloat16Pairs::kDepth)) : p.K;
}

template <class E, class T>
void prepare(const LinearProblem& p, const T* w, Word* panels) {
  const int64_t steps = weight_steps(p);
  for (int64_t n = 0; n < p.N; n += L) {
    const int64_t panel = n / kPanelWidth, columns = p.N - n;
    const int64_t width = panel_vectors(p.N, panel) * L;
    Word* out = panel_at(panels, steps, panel) + n % kPanelWidth;
    for (int64_t step = 0; step < steps; ++step, out += width) {
      const int64_t k = step * E::kDepth;
      const Vec low = k < p.K ? load_range(w + k * p.N + n, 0, columns) : Vec{};
      const Vec high = k + 1 < p.K ? load_range(w + (k + 1) * p.N + n, 0, columns) : Vec{};
      *reinterpret_cast<AlignedWords*>(out) = E::make_words(low, high);
    }
  }
}

// The packed X: blocks of at most kMaxRows rows. The blocks that are packed at a time fit in a cache.
struct Blocks {
  int64_t steps;
  int64_t slot;   // words of a block
  int64_t count;  // number of blocks
  int64_t most;   // maximum number of blocks that are packed at a time

  Word* take(Workspace& workspace) const { return workspace.take<Word>(most * slot); }
};

template <class E>
Blocks blocks_of(const LinearProblem& p) {
  Blocks b;
  b.steps = ceil_div(p.K, E::kDepth);
  b.slot = b.steps * kMaxRows + L;
  b.count = ceil_div(p.rows, kMaxRows);
  b.most = ceil_div(b.count, std::max<int64_t>(ceil_div(b.count * b.slot * 4, kChunkBytes), 1));
  return b;
}

template <class E, class T>
void run(const LinearProblem& p, const T* x, const Word* w, const T* b, const T* r, T* y, Parallel& parallel,
         void* memory) {
  const Blocks blocks = blocks_of<E>(p);
  const int64_t steps = blocks.steps, slot = blocks.slot;
  const int64_t panels = ceil_div(p.N, kPanelWidth);
  const auto workers = static_cast<int64_t>(parallel.workers());
  const auto first_row = [&](int64_t block) { return p.rows * block / blocks.count; };
  Workspace workspace(memory);
  Word* s = blocks.take(workspace);
  std::vector<Loop> loops;
  for (int64_t first = 0; first < blocks.count; first += blocks.most) {
    const int64_t count = std::min(blocks.most, blocks.count - first);
    loops.push_back({count, [&, first](int64_t i, size_t) {
                       const int64_t row = first_row(first + i);
                       pack_rows<E>(x + row * p.K, p.K, first_row(first + i + 1) - row, p.K, s + i * slot);
                     }});
    const int64_t parts = parts_of_rows(count, panels, workers);
    loops.push_back({panels * parts, [&, first, count, parts](int64_t item, size_t) {
                       const int64_t panel = item / parts, part = item % parts;
                       const int64_t vectors = panel_vectors(p.N, panel), n = panel * kPanelWidth;
                       const Word* v = panel_at(w, steps, panel);
                       const Word* next = v + steps * vectors * L;
                       const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
                       // Each block prefetches a part of the next panel: `prefetch_bytes` bytes in each step.
                       const int64_t prefetch_bytes =
                           std::min<int64_t>(ceil_div(vectors * L * 4, end - begin), 2 * 64);
                       alignas(64) float o[kMaxRows * kPanelWidth];
                       for (int64_t i = begin; i < end; ++i) {
                         const int64_t row = first_row(first + i), rows = first_row(first + i + 1) - row;
                         prefetch_rows(y + row * p.N + n, p.N, rows);
                         const char* ahead =
                             reinterpret_cast<const char*>(next) + (i - begin) * steps * prefetch_bytes;
                         multiply_rows<E>(rows, vectors, s + i * slot, v, Panel{}, steps, o,
                                          StoreSums{StoreSums::kZeros, ahead, prefetch_bytes});
                         finish(p, o, rows, vectors, p.N - n, b + n,
                                p.has_residual ? r + row * p.N + n : nullptr, y + row * p.N + n);
                       }
                     }});
  }
  parallel_loops(parallel, loops);
}

// Computes one row in float32. Reading the weights takes most of the time. Several panels are read at a time, with all
// their sums in registers. With one panel at a time, there would be too few loads in flight, and each addition would
// wait for the previous one.
template <class T>
void run_row(const LinearProblem& p, const T* x, const Word* w, const T* b, const T* r, T* y,
             Parallel& parallel, void* memory) {
  constexpr int64_t kPanelsAtOnce = 4;
  Workspace workspace(memory);
  Word* s = blocks_of<Float32>(p).take(workspace);
  pack_rows<Float32>(x, p.K, 1, p.K, s);
  const int64_t panels = ceil_div(p.N, kPanelWidth), full_panels = p.N / kPanelWidth;
  const auto* elements = reinterpret_cast<const float*>(s);
  parallel_for(parallel, ceil_div(panels, kPanelsAtOnce), [&](int64_t item, size_t) {
    const int64_t begin = item * kPanelsAtOnce, end = std::min(panels, begin + kPanelsAtOnce);
    alignas(64) float o[kPanelsAtOnce * kPanelWidth];
    if (end <= full_panels && end - begin == kPanelsAtOnce) {
      Vec sums[kPanelsAtOnce][kPanel] = {};
      const auto* v = reinterpret_cast<const float*>(panel_at(w, p.K, begin));
      for (int64_t k = 0; k < p.K; ++k, v += kPanelWidth) {
        const Vec value = splat(elements[k]);
#pragma GCC unroll 4
        for (int64_t i = 0; i < kPanelsAtOnce; ++i) {
#pragma GCC unroll 2
          for (int64_t j = 0; j < kPanel; ++j) {
            sums[i][j] += value * load_aligned(v + i * p.K * kPanelWidth + j * L);
          }
        }
      }
      std::memcpy(o, sums, sizeof o);
    } else {
      for (int64_t panel = begin; panel < end; ++panel) {
        multiply_rows<Float32>(1, panel_vectors(p.N, panel), s, panel_at(w, p.K, panel), Panel{}, p.K,
                               o + (panel - begin) * kPanelWidth, StoreSums{});
      }
    }
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t n = panel * kPanelWidth;
      finish(p, o + (panel - begin) * kPanelWidth, 1, panel_vectors(p.N, panel), p.N - n, b + n,
             p.has_residual ? r + n : nullptr, y + n);
    }
  });
}

}  // namespace

template <class T>
size_t linear_weights(const LinearProblem& p, OnlyAlgorithm) {
  const int64_t words = panels_words(weight_steps(p), p.N) + (fits_strassen(p) ? norm_words(p) : 0);
  return static_cast<size_t>(words) * sizeof(Word);
}

template <class T>
void linear_prepare(const LinearProblem& p, OnlyAlgorithm, const T* w, void* weights) {
  auto* panels = static_cast<Word*>(weights);
  if (p.bfloat16) return prepare<Bfloat16Pairs>(p, w, panels);
  prepare<Float32>(p, w, panels);
  if (fits_strassen(p)) prepare_norms(p, panels);
}

template <class T>
size_t linear_workspace(const LinearProblem& p, OnlyAlgorithm, size_t workers) {
  if constexpr (kHasTiles) {
    if (p.bfloat16 && with_tiles()) return linear_tiles_workspace(p);
  }
  Workspace workspace(nullptr), strassen(nullptr);
  (p.bfloat16 ? blocks_of<Bfloat16Pairs>(p) : blocks_of<Float32>(p)).take(workspace);
  if (uses_strassen(p)) take_memory(strassen_tiling(p), static_cast<int64_t>(workers), strassen);
  return std::max(workspace.bytes(), strassen.bytes());
}

template <class T>
void linear(const LinearProblem& p, OnlyAlgorithm, const T* x, const void* weights, const T* b, const T* r,
            const T*, T* y, Parallel& parallel, void* workspace) {
  if (p.rows <= 0 || p.N <= 0) return;
  const auto* panels = static_cast<const Word*>(weights);
  if constexpr (kHasTiles) {
    if (p.bfloat16 && with_tiles()) return linear_in_tiles(p, x, panels, b, r, y, parallel, workspace);
  }
  if (p.bfloat16) return run<Bfloat16Pairs>(p, x, panels, b, r, y, parallel, workspace);
  if (p.rows == 1) return run_row(p, x, panels, b, r, y, parallel, workspace);
  if (!uses_strassen(p)) return run<Float32>(p, x, panels, b, r, y, parallel, workspace);
  const StrassenGemm<T> strassen(p, x, panels, b, r, y, parallel, workspace);
  strassen.run([&](int64_t row, int64_t rows) {
    LinearProblem part = p;
    part.rows = rows;
    const int64_t at = row * p.N;
    run<Float32>(part, x + row * p.K, panels, b, p.has_residual ? r + at : nullptr, y + at, parallel,
                 workspace);
  });
}

GRAPHOPT_INSTANTIATE(linear_weights)
GRAPHOPT_INSTANTIATE(linear_prepare)
GRAPHOPT_INSTANTIATE(linear_workspace)
GRAPHOPT_INSTANTIATE(linear)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
