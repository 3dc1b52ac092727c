// FusedAttention in tiles: FlashAttention's online softmax (Dao et al. 2022, arXiv:2205.14135; Milakov and
// Gimelshein 2018, arXiv:1805.02867) around two register-blocked GEMMs.
//
// A work item has a block of query rows and a chunk of keys of one key/value head. The rows are from all query heads
// that share this head. The keys are processed in blocks. Each block of K (transposed) and V is packed once, into the
// worker thread's scratch memory. It is then multiplied by all rows of the item, one tile of rows at a time:
//   scores = Q K^T -> bias, mask, ... -> p = exp(scores - highest so far)
//   -> O = O exp(old - new highest) + p V
// If the keys fit in one block, nothing is rescaled: this is the plain two-pass softmax.
//
// In bfloat16 the operands of the multiplications consist of words of two values (cpu/microkernels/gemm.h). The two
// values are adjacent along D in Q and K, and along the keys in p and V. The sum of p adds the unrounded values. With
// AMX, the multiplications run in AMX tiles (cpu/microkernels/tiles.h), and the words along D and the keys are padded
// with zeros to full tiles.
//
// scores_cpu.h computes the scores and softmax_cpu.h the softmax. This file computes p V and merges the results of
// several chunks. tiling_cpu.h defines the tiling. No result depends on the number of threads.
#include <algorithm>
#include <atomic>
#include <limits>
#include <type_traits>

#include "operators/attention/attention/op.h"
#include "operators/attention/attention/scores_cpu.h"
#include "operators/attention/attention/softmax_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

template <class T>
struct Attention {
  using Row = typename Scores<T>::Row;
  const AttentionProblem& p;
  const AttentionTiling& plan;
  const Scores<T> scores;
  const T *k, *v;
  T* o;

  // Processes a block of keys for `rows` rows of the item, from row i0 on.
  void process_tile(const AttentionScratch& w, KeyBlock<T>& block, int64_t b, int64_t head, int64_t r0,
                    int64_t i0, int64_t rows) const {
    const float infinity = std::numeric_limits<float>::infinity();
    const int64_t at = plan.one_block ? 0 : i0;
    float* const highest = w.result.highest + at;
    float* const sum = w.result.sum + at;
    float* const out = w.result.o + at * plan.value_width;
    if (block.fresh) {
      std::fill_n(highest, round_up(rows, kWidth), -infinity);
      std::fill_n(sum, round_up(rows, kWidth), 0.0f);
    }

    const int64_t n = scores.count_needed_keys(block, scores.row_at(head, r0 + i0), rows, highest);
    if (n == 0) {
      if (block.fresh) std::fill_n(out, rows * plan.value_width, 0.0f);
      return;
    }

    scores.load_queries(w, b, scores.row_at(head, r0 + i0), rows);
    const bool maxima_known = plan.scores_unchanged && n % kWidth == 0 && !plan.uses_amx;
    if (plan.keys_in_place) {
      for (int64_t i = 0; i < rows; ++i) {
        const float* x = w.q + i * plan.query_width;
        float* s = w.scores + i * plan.score_stride;
        if (p.k.col == 1) {
          dot_keys(x, block.k, p.k.row, n, p.D, s);
        } else {
          dot_transposed_keys(x, block.k, p.k.col, n, p.D, s);
        }
      }
    } else {
      scores.multiply_keys(w, block, b, scores.row_at(head, r0 + i0), rows, n, maxima_known);
    }

    Row row = scores.row_at(head, r0 + i0);
    exponentiate(plan, w, rows, n, p.bfloat16, highest, sum, [&](int64_t i) {
      if (maxima_known) return load(w.maxima + i * kWidth);
      const Row current = row;
      scores.advance(row);
      return scores.finish_scores(w, w.scores + i * plan.score_stride, b, current, block.first, n);
    });
    if (p.bfloat16) {
      add_values_bf16(w, rows, ceil_div(n, 2), block.fresh, out);
    } else if (plan.values_in_place) {
      add_values(w, rows, n, block.fresh, block.v, p.v.row, out);
    } else {
      add_values(w, rows, n, block.fresh, w.v, plan.value_width, out);
    }
  }

