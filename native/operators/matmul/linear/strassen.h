// Computes X W in float32 with Strassen's algorithm (Numerische Mathematik 13, 1969): seven products of quarters
// instead of eight. K is divided into sections. A quarter of X has a block of rows and half of a section of K; a
// quarter of W has half of a section of K and a panel of columns. For kernel files only (see cpu/isa.h).
//
//   y11 = p1 + p4 - p5 + p7   p1 = (x11 + x22) (w11 + w22)   p5 = (x11 + x12) w22
//   y12 = p3 + p5             p2 = (x21 + x22) w11           p6 = (x21 - x11) (w11 + w12)
//   y21 = p2 + p4             p3 = x11 (w12 - w22)           p7 = (x12 - x22) (w21 + w22)
//   y22 = p1 - p2 + p3 + p6   p4 = x22 (w21 - w11)
//
// The algorithm adds values that X W does not add: values of two rows, two columns, or two halves of a section of K. In
// such a sum, the larger value rounds away digits of the smaller one. The algorithm is therefore used only if
// `nearly_equal` is true for the norms of all rows of X that are added, and of all columns of W that are added. For the
// halves of a section, `nearly_equal` compares two sums over k: of a b + c d, and of (a + c) (b + d). Here a and c are
// the squared norms of column k of the first and of the second half of X; b and d are those of row k of both halves of
// W. The norms of X are computed while X is packed, and the norms of W once. With NaN or infinity, `nearly_equal` is
// false.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/microkernels/gemm.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/matmul/linear/finish.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

constexpr float kMaxRatio = 64;       // ratio of squares of norms: a factor of 8 between norms
constexpr int64_t kSectionOfK = 768;  // the longest section: a second-level cache holds several quarters
constexpr int64_t kMinOfK = 512;      // for a smaller K, the additions cost more than the algorithm saves
constexpr int64_t kMinOfN = 512;      // for a smaller N, packing X costs more than the algorithm saves
constexpr int64_t kMinRows = 96;
constexpr int64_t kPackedBytes = 1536 << 10;  // bytes of X's operands that are packed at a time
// Cost of multiplying a pair of blocks by a pair of panels. The sums of W for a pair of panels cost 1.
constexpr int64_t kPairCost = 3;
constexpr int kProductCount = 7;
constexpr int64_t kTwoPanels = 2 * kPanelWidth;

// Returns true if two squares of norms are of similar size; rows, columns or halves with such norms are called nearly
// equal. Returns false for NaN and infinity.
inline bool nearly_equal(float a, float b) {
  return a <= kMaxRatio * b && b <= kMaxRatio * a && a < std::numeric_limits<float>::infinity();
}

// --- The seven products -----------------------------------------------------------------------------------

// The index of a quarter in row-major order, and of a second quarter, or -1, that is added to it times `sign`.
struct Quarters {
  int first, second;
  float sign;
};

// One of the seven products: a sum of X's quarters, which pack_blocks packs in the order of kProducts, times a sum of
// W's quarters. The product is added to quarter y.first of Y and, times y.sign, to quarter y.second.
struct Product {
  Quarters w, y;
  int completes;   // the quarter of Y that is complete after this product, or -1
  int prefetches;  // the quarter of W that this product prefetches, as an argument of quarter(), or -1
};
constexpr std::array<Product, kProductCount> kProducts = {{
    {{0, 3, 1}, {0, 3, 1}, -1, -1},
    {{0, -1, 0}, {2, 3, -1}, -1, 1},
    {{1, 3, -1}, {1, 3, 1}, -1, 2},
    {{2, 0, -1}, {2, 0, 1}, 2, -1},
    {{3, -1, 0}, {1, 0, -1}, 1, -1},
    {{0, 1, 1}, {3, -1, 0}, 3, 4},
    {{2, 3, 1}, {0, -1, 0}, 0, 7},
}};

// --- Sizes and memory -------------------------------------------------------------------------------------

// Returns the number of sections of K, which have equal and even lengths; 0 if they would be too short.
inline int64_t sections_of(int64_t K) {
  const int64_t fewest = ceil_div(K, kSectionOfK);
  for (int64_t n = fewest; n < 2 * fewest; ++n) {
    if (K % (2 * n) == 0) return n;
  }
  return 0;
}

