// Computes the scores of some query rows and a block of keys: Q K^T, bias, mask, causality and window. For kernel files
// only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/microkernels/exp.h"
#include "operators/attention/attention/packing_cpu.h"
#include "operators/attention/attention/tiling_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Returns x with its first `count` elements set to -infinity.
inline Vec hide_first(Vec x, int64_t count) {
  const Vec hidden = splat(-std::numeric_limits<float>::infinity());
  return lane_numbers() < static_cast<int32_t>(std::min<int64_t>(count, kWidth)) ? hidden : x;
}

// The next two functions read K in place, for few query rows: K is then read only once, and packing it would double the
// memory traffic.

// Computes the scores [n] of one row and keys that are contiguous along D. q is padded with zeros to full vectors.
template <class T>
void dot_keys(const float* q, const T* k, int64_t row_stride, int64_t n, int64_t D, float* scores) {
  const int64_t whole = D / kWidth * kWidth;
  for (int64_t j = 0; j < n; j += kWidth) {
    const int64_t last = std::min<int64_t>(kWidth, n - j) - 1;
    Vec sum[kWidth];
    for (int64_t i = 0; i < kWidth; ++i) {
      const T* x = k + (j + std::min(i, last)) * row_stride;
      Vec even{}, odd{};
      int64_t d = 0;
      for (; d + 2 * kWidth <= whole; d += 2 * kWidth) {
        even += load(q + d) * load_as_float(x + d);
        odd += load(q + d + kWidth) * load_as_float(x + d + kWidth);
      }
      if (d < whole) even += load(q + d) * load_as_float(x + d);
      if (whole < D) odd += load(q + whole) * load_first(x + whole, D - whole);
      sum[i] = even + odd;
    }
    transpose<kWidth / 2>(sum);
    for (int count = kWidth / 2; count > 0; count /= 2) {
      for (int i = 0; i < count; ++i) sum[i] += sum[i + count];
    }
    store(scores + j, sum[0]);
  }
}

// The same for keys that are contiguous along T (K stored transposed).
template <class T>
void dot_transposed_keys(const float* q, const T* k, int64_t col_stride, int64_t n, int64_t D,
                         float* scores) {
  constexpr int64_t kSteps = 4;
  std::fill_n(scores, n, 0.0f);
  for (int64_t d = 0; d < D; d += kSteps) {
    const int64_t steps = std::min(kSteps, D - d);
    const T* x = k + d * col_stride;
    int64_t j = 0;
    if (steps == kSteps) {
      for (; j + kWidth <= n; j += kWidth) {
        Vec sum = load(scores + j);
        for (int64_t i = 0; i < kSteps; ++i) sum += q[d + i] * load_as_float(x + i * col_stride + j);
        store(scores + j, sum);
      }
    }
    for (; j < n; ++j) {
      for (int64_t i = 0; i < steps; ++i) scores[j] += q[d + i] * static_cast<float>(x[i * col_stride + j]);
    }
  }
}

// Returns the bfloat16 words in an array of floats. Both are accessed through vector types, which may alias.
inline Word* words(float* x) { return reinterpret_cast<Word*>(x); }

// A block of keys [first, first + n).
template <class T>
struct KeyBlock {
  int64_t first, n;
  const T *k, *v;      // the first key in K, its row in V
  bool fresh;          // the first block of the item
  bool has_nonfinite;  // V has a NaN or an infinity: O is NaN even with probability 0
  bool keys_packed;
};

template <class T>
struct Scores {
  const AttentionProblem& p;
  const AttentionTiling& plan;
  const T *q, *bias;
  const bool* mask;

  // Query head and query index of row r of a key/value head.
  struct Row {
    int64_t h, s;
  };
  Row row_at(int64_t head, int64_t r) const { return {head * p.group + r / p.S, r % p.S}; }
  void advance(Row& row) const {
    if (++row.s == p.S) row = {row.h + 1, 0};
  }