  // out = out * factor + p V
  template <class V>
  void add_values(const AttentionScratch& w, int64_t rows, int64_t n, bool fresh, const V* values,
                  int64_t stride, float* out) const {
    for (int64_t c = 0; c < plan.value_width; c += kPanelFloats) {
      const int64_t vectors = ceil_div(std::min(kPanelFloats, plan.value_width - c), kWidth);
      int64_t i = 0;
#if defined(__AVX512F__)
      if constexpr (!std::is_same_v<V, half>) {
        if (plan.half_vector && vectors == 3) {
          for (; i + kHalfRows <= rows; i += kHalfRows) {
            multiply_half(w.scores + i * plan.score_stride, plan.score_stride, values + c, stride, n,
                          out + i * plan.value_width + c, plan.value_width, fresh ? nullptr : w.factor + i);
          }
        }
      }
#endif
      multiply_attention(rows - i, vectors, w.scores + i * plan.score_stride, plan.score_stride, values + c,
                         stride, n, fresh ? Result::kStore : Result::kAdd, out + i * plan.value_width + c,
                         plan.value_width, w.factor + i);
    }
  }

  // The same for bfloat16 words; `steps`: the number of words along the keys.
  void add_values_bf16(const AttentionScratch& w, int64_t rows, int64_t steps, bool fresh, float* out) const {
    if constexpr (kHasTiles) {
      if (plan.uses_amx) {
        for (int64_t c = 0; c < plan.value_width; c += kPanelFloats) {
          const int64_t vectors = ceil_div(std::min(kPanelFloats, plan.value_width - c), kWidth);
          multiply_attention_amx(rows, vectors, words(w.scores), plan.score_stride, words(w.v) + c,
                                 plan.value_width, steps, out + c, plan.value_width,
                                 fresh ? nullptr : w.factor);
        }
        return;
      }
    }
    add_values(w, rows, steps, fresh, words(w.v), plan.value_width, out);
  }

  // Computes rows [r0, r0 + rows) of a key/value head for keys [t0, t1). Stores the result to o if all keys are in one
  // block; otherwise stores unnormalised sums to w.result.
  void process_item(const AttentionScratch& w, int64_t b, int64_t head, int64_t r0, int64_t rows, int64_t t0,
                    int64_t t1) const {
    std::fill_n(w.result.zero_v, plan.value_width, 0.0f);
    for (int64_t first = t0; first < t1; first += plan.block_keys) {
      KeyBlock<T> block{first,
                        std::min(plan.block_keys, t1 - first),
                        k + b * p.k.b + head * p.k.h + first * p.k.row,
                        v + b * p.v.b + head * p.v.h + first * p.v.row,
                        first == t0,
                        false,
                        false};
      if (p.bfloat16) {
        pack_values_bf16(block.v, p.v.row, p.v.col, block.n, p.Dv, plan.value_width, words(w.v));
      } else if (!plan.values_in_place) {
        pack_values(block.v, p.v.row, p.v.col, block.n, p.Dv, plan.value_width, w.v);
      }
      if (p.guard || p.causal || p.window) {
        block.has_nonfinite =
            p.bfloat16 ? sum_zero_times_bf16(words(w.v), block.n, plan.value_width, w.block_zero_v)
            : plan.values_in_place
                ? sum_zero_times(block.v, p.v.row, block.n, plan.value_width, w.block_zero_v)
                : sum_zero_times(w.v, plan.value_width, block.n, plan.value_width, w.block_zero_v);
        for (int64_t c = 0; c < plan.value_width; ++c) w.result.zero_v[c] += w.block_zero_v[c];
      }
      for (int64_t i = 0; i < rows; i += plan.tile_rows) {
        const int64_t n = std::min(plan.tile_rows, rows - i);
        process_tile(w, block, b, head, r0, i, n);
        if (plan.one_block) finish(w.result, b, head, r0 + i, n);
      }
    }
  }

  // Normalises and stores rows [r0, r0 + rows) of a key/value head.
  void finish(const PartialResult& r, int64_t b, int64_t head, int64_t r0, int64_t rows) const {
    Row row = scores.row_at(head, r0);
    for (int64_t i = 0; i < rows; ++i, scores.advance(row)) {
      T* y = o + b * p.o.b + row.h * p.o.h + row.s * p.o.row;
      // The sum is NaN if a score is NaN or +inf, and 0 if all scores are -inf. All probabilities are then NaN. The
      // guard replaces them by 0, and O is the sum of 0 * V.
      if (p.guard && !(r.sum[i] > 0.0f)) {
        store_row(r.zero_v, 1.0f, p.Dv, y, p.o.col);
      } else {
        store_row(r.o + i * plan.value_width, 1.0f / r.sum[i], p.Dv, y, p.o.col);
      }
    }
  }

