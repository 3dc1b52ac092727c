// X W on panels of W: X is packed in blocks of rows that stay in the second-level cache while all panels pass
// by, and each product is finished (bias, residual, activation) while it is in the first-level cache.
#include "operators/linear/cpu.h"

#include "blocks/cpu/activation.h"
#include "blocks/cpu/product.h"
#include "device/cpu/parallel_for.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

constexpr int64_t L = kWidth;
constexpr int64_t kChunkBytes = 768 << 10;  // packed rows of X: most of a second-level cache

struct Weights final : LinearWeights {
  Buffer panels;
};

template <class E, class T>
std::shared_ptr<const LinearWeights> prepare(const LinearProblem& p, const T* w) {
  const int64_t steps = ceil_div(p.K, E::kDepth);
  auto weights = std::make_shared<Weights>();
  weights->panels = zeroed_words(panels_words(steps, p.N));
  for (int64_t n = 0; n < p.N; n += L) {
    const int64_t panel = n / kPanelWidth, columns = p.N - n;
    const int64_t width = panel_vectors(p.N, panel) * L;
    Word* out = panel_at(weights->panels.get(), steps, panel) + n % kPanelWidth;
    for (int64_t step = 0; step < steps; ++step, out += width) {
      const int64_t k = step * E::kDepth;
      const Vec low = load_range(w + k * p.N + n, 0, columns);
      const Vec high = k + 1 < p.K ? load_range(w + (k + 1) * p.N + n, 0, columns) : Vec{};
      *reinterpret_cast<AlignedWords*>(out) = E::join(low, high);
    }
  }
  return weights;
}

// `rows` rows of y from column n on, from their products o, which is overwritten. b, r and y are at that
// column, r and y at the first row.
template <class T>
void finish(const LinearProblem& p, float* o, int64_t rows, int64_t vectors, int64_t columns, const T* b,
            const T* r, T* y) {
  const bool relu = p.act.kind == ActivationKind::kRelu;
  const bool simple = relu || p.act.kind == ActivationKind::kNone;
  const Vec zero = {};
  for (int64_t j = 0; j < vectors; ++j) {
    const int64_t here = columns - j * L;
    const Vec bias = load_range(b + j * L, 0, here);
    for (int64_t i = 0; i < rows; ++i) {
      float* at = o + (i * vectors + j) * L;
      Vec v = load_aligned(at) + bias;
      if (p.has_residual) v += load_range(r + i * p.N + j * L, 0, here);
      if (relu) v = v < zero ? zero : v;
      if (simple) {
        store_part(y + i * p.N + j * L, v, here, false);
      } else {
        store_aligned(at, v);
      }
    }
  }
  if (simple) return;
  activate_block(p.act, o, o, static_cast<size_t>(rows * vectors * L));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < vectors; ++j) {
      store_part(y + i * p.N + j * L, load_aligned(o + (i * vectors + j) * L), columns - j * L, false);
    }
  }
}

template <class E, class T>
void run(const LinearProblem& p, const T* x, const Weights& w, const T* b, const T* r, T* y,
         Parallel& parallel, Workspace& workspace) {
  const int64_t steps = ceil_div(p.K, E::kDepth);
  const int64_t panels = ceil_div(p.N, kPanelWidth);
  const auto lanes = static_cast<int64_t>(parallel.lanes());
  const int64_t slot = steps * kMaxRows + L;  // words of a block of rows
  const int64_t blocks = ceil_div(p.rows, kMaxRows);
  const int64_t chunks = ceil_div(blocks * slot * 4, kChunkBytes);
  const int64_t most = ceil_div(blocks, chunks);
  const auto first_row = [&](int64_t block) { return p.rows * block / blocks; };
  auto* s = static_cast<Word*>(workspace.allocate(static_cast<size_t>(most * slot) * sizeof(Word)));
  for (int64_t first = 0; first < blocks; first += most) {
    const int64_t count = std::min(most, blocks - first);
    parallel_for(parallel, count, [&](int64_t i, size_t) {
      const int64_t row = first_row(first + i);
      pack_rows<E>(x + row * p.K, p.K, first_row(first + i + 1) - row, p.K, s + i * slot);
    });
    // Few panels are divided among the lanes by rows too.
    const int64_t parts = lanes == 1 ? 1 : std::min(count, ceil_div(4 * lanes, panels));
    parallel_for(parallel, panels * parts, [&](int64_t item, size_t) {
      const int64_t panel = item / parts, part = item % parts;
      const int64_t vectors = panel_vectors(p.N, panel), n = panel * kPanelWidth;
      const Word* v = panel_at(w.panels.get(), steps, panel);
      const Word* next = v + steps * vectors * L;
      const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
      // The first blocks share the fetching of the next panel, which a single one could not keep up with.
      const int64_t fetching = std::min(end - begin, vectors), lines = vectors / fetching;
      alignas(64) float o[kMaxRows * kPanelWidth];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = first_row(first + i), rows = first_row(first + i + 1) - row;
        const int64_t turn = i - begin;
        multiply_rows<E>(rows, vectors, s + i * slot, Even{rows}, v, steps, o,
                         next + turn * steps * lines * L, turn < fetching && panel + 1 < panels ? lines : 0);
        finish(p, o, rows, vectors, p.N - n, b + n, p.has_residual ? r + row * p.N + n : nullptr,
               y + row * p.N + n);
      }
    });
  }
}

}  // namespace

template <class T>
std::shared_ptr<const LinearWeights> linear_prepare(const LinearProblem& p, const T* w) {
  return p.bfloat16 ? prepare<Brain>(p, w) : prepare<Single>(p, w);
}

template <class T>
void linear(const LinearProblem& p, const T* x, const LinearWeights& w, const T* b, const T* r, T* y,
            Parallel& parallel, Workspace& workspace) {
  if (p.rows <= 0 || p.N <= 0) return;
  const auto& weights = static_cast<const Weights&>(w);
  if (p.bfloat16) return run<Brain>(p, x, weights, b, r, y, parallel, workspace);
  run<Single>(p, x, weights, b, r, y, parallel, workspace);
}

template std::shared_ptr<const LinearWeights> linear_prepare(const LinearProblem&, const float*);
template std::shared_ptr<const LinearWeights> linear_prepare(const LinearProblem&, const half*);
template void linear(const LinearProblem&, const float*, const LinearWeights&, const float*, const float*,
                     float*, Parallel&, Workspace&);
template void linear(const LinearProblem&, const half*, const LinearWeights&, const half*, const half*, half*,
                     Parallel&, Workspace&);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