inline bool fits_strassen(const LinearProblem& p) {
  return !p.bfloat16 && p.K >= kMinOfK && sections_of(p.K) > 0 && p.N >= kMinOfN && p.N % kTwoPanels == 0;
}
inline bool uses_strassen(const LinearProblem& p) {
  return p.strassen && fits_strassen(p) && p.rows >= kMinRows;
}

struct StrassenTiling {
  int64_t sections;  // sections of K
  int64_t steps;     // steps of half a section
  int64_t slot;      // words of one of X's seven operands in a pair of blocks
  int64_t pairs;     // pairs of blocks of rows
  int64_t most;      // pairs that are packed at a time
  int64_t panels;    // pairs of panels
};
inline StrassenTiling strassen_tiling(const LinearProblem& p) {
  StrassenTiling h;
  h.sections = sections_of(p.K);
  h.steps = p.K / (2 * h.sections);
  h.slot = h.steps * kMaxRows + kWidth;
  h.pairs = ceil_div(p.rows, 2 * kMaxRows);
  h.most = ceil_div(h.pairs, ceil_div(h.pairs * kProductCount * h.slot * 4, kPackedBytes));
  h.panels = p.N / kTwoPanels;
  return h;
}

constexpr int64_t kTile = kMaxRows * kPanelWidth;  // elements of a quarter of Y

struct StrassenMemory {
  Word* s;         // [pair][product][slot]
  float* columns;  // [pair][2 steps], squares of norms
  uint8_t* rows;   // [pair], whether its rows are nearly equal
  float* sums;     // [worker][steps][kPanelWidth], sums of W
  float* tiles;    // [worker or, with several sections, pair of panels][pair][quarter][kTile]
};
inline StrassenMemory take_memory(const StrassenTiling& h, int64_t workers, Workspace& workspace) {
  StrassenMemory m;
  m.s = workspace.take<Word>(h.most * kProductCount * h.slot);
  m.columns = workspace.take<float>(h.most * 2 * round_up(h.steps, kWidth));
  m.rows = workspace.take<uint8_t>(h.most);
  m.sums = workspace.take<float>(workers * h.steps * kPanelWidth);
  m.tiles = workspace.take<float>((h.sections == 1 ? workers : h.panels) * h.most * 4 * kTile);
  return m;
}

// --- W's norms --------------------------------------------------------------------------------------------

// Returns the number of words that follow the panels: squares of the norms of W's rows, and whether the columns that
// are added are nearly equal.
inline int64_t norm_words(const LinearProblem& p) { return round_up(p.K, kWidth) + kWidth; }

inline void prepare_norms(const LinearProblem& p, Word* panels) {
  auto* rows = reinterpret_cast<float*>(panels) + panels_words(p.K, p.N);
  std::fill(rows, rows + norm_words(p), 0.0f);
  bool all = true;
  for (int64_t panel = 0; panel < p.N / kPanelWidth; panel += 2) {
    float columns[2][kPanelWidth] = {};
    for (int64_t half = 0; half < 2; ++half) {
      const auto* v = reinterpret_cast<const float*>(panel_at(panels, p.K, panel + half));
      for (int64_t k = 0; k < p.K; ++k, v += kPanelWidth) {
        float row = 0;
        for (int64_t j = 0; j < kPanelWidth; ++j) {
          row += v[j] * v[j];
          columns[half][j] += v[j] * v[j];
        }
        rows[k] += row;
      }
    }
    for (int64_t j = 0; j < kPanelWidth; ++j) all = all && nearly_equal(columns[0][j], columns[1][j]);
  }
  rows[round_up(p.K, kWidth)] = all ? 1.0f : 0.0f;
}

// --- X's operands -----------------------------------------------------------------------------------------