  // Merges the partial results of all chunks into the first one.
  void merge(PartialResult* parts, int64_t rows) const {
    const float infinity = std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < rows; ++i) {
      float highest = -infinity;
      for (int64_t c = 0; c < plan.chunks; ++c) highest = std::max(highest, parts[c].highest[i]);
      const float shift = highest == -infinity ? 0.0f : highest;
      for (int64_t c = 0; c < plan.chunks; ++c) {
        const float factor = exp_nonpositive(splat(parts[c].highest[i] - shift))[0];
        const float* x = parts[c].o + i * plan.value_width;
        float* y = parts[0].o + i * plan.value_width;
        for (int64_t d = 0; d < plan.value_width; d += kWidth) {
          store(y + d, (c ? load(y + d) : Vec{}) + load(x + d) * factor);
        }
        parts[0].sum[i] = (c ? parts[0].sum[i] : 0.0f) + parts[c].sum[i] * factor;
      }
    }
    for (int64_t c = 1; c < plan.chunks; ++c) {
      for (int64_t d = 0; d < plan.value_width; ++d) parts[0].zero_v[d] += parts[c].zero_v[d];
    }
  }
};

bool has_no_result(const AttentionProblem& p) { return p.B == 0 || p.H == 0 || p.S == 0 || p.Dv == 0; }

}  // namespace

template <class T>
size_t fused_attention_workspace(const AttentionProblem& p, size_t workers) {
  if (has_no_result(p) || p.T == 0) return 0;
  Workspace workspace(nullptr);
  take_memory(AttentionTiling(p, static_cast<int64_t>(workers), std::is_same_v<T, float>), workspace);
  return workspace.bytes();
}

template <class T>
void fused_attention(const AttentionProblem& p, const T* q, const T* k, const T* v, const T* bias,
                     const bool* mask, T* o, Parallel& parallel, void* workspace) {
  if (has_no_result(p)) return;
  if (p.T == 0) {  // a sum over no keys
    for (int64_t b = 0; b < p.B; ++b) {
      for (int64_t h = 0; h < p.H; ++h) {
        for (int64_t s = 0; s < p.S; ++s) {
          T* y = o + b * p.o.b + h * p.o.h + s * p.o.row;
          for (int64_t d = 0; d < p.Dv; ++d) y[d * p.o.col] = T(0);
        }
      }
    }
    return;
  }
  const AttentionTiling plan(p, static_cast<int64_t>(parallel.workers()), std::is_same_v<T, float>);
  const Attention<T> attention{p, plan, {p, plan, q, bias, mask}, k, v, o};
  const int64_t groups = plan.items / plan.chunks;  // groups of items with the same rows and different keys
  const auto workers = static_cast<size_t>(plan.workers);
  Workspace whole(workspace);
  const AttentionMemory memory = take_memory(plan, whole);
  const auto partial_of = [&](int64_t item) {
    Workspace partial(memory.partials + static_cast<size_t>(item) * memory.partial_bytes);
    return take_partial(plan, partial);
  };

  std::atomic<int64_t> next{0};
  const auto bounds = [&](int64_t group, int64_t& b, int64_t& head, int64_t& r0, int64_t& rows) {
    r0 = group % plan.row_items * plan.item_rows;
    rows = std::min(plan.item_rows, plan.rows - r0);
    head = group / plan.row_items % plan.heads;
    b = group / plan.row_items / plan.heads;
  };
  const auto compute = [&](AttentionScratch& scratch, int64_t i) {
    int64_t b, head, r0, rows;
    bounds(i / plan.chunks, b, head, r0, rows);
    if (plan.chunks > 1) scratch.result = partial_of(i);
    const int64_t t0 = i % plan.chunks * plan.chunk_keys;
    attention.process_item(scratch, b, head, r0, rows, t0, std::min(t0 + plan.chunk_keys, p.T));
    if (plan.chunks == 1 && !plan.one_block) attention.finish(scratch.result, b, head, r0, rows);
  };
  auto work = [&](size_t worker) {
    if (worker >= workers) return;
    Workspace mine(memory.scratch + worker * memory.scratch_bytes);
    AttentionScratch scratch = take_scratch(plan, mine);
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < plan.items;) {
      if constexpr (kHasTiles) {
        if (plan.uses_amx) {
          const TileRegisters registers;
          compute(scratch, i);
          continue;
        }
      }
      compute(scratch, i);
    }
  };
  // If the plan needs only one of several workers, or has one item, the calling thread computes all items.
  if (workers <= 1 && (plan.items <= 1 || parallel.workers() > 1)) {
    work(0);
  } else {
    parallel.run(work);
  }
  if (plan.chunks == 1) return;
  for (int64_t group = 0; group < groups; ++group) {
    int64_t b, head, r0, rows;
    bounds(group, b, head, r0, rows);
    PartialResult chunk[kEnoughItems];
    for (int64_t c = 0; c < plan.chunks; ++c) chunk[c] = partial_of(group * plan.chunks + c);
    attention.merge(chunk, rows);
    attention.finish(chunk[0], b, head, r0, rows);
  }
}

GRAPHOPT_INSTANTIATE(fused_attention_workspace)
GRAPHOPT_INSTANTIATE(fused_attention)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