  // The range of keys that a row sees, relative to `first`, among `n` keys from `first` on.
  struct Keys {
    int64_t begin, end;
  };
  Keys window_of(Row row, int64_t first, int64_t n) const {
    if (!p.window) return {0, n};
    const int64_t position = row.s + p.T - p.S - first;
    return {std::max<int64_t>(position - p.left, 0), std::clamp<int64_t>(position + p.right + 1, 0, n)};
  }

  // Applies softcap, bias, mask, causality and window to the scores of one row and keys [first, first + n). Returns a
  // vector whose largest element is the largest score.
  Vec finish_scores(const AttentionScratch& w, float* s, int64_t b, Row row, int64_t first, int64_t n) const {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const int64_t padded = round_up(n, kWidth);
    if (p.softcap != 0.0f) {
      for (int64_t j = 0; j < padded; j += kWidth) store(s + j, p.softcap * tanh_of(load(s + j) / p.softcap));
    }
    const T* x = nullptr;
    if (p.has_bias) {
      x = bias_row(b, row) + first * p.bias.col;
      if (p.bias.col != 1) {
        for (int64_t j = 0; j < n; ++j) s[j] += static_cast<float>(x[j * p.bias.col]);
        x = nullptr;
      }
    }
    const uint8_t* keep = nullptr;
    if (p.has_mask) {
      keep = mask_row(b, row) + first * p.mask.col;
      if (p.mask.col != 1) {
        for (int64_t j = 0; j < n; ++j) w.mask[j] = keep[j * p.mask.col];
        keep = w.mask;
      }
    }
    const int64_t seen = p.causal ? std::max<int64_t>(row.s + p.T - p.S + 1 - first, 0) : padded;
    const Keys window = window_of(row, first, padded);
    Vec most = splat(-infinity);
    const auto finish = [&](int64_t j, int64_t count) {
      Vec v = load(s + j);
      if (x != nullptr) v += count == kWidth ? load_as_float(x + j) : load_first(x + j, count);
      if (j + kWidth > seen) v = keep_part(v, std::max<int64_t>(seen - j, 0), -infinity);
      if (keep != nullptr) {
        if (count == kWidth) {
          v = select(keep + j, v, splat(p.mask_value));
        } else {
          uint8_t part[kWidth] = {};
          std::memcpy(part, keep + j, static_cast<size_t>(count));
          v = select(part, v, splat(p.mask_value));
        }
      }
      if (j < window.begin) v = hide_first(v, window.begin - j);
      const int64_t end = std::min(j + count, window.end) - j;
      if (end < kWidth) v = keep_part(v, std::max<int64_t>(end, 0), -infinity);
      store(s + j, v);
      most = larger(v, most);
    };
    int64_t j = 0;
    for (; j + kWidth <= n; j += kWidth) finish(j, kWidth);
    if (j < n) finish(j, n - j);
    return most;
  }

  const T* bias_row(int64_t b, Row row) const {
    return bias + b * p.bias.b + row.h * p.bias.h + row.s * p.bias.row;
  }
  const uint8_t* mask_row(int64_t b, Row row) const {
    return reinterpret_cast<const uint8_t*>(mask + b * p.mask.b + row.h * p.mask.h + row.s * p.mask.row);
  }

  // Prefetches the bias or mask of `rows` rows at keys [first, first + n) if the rows are on different pages. Hardware
  // prefetching does not cross a page boundary.
  void prefetch_rows(int64_t b, Row row, int64_t rows, int64_t first, int64_t n) const {
    constexpr int64_t kLine = 64, kPage = 4096;
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    const bool of_bias = p.has_bias && p.bias.col == 1 && p.bias.row * kSize >= kPage;
    const bool of_mask = p.has_mask && p.mask.col == 1 && p.mask.row >= kPage;
    if (!of_bias && !of_mask) return;
    for (int64_t i = 0; i < rows; ++i, advance(row)) {
      if (of_bias) {
        const T* x = bias_row(b, row) + first;
        for (int64_t j = 0; j < n; j += kLine / kSize) __builtin_prefetch(x + j);
      }
      if (of_mask) {
        const uint8_t* x = mask_row(b, row) + first;
        for (int64_t j = 0; j < n; j += kLine) __builtin_prefetch(x + j);
      }
    }
  }