// Packs the operands s [product][slot] of a pair of blocks of n rows each, for one section of K. `pads_last_row`: the
// last row of the second block does not exist and is replaced by zeros. Writes the squared norms of the columns of both
// halves to columns [2][steps rounded up to kWidth]. Returns whether the rows that are added are nearly equal.
template <class T>
bool pack_blocks(const StrassenTiling& h, const T* x, int64_t x_stride, int64_t n, bool pads_last_row,
                 Word* s, float* columns) {
  constexpr int64_t kSquare = kWidth * kWidth;
  alignas(64) float by_row[kProductCount * kSquare] = {}, by_step[kSquare];
  Vec upper_norms[kMaxRows] = {}, lower_norms[kMaxRows] = {};
  for (int64_t k = 0; k < h.steps; k += kWidth) {
    const int64_t here = h.steps - k;
    Vec left = {}, right = {};
    for (int64_t i = 0; i < n; ++i) {
      const T *upper = x + i * x_stride + k, *lower = upper + n * x_stride;
      const bool is_missing = pads_last_row && i + 1 == n;
      for (const T* at : {upper, upper + h.steps, lower, lower + h.steps})
        __builtin_prefetch(at + 2 * kWidth);
      const Vec x11 = load_range(upper, 0, here), x12 = load_range(upper + h.steps, 0, here);
      const Vec x21 = is_missing ? Vec{} : load_range(lower, 0, here);
      const Vec x22 = is_missing ? Vec{} : load_range(lower + h.steps, 0, here);
      left += x11 * x11 + x21 * x21;
      right += x12 * x12 + x22 * x22;
      upper_norms[i] += x11 * x11 + x12 * x12;
      lower_norms[i] += x21 * x21 + x22 * x22;
      const Vec operands[kProductCount] = {x11 + x22, x21 + x22, x11, x22, x11 + x12, x21 - x11, x12 - x22};
      for (int part = 0; part < kProductCount; ++part) {
        store_aligned(by_row + part * kSquare + i * kWidth, operands[part]);
      }
    }
    store_aligned(columns + k, left);
    store_aligned(columns + round_up(h.steps, kWidth) + k, right);
    for (int part = 0; part < kProductCount; ++part) {
      Word* to = s + part * h.slot + k * n;
      for (int64_t line = 0; line < n; ++line) __builtin_prefetch(to + kWidth * (n + line), 1);
      transpose(by_row + part * kSquare, kWidth, by_step, kWidth);
      for (int64_t j = 0; j < std::min<int64_t>(kWidth, here); ++j) {
        // The next step overwrites the words that are written beyond this step.
        *reinterpret_cast<UnalignedWords*>(to + j * n) =
            *reinterpret_cast<const AlignedWords*>(by_step + j * kWidth);
      }
    }
  }
  bool all = true;
  for (int64_t i = 0; i < n - (pads_last_row ? 1 : 0); ++i) {
    all = all && nearly_equal(sum_of(upper_norms[i]), sum_of(lower_norms[i]));
  }
  return all;
}

// --- Products ---------------------------------------------------------------------------------------------

// The multiplication of a block of rows by a panel.
struct Tile {
  const Word* s;        // [steps][rows]
  const float* v;       // [steps][kPanelWidth]
  const float* second;  // if the tile computes a sum of W, its right operand is v + w_sign * second
  float* sum;           // receives this sum
  Vec w_sign;
  int64_t steps;
  float* o;               // the product is added to this quarter
  int64_t second_offset;  // unless 0, y_sign times the product is added to o + second_offset
  Vec y_sign;
  const char* next;        // memory that is prefetched into the second-level cache
  int64_t prefetch_bytes;  // bytes that are prefetched in each step
};

// kAddsW: the tile computes a sum of W. The first block of rows that needs the sum computes it: the multiplications
// hide the cost of the additions.
template <bool kAddsW>
struct MultiplyAdd {
  template <int kRows>
  struct Of {
    static void run(const Tile& t) {
      Vec sum[kRows][kPanel] = {};
      const Word* row = t.s;
      const float *v = t.v, *second = t.second;
      float* w_sum = t.sum;
      const char* next = t.next;
      for (int64_t step = 0; step < t.steps; ++step, row += kRows, v += kPanelWidth) {
        __builtin_prefetch(next, 0, 2);
        next += t.prefetch_bytes;
        Vec b[kPanel];
#pragma GCC unroll 2
        for (int j = 0; j < kPanel; ++j) {
          b[j] = load_aligned(v + j * kWidth);
          if constexpr (kAddsW) {
            b[j] += t.w_sign * load_aligned(second + j * kWidth);
            store_aligned(w_sum + j * kWidth, b[j]);
          }
        }
        if constexpr (kAddsW) second += kPanelWidth, w_sum += kPanelWidth;
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i) {
          const Words a = row[i] - Words{};
#pragma GCC unroll 2
          for (int j = 0; j < kPanel; ++j)
            sum[i][j] = Float32::multiply_add(a, reinterpret_cast<Words>(b[j]), sum[i][j]);
        }
      }
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < kPanel; ++j) {
          float* o = t.o + (i * kPanel + j) * kWidth;
          store_aligned(o, load_aligned(o) + sum[i][j]);
          if (t.second_offset != 0)
            store_aligned(o + t.second_offset, load_aligned(o + t.second_offset) + t.y_sign * sum[i][j]);
        }
      }
    }
  };
};

template <class T>
class StrassenGemm {
 public:
  StrassenGemm(const LinearProblem& p, const T* x, const Word* w, const T* b, const T* r, T* y,
               Parallel& parallel, void* memory)
      : p_(p), h_(strassen_tiling(p)), x_(x), w_(w), b_(b), r_(r), y_(y), parallel_(parallel) {
    Workspace workspace(memory);
    m_ = take_memory(h_, static_cast<int64_t>(parallel.workers()), workspace);
  }

  // Computes y. Calls compute_directly(first row, number of rows) for rows whose norms do not allow the algorithm;
  // `compute_directly` may use the workspace.
  template <class F>
  void run(F&& compute_directly) const {
    for (int64_t first = 0; first < h_.pairs; first += h_.most) {
      const int64_t end = std::min(first + h_.most, h_.pairs);
      if (multiply_pairs(first, end)) continue;
      const int64_t row = first_row(first);
      compute_directly(row, std::min(first_row(end), p_.rows) - row);
    }
  }

 private:
  int64_t first_row(int64_t pair) const { return ceil_div(p_.rows, 2) * pair / h_.pairs * 2; }
  int64_t rows_of_block(int64_t pair) const { return (first_row(pair + 1) - first_row(pair)) / 2; }

  // Returns quarter i of a section of a pair of panels; if i is 4 or more, quarter i - 4 of the next pair.
  const float* quarter(int64_t section, int64_t panel, int i) const {
    const int64_t at = section * h_.panels + panel + i / 4;
    const int64_t begin = (at % h_.panels * 2 + i % 2) * p_.K + (at / h_.panels * 2 + i % 4 / 2) * h_.steps;
    return reinterpret_cast<const float*>(w_) + begin * kPanelWidth;
  }

  // Computes the rows of y for the pairs of blocks [first, end). If the values that must be added are not nearly equal,
  // returns false and does not write y.
  bool multiply_pairs(int64_t first, int64_t end) const {
    const auto workers = static_cast<int64_t>(parallel_.workers());
    const int64_t count = end - first;
    // If there are few panels, the rows are also divided among the threads.
    const int64_t most = std::min(count, ceil_div(4 * workers, h_.panels));
    const int64_t parts = parts_of_least_cost(1, most, h_.panels, workers,
                                              [&](int64_t n) { return kPairCost * ceil_div(count, n) + 1; });
    bool may_use = true;
    std::vector<Loop> loops;
    for (int64_t section = 0; section < h_.sections; ++section) {
      loops.push_back({count, [&, section](int64_t i, size_t) {
                         if (may_use) pack(first, i, section);
                       }});
      loops.push_back({1, [&, section](int64_t, size_t) { may_use = may_use && may_add(count, section); }});
      loops.push_back({h_.panels * parts, [&, section](int64_t item, size_t worker) {
                         if (!may_use) return;
                         const int64_t panel = item / parts, part = item % parts;
                         const auto at = static_cast<int64_t>(worker);
                         float* tiles = m_.tiles + (h_.sections == 1 ? at : panel) * h_.most * 4 * kTile;
                         const int64_t begin = count * part / parts, last = count * (part + 1) / parts;
                         if (section == 0)
                           std::fill(tiles + begin * 4 * kTile, tiles + last * 4 * kTile, 0.0f);
                         multiply(first, begin, last, section, panel, m_.sums + at * h_.steps * kPanelWidth,
                                  tiles);
                       }});
    }
    parallel_loops(parallel_, loops);
    return may_use;
  }