  // Returns n such that `rows` rows need only the first n keys of the block. Keys that causality or a window hides from
  // all rows have probability 0, except if a finite mask_value replaces their scores.
  int64_t count_needed_keys(const KeyBlock<T>& block, Row row, int64_t rows, const float* highest) const {
    if ((!p.causal && !p.window) || block.has_nonfinite) return block.n;
    if (p.window) {
      int64_t end = 0;
      for (int64_t i = 0; i < rows; ++i, advance(row)) {
        const Keys window = window_of(row, block.first, block.n);
        if (window.begin < window.end) end = std::max(end, window.end);
      }
      return end;
    }
    int64_t seen = 0;
    bool negligible = true;
    for (int64_t i = 0; i < rows; ++i, advance(row)) {
      seen = std::max(seen, row.s + p.T - p.S + 1 - block.first);
      negligible &= highest[i] - 120.0f > p.mask_value;
    }
    const bool unmasked = !p.has_mask || p.mask_value == -std::numeric_limits<float>::infinity();
    return unmasked || (seen == 0 && negligible) ? std::min(block.n, seen) : block.n;
  }

  // Computes w.q = scale * Q for `rows` rows.
  void load_queries(const AttentionScratch& w, int64_t b, Row row, int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i, advance(row)) {
      float* x = w.q + i * plan.query_width;
      if (p.bfloat16) {
        const T* from = q + b * p.q.b + row.h * p.q.h + row.s * p.q.row;
        for (int64_t d = 0; d < p.D; d += 2 * kWidth) {
          const Vec low = load_with_stride(from + d * p.q.col, p.q.col, p.D - d);
          const Vec high = load_with_stride(from + (d + kWidth) * p.q.col, p.q.col, p.D - d - kWidth);
          *reinterpret_cast<UnalignedWords*>(x + d / 2) = pack_adjacent(p.scale * low, p.scale * high);
        }
        continue;
      }
      copy_row(q + b * p.q.b + row.h * p.q.h + row.s * p.q.row, p.q.col, p.D, p.scale, x);
    }
  }

  // Computes the scores of `rows` rows and the block's first n keys. Packs the keys first if they are not packed.
  void multiply_keys(const AttentionScratch& w, KeyBlock<T>& block, int64_t b, Row row, int64_t rows,
                     int64_t n, bool maxima_known) const {
    if (!block.keys_packed) {
      if (p.bfloat16) {
        pack_keys_bf16(block.k, p.k.row, p.k.col, block.n, p.D, plan.query_steps, words(w.k));
      } else {
        pack_keys(block.k, p.k.row, p.k.col, block.n, p.D, w.k);
      }
    }
    block.keys_packed = true;
    if (maxima_known) std::fill_n(w.maxima, rows * kWidth, -std::numeric_limits<float>::infinity());
    const Result result = maxima_known ? Result::kStoreWithMaxima : Result::kStore;
    for (int64_t j = 0; j < n; j += kPanelFloats) {
      const int64_t width = round_up(std::min(kPanelFloats, block.n - j), kWidth);
      const int64_t vectors = ceil_div(std::min(kPanelFloats, n - j), kWidth);
      prefetch_rows(b, row, rows, block.first + j, std::min(kPanelFloats, n - j));
      const Word* pairs = words(w.k) + j * plan.query_steps;
      if constexpr (kHasTiles) {
        if (plan.uses_amx) {
          multiply_attention_amx(rows, vectors, words(w.q), plan.query_width, pairs, width, plan.query_steps,
                                 w.scores + j, plan.score_stride, nullptr);
          continue;
        }
      }
      if (p.bfloat16) {
        multiply_attention(rows, vectors, w.q, plan.query_width, pairs, width, plan.query_steps, result,
                           w.scores + j, plan.score_stride, w.maxima);
        continue;
      }
      multiply_attention(rows, vectors, w.q, plan.query_width, static_cast<const float*>(w.k + j * p.D),
                         width, p.D, result, w.scores + j, plan.score_stride, w.maxima);
    }
  }
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