  void pack(int64_t first, int64_t i, int64_t section) const {
    const int64_t row = first_row(first + i), n = rows_of_block(first + i);
    m_.rows[i] =
        pack_blocks(h_, x_ + row * p_.K + section * 2 * h_.steps, p_.K, n, row + 2 * n > p_.rows,
                    m_.s + i * kProductCount * h_.slot, m_.columns + i * 2 * round_up(h_.steps, kWidth));
  }

  // Returns whether all values that the products of a section add are nearly equal.
  bool may_add(int64_t count, int64_t section) const {
    const float* w = reinterpret_cast<const float*>(w_) + panels_words(p_.K, p_.N);
    if (w[round_up(p_.K, kWidth)] == 0.0f) return false;
    for (int64_t i = 0; i < count; ++i) {
      if (m_.rows[i] == 0) return false;
    }
    const int64_t stride = round_up(h_.steps, kWidth);
    w += section * 2 * h_.steps;
    float separate = 0, added = 0;
    for (int64_t k = 0; k < h_.steps; ++k) {
      float left = 0, right = 0;
      for (int64_t i = 0; i < count; ++i) {
        left += m_.columns[i * 2 * stride + k];
        right += m_.columns[(i * 2 + 1) * stride + k];
      }
      separate += left * w[k] + right * w[h_.steps + k];
      added += (left + right) * (w[k] + w[h_.steps + k]);
    }
    return nearly_equal(separate, added);
  }

  // Computes a section of the products of pairs of blocks [first + begin, first + end) with a pair of panels.
  void multiply(int64_t first, int64_t begin, int64_t end, int64_t section, int64_t panel, float* w_sum,
                float* tiles) const {
    for (int part = 0; part < kProductCount; ++part) {
      const Product& product = kProducts[static_cast<size_t>(part)];
      const bool sum = product.w.second >= 0, prefetches = product.prefetches >= 0;
      Tile tile;
      tile.second = sum ? quarter(section, panel, product.w.second) : nullptr;
      tile.sum = w_sum;
      tile.w_sign = splat(product.w.sign);
      tile.steps = h_.steps;
      tile.second_offset = product.y.second < 0 ? 0 : (product.y.second - product.y.first) * kTile;
      tile.y_sign = splat(product.y.sign);
      tile.next =
          reinterpret_cast<const char*>(prefetches ? quarter(section, panel, product.prefetches) : w_sum);
      tile.prefetch_bytes = prefetches ? ceil_div(kPanelWidth * 4, end - begin) : 0;
      for (int64_t i = begin; i < end; ++i, tile.next += h_.steps * tile.prefetch_bytes) {
        const bool adds_w = sum && i == begin,
                   is_complete = product.completes >= 0 && section + 1 == h_.sections;
        const int64_t rows = rows_of_block(first + i);
        const int64_t row = first_row(first + i) + product.completes / 2 * rows;
        const int64_t n = panel * kTwoPanels + product.completes % 2 * kPanelWidth;
        const int64_t y_rows = std::min(rows, p_.rows - row), y_at = row * p_.N + n;
        if (is_complete) prefetch_rows(y_ + y_at, p_.N, y_rows);
        float* o = tiles + i * 4 * kTile;
        tile.s = m_.s + (i * kProductCount + part) * h_.slot;
        tile.v = sum && !adds_w ? w_sum : quarter(section, panel, product.w.first);
        tile.o = o + product.y.first * kTile;
        (adds_w ? of_rows<MultiplyAdd<true>::template Of>(rows)
                : of_rows<MultiplyAdd<false>::template Of>(rows))(tile);
        if (!is_complete) continue;
        finish(p_, o + product.completes * kTile, y_rows, kPanel, kPanelWidth, b_ + n,
               p_.has_residual ? r_ + y_at : nullptr, y_ + y_at);
      }
    }
  }

  const LinearProblem& p_;
  StrassenTiling h_;
  const T* x_;
  const Word* w_;
  const T *b_, *r_;
  T* y_;
  Parallel& parallel_;
  StrassenMemory m_;
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
