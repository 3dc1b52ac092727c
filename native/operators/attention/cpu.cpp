// FusedAttention in tiles: FlashAttention's online softmax (Dao et al. 2022, arXiv:2205.14135; Milakov and
// Gimelshein 2018, arXiv:1805.02867) around two register-blocked products.
//
// A work item is a block of up to kItemRows query rows of one key/value head (rows of all query heads that
// share it), and one chunk of keys. It walks over the keys in blocks; each block of K (transposed) and V is
// packed once into the lane's scratch and then met by all the item's rows, a tile of them at a time:
//   scores = Q K^T -> bias, mask, ... -> p = exp(scores - highest so far)
//   -> O = O exp(old - new highest) + p V
// When the keys fit in one block, nothing is ever rescaled: that is the plain two-pass softmax.
//
// In bfloat16 the same products multiply words of two neighbouring numbers (blocks/cpu/product.h): along D of
// Q and K, along the keys of p and V. The sum of p is that of the unrounded numbers. Where there are tiles
// (blocks/cpu/tiles.h), they are what multiplies; steps are filled up with zeros then.
//
// No result depends on the number of lanes (see Plan).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "blocks/cpu/exp.h"
#include "blocks/cpu/product.h"
#include "blocks/cpu/simd.h"
#include "blocks/cpu/tiles.h"
#include "blocks/cpu/workspace.h"
#include "operators/attention/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// --- Tiles ---

#if defined(__AVX512F__)
constexpr int kMaxVectors = 4;  // vectors of a row of sums: with rows_of() of them, what the registers hold
constexpr int rows_of(int vectors) { return vectors == 4 ? 6 : 8; }
#else
constexpr int kMaxVectors = 2;
constexpr int rows_of(int vectors) { return vectors == 2 ? 6 : 8; }
#endif
constexpr int kMostRows = 8;
constexpr int64_t kPanelFloats = int64_t{kMaxVectors} * kWidth;

// results[i] = reduce(lanes of vector_of(i)) for i in [0, rows); results holds whole vectors. `none` is
// neutral.
template <class Op, class F>
inline void reduce_rows(int64_t rows, float* results, float none, Op op, F vector_of) {
  for (int64_t first = 0; first < rows; first += kGroup) {
    Vec r[kGroup];
    for (int64_t i = 0; i < kGroup; ++i) r[i] = first + i < rows ? vector_of(first + i) : splat(none);
    const Vec reduced = reduce_group(r, op);
    std::memcpy(results + first, &reduced, kGroup * sizeof(float));
    if (first + kGroup >= rows) std::fill(results + first + kGroup, results + round_up(rows, kWidth), none);
  }
}

// x with its first `count` lanes -infinity.
inline Vec hide_first(Vec x, int64_t count) {
  const Vec hidden = splat(-std::numeric_limits<float>::infinity());
  return lane_numbers() < static_cast<int32_t>(std::min<int64_t>(count, kWidth)) ? hidden : x;
}

// y = scale * x in whole vectors, zeros after the n values of x, which have a stride.
template <class T>
inline void copy_row(const T* x, int64_t stride, int64_t n, float scale, float* y) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kWidth <= n; i += kWidth) store(y + i, scale * load_as_float(x + i));
    if (i < n) store(y + i, scale * load_first(x + i, n - i));
    return;
  }
  for (; i < n; ++i) y[i] = scale * static_cast<float>(x[i * stride]);
  for (; i < round_up(n, kWidth); ++i) y[i] = 0.0f;
}

template <class T>
inline void store_row(const float* x, float scale, int64_t n, T* y, int64_t stride) {
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kWidth <= n; i += kWidth) {
      const Vec v = scale * load(x + i);
      store(y + i, v);
    }
    if (i < n) store_part(y + i, scale * load(x + i), n - i, false);
    return;
  }
  for (; i < n; ++i) y[i * stride] = static_cast<T>(scale * x[i]);
}

// --- The product ---

// What becomes of a product P.
enum class Result {
  kStore,  // C = P
  kMost,   // C = P, and kWidth lanes of `per_row` for each row are raised to what the row has
  kAdd,    // C = C * per_row[row] + P
};

// How the numbers of A and B are multiplied where those of B are T. Of Word, each stands for two of bfloat16,
// in A too, whatever its type says.
template <class T>
struct Factors {
  static Vec spread(const float* a) { return splat(*a); }
  static Vec load(const T* b) { return load_as_float(b); }
  static Vec multiply_add(Vec a, Vec b, Vec sum) { return sum + a * b; }
};
template <>
struct Factors<Word> {
  using Aliased = Word __attribute__((may_alias));
  static Words spread(const float* a) { return *reinterpret_cast<const Aliased*>(a) - Words{}; }
  static Words load(const Word* b) { return *reinterpret_cast<const UnalignedWords*>(b); }
  static Vec multiply_add(Words a, Words b, Vec sum) { return Brain::multiply_add(a, b, sum); }
};

// P [kRows, kVectors * kWidth] = A [kRows, k] B [k, kVectors * kWidth].
template <int kRows, int kVectors, class T>
void multiply(const float* a, int64_t lda, const T* b, int64_t ldb, int64_t k, Result result, float* c,
              int64_t ldc, float* per_row) {
  Vec sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = Vec{};
  }
  for (int64_t step = 0; step < k; ++step, b += ldb) {
    decltype(Factors<T>::load(b)) row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = Factors<T>::load(b + j * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto x = Factors<T>::spread(a + i * lda + step);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = Factors<T>::multiply_add(x, row[j], sum[i][j]);
    }
  }
  if (result == Result::kAdd) {
    // Only now: a sum that starts from all the blocks before would lose their digits with every key.
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] += load(c + i * ldc + j * kWidth) * per_row[i];
    }
  } else if (result == Result::kMost) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      Vec most = load(per_row + i * kWidth);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) most = larger(sum[i][j], most);
      store(per_row + i * kWidth, most);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(c + i * ldc + j * kWidth, sum[i][j]);
  }
}

#if defined(__AVX512F__)
constexpr int kHalfRows = 8;

// multiply for kHalfRows rows and two and a half vectors, D=40 above all: rows share their half vectors two
// by two. The last half of a row of B equals the half before it, and so does that of C. Without factors C = P.
template <class T>
void multiply_half(const float* a, int64_t lda, const T* b, int64_t ldb, int64_t k, float* c, int64_t ldc,
                   const float* factor) {
  using F = Factors<T>;
  using Lanes = decltype(F::load(b));
  Vec sum[kHalfRows][2], shared[kHalfRows / 2];
#pragma GCC unroll 8
  for (int i = 0; i < kHalfRows; ++i) sum[i][0] = sum[i][1] = shared[i / 2] = Vec{};
  for (int64_t step = 0; step < k; ++step, b += ldb) {
    const Lanes first = F::load(b), second = F::load(b + kWidth), half = F::load(b + 2 * kWidth);
#pragma GCC unroll 4
    for (int i = 0; i < kHalfRows; i += 2) {
      const Lanes x = F::spread(a + i * lda + step), y = F::spread(a + (i + 1) * lda + step);
      sum[i][0] = F::multiply_add(x, first, sum[i][0]);
      sum[i][1] = F::multiply_add(x, second, sum[i][1]);
      sum[i + 1][0] = F::multiply_add(y, first, sum[i + 1][0]);
      sum[i + 1][1] = F::multiply_add(y, second, sum[i + 1][1]);
      const auto both = (Lanes)_mm512_mask_blend_ps(0xff00, (__m512)x, (__m512)y);
      shared[i / 2] = F::multiply_add(both, half, shared[i / 2]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kHalfRows; ++i) {
    const Vec both = shared[i / 2];
    Vec row[3] = {sum[i][0], sum[i][1], _mm512_maskz_shuffle_f32x4(0xffff, both, both, i % 2 ? 0xee : 0x44)};
#pragma GCC unroll 3
    for (int j = 0; j < 3; ++j) {
      float* y = c + i * ldc + j * kWidth;
      if (factor != nullptr) row[j] += load(y) * factor[i];
      store(y, row[j]);
    }
  }
}
#endif

template <class T>
using Multiply = void (*)(const float*, int64_t, const T*, int64_t, int64_t, Result, float*, int64_t, float*);

template <int kVectors, class T>
inline Multiply<T> pick_rows(int64_t rows) {
  static constexpr Multiply<T> table[kMostRows] = {
      multiply<1, kVectors, T>,
      multiply<2, kVectors, T>,
      multiply<3, kVectors, T>,
      multiply<4, kVectors, T>,
      multiply<5, kVectors, T>,
      multiply<6, kVectors, T>,
      multiply<std::min(7, rows_of(kVectors)), kVectors, T>,
      multiply<std::min(8, rows_of(kVectors)), kVectors, T>,
  };
  return table[rows - 1];
}

template <class T>
inline Multiply<T> pick(int64_t rows, int64_t vectors) {
  if constexpr (kMaxVectors == 4) {
    if (vectors == 4) return pick_rows<kMaxVectors, T>(rows);
    if (vectors == 3) return pick_rows<kMaxVectors - 1, T>(rows);
  }
  return vectors == 2 ? pick_rows<2, T>(rows) : pick_rows<1, T>(rows);
}

// C [rows, vectors * kWidth] = A B as `result` says, for up to kMaxVectors vectors and any number of rows.
template <class T>
void multiply_rows(int64_t rows, int64_t vectors, const float* a, int64_t lda, const T* b, int64_t ldb,
                   int64_t k, Result result, float* c, int64_t ldc, float* per_row) {
  const int64_t step = rows_of(static_cast<int>(vectors));
  for (int64_t i = 0; i < rows; i += step) {
    const int64_t n = std::min(step, rows - i);
    pick<T>(n, vectors)(a + i * lda, lda, b, ldb, k, result, c + i * ldc, ldc,
                        per_row + i * (result == Result::kMost ? kWidth : 1));
  }
}

// --- Packing ---

// Transposes kWidth vectors in place, by exchanging ever smaller off-diagonal squares.
template <int kHalf>
inline void transpose(Vec (&r)[kWidth]) {
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    if (i & kHalf) continue;
    const Vec a = r[i], b = r[i + kHalf];
    r[i] = shuffle(a, b, Lower<kHalf>());
    r[i + kHalf] = shuffle(a, b, Upper<kHalf>());
  }
  if constexpr (kHalf > 1) transpose<kHalf / 2>(r);
}

// K^T in panels: panel j holds keys [j * kPanelFloats, ...) as [D, width of the panel], the last panel being as
// narrow as whole vectors allow and filled up with zeros.
template <class T>
void pack_keys(const T* k, int64_t row_stride, int64_t col_stride, int64_t n, int64_t D, float* packed) {
  for (int64_t first = 0; first < n; first += kPanelFloats) {
    const int64_t keys = std::min(kPanelFloats, n - first);
    const int64_t width = round_up(keys, kWidth);
    float* panel = packed + first * D;
    for (int64_t j = 0; j < width; j += kWidth) {
      const int64_t count = std::min<int64_t>(kWidth, keys - j);
      const T* x = k + (first + j) * row_stride;
      if (row_stride == 1) {
        for (int64_t d = 0; d < D; ++d) {
          const T* y = x + d * col_stride;
          store(panel + d * width + j, count == kWidth ? load_as_float(y) : load_first(y, count));
        }
        continue;
      }
      int64_t d = 0;
      if (col_stride == 1) {
        for (; d < D; d += kWidth) {
          const int64_t rows = std::min<int64_t>(kWidth, D - d);
          Vec r[kWidth];
          if (rows < kWidth) {
            for (int i = 0; i < kWidth; ++i)
              r[i] = i < count ? load_first(x + i * row_stride + d, rows) : Vec{};
          } else if (count == kWidth) {
#pragma GCC unroll 16
            for (int i = 0; i < kWidth; ++i) r[i] = load_as_float(x + i * row_stride + d);
          } else {
            for (int i = 0; i < kWidth; ++i) r[i] = i < count ? load_as_float(x + i * row_stride + d) : Vec{};
          }
          transpose<kWidth / 2>(r);
          if (rows == kWidth) {
#pragma GCC unroll 16
            for (int i = 0; i < kWidth; ++i) store(panel + (d + i) * width + j, r[i]);
          } else {
            for (int64_t i = 0; i < rows; ++i) store(panel + (d + i) * width + j, r[i]);
          }
        }
        continue;
      }
      for (; d < D; ++d) {
        float* y = panel + d * width + j;
        for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(x[i * row_stride + d * col_stride]);
        for (int64_t i = count; i < kWidth; ++i) y[i] = 0.0f;
      }
    }
  }
}

// V as [n, width] floats, width being Dv in whole vectors. Where Dv ends within the first half of a vector,
// the second half repeats it for multiply_half.
template <class T>
void pack_values(const T* v, int64_t row_stride, int64_t col_stride, int64_t n, int64_t Dv, int64_t width,
                 float* packed) {
  constexpr int64_t kHalf = kWidth / 2;
  const bool repeat = width - Dv >= kHalf;
  for (int64_t j = 0; j < n; ++j) {
    float* y = packed + j * width;
    copy_row(v + j * row_stride, col_stride, Dv, 1.0f, y);
    if (repeat) std::memcpy(y + width - kHalf, y + width - 2 * kHalf, kHalf * sizeof(float));
  }
}

// Number i of `n`, which lie `stride` apart, and those behind it; zeros behind the last.
template <class T>
inline Vec load_apart(const T* x, int64_t stride, int64_t n) {
  if (stride == 1) return load_range(x, 0, n);
  alignas(64) float numbers[kWidth] = {};
  for (int64_t i = 0; i < std::min<int64_t>(kWidth, n); ++i) numbers[i] = static_cast<float>(x[i * stride]);
  return load_aligned(numbers);
}

// pack_keys in words: [steps, width of the panel], zeros behind D.
template <class T>
void pack_key_pairs(const T* k, int64_t row_stride, int64_t col_stride, int64_t n, int64_t D, int64_t steps,
                    Word* packed) {
  for (int64_t first = 0; first < n; first += kPanelFloats) {
    const int64_t keys = std::min(kPanelFloats, n - first), width = round_up(keys, kWidth);
    for (int64_t j = 0; j < width; j += kWidth) {
      const int64_t count = std::min<int64_t>(kWidth, keys - j);
      const T* x = k + (first + j) * row_stride;
      Word* to = packed + first * steps + j;
      if (col_stride != 1) {
        for (int64_t step = 0; step < steps; ++step, to += width) {
          const T* y = x + 2 * step * col_stride;
          const Vec low = 2 * step < D ? load_apart(y, row_stride, count) : Vec{};
          const Vec high = 2 * step + 1 < D ? load_apart(y + col_stride, row_stride, count) : Vec{};
          *reinterpret_cast<UnalignedWords*>(to) = Brain::join(low, high);
        }
        continue;
      }
      for (int64_t step = 0; step < steps; step += kWidth) {
        Vec r[kWidth];
        for (int i = 0; i < kWidth; ++i) {
          r[i] = i < count
                     ? reinterpret_cast<Vec>(row_words<Brain>(x + i * row_stride + 2 * step, D - 2 * step))
                     : Vec{};
        }
        transpose<kWidth / 2>(r);
        for (int64_t i = 0; i < std::min<int64_t>(kWidth, steps - step); ++i, to += width) {
          *reinterpret_cast<UnalignedWords*>(to) = reinterpret_cast<Words>(r[i]);
        }
      }
    }
  }
}

// pack_values in words: [n / 2, width], and zeros until tiles are full.
template <class T>
void pack_value_pairs(const T* v, int64_t row_stride, int64_t col_stride, int64_t n, int64_t Dv,
                      int64_t width, Word* packed) {
  constexpr int64_t kHalf = kWidth / 2;
  const int64_t steps = ceil_div(n, 2);
  std::fill_n(packed + steps * width, (tiled_steps(steps) - steps) * width, 0);
  for (int64_t j = 0; j < n; j += 2, packed += width) {
    for (int64_t c = 0; c < width; c += kWidth) {
      const T* x = v + j * row_stride + c * col_stride;
      const Vec low = load_apart(x, col_stride, Dv - c);
      const Vec high = j + 1 < n ? load_apart(x + row_stride, col_stride, Dv - c) : Vec{};
      *reinterpret_cast<UnalignedWords*>(packed + c) = Brain::join(low, high);
    }
    if (width - Dv >= kHalf) {
      std::memcpy(packed + width - kHalf, packed + width - 2 * kHalf, kHalf * sizeof(Word));
    }
  }
}

// The sum of 0 * V over n keys into poison [width], and whether that has a NaN: keys with probability 0 add
// this to O, and it is NaN in the columns where V has a NaN or an infinity.
template <class T>
bool sum_poison(const T* v, int64_t row_stride, int64_t n, int64_t width, float* poison) {
  bool any = false;
  for (int64_t c = 0; c < width; c += kWidth) {
    Vec sum{};
    for (int64_t j = 0; j < n; ++j) sum += load_as_float(v + j * row_stride + c) * 0.0f;
    store(poison + c, sum);
    any |= sum_of(sum) != 0.0f;
  }
  return any;
}

bool sum_pair_poison(const Word* v, int64_t n, int64_t width, float* poison) {
  bool any = false;
  for (int64_t c = 0; c < width; c += kWidth) {
    Vec sum{};
    for (int64_t j = 0; j < ceil_div(n, 2); ++j) {
      const Words pair = Factors<Word>::load(v + j * width + c);
      sum += first_of_pair(pair) * 0.0f + second_of_pair(pair) * 0.0f;
    }
    store(poison + c, sum);
    any |= sum_of(sum) != 0.0f;
  }
  return any;
}

// --- Few rows: K and V are read once, so packing them would double the traffic ---

// scores [n] of one row against keys that are contiguous along D. q is padded with zeros to whole vectors.
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

// --- The kernel ---

constexpr int64_t kTileRows = 48;            // a multiple of every rows_of() and of kWidth
constexpr int64_t kMaxTileRows = 96;         // where the scores of so many stay in the first-level cache
constexpr int64_t kScoreFloats = 12 * 1024;  // of a tile of more than kTileRows
constexpr int64_t kFewRows = 4;              // so many rows or fewer read K and V in place
constexpr int64_t kLeastItemRows = 96;       // an item of fewer rows spends too much of its time packing
constexpr int64_t kItemFloats = 128 * 1024;  // of Q and O in an item, whose keys are packed once
constexpr int64_t kBlockFloats = 64 * 1024;  // of K and V in a block, all in the second-level cache
constexpr int64_t kBlockKeys = 512;          // at most
constexpr int64_t kChunkKeys = 1024;         // at least, where the keys are split among items
constexpr int64_t kEnoughItems = 16;         // no splitting of the keys above so many items
constexpr int64_t kItemsPerLane = 3;         // so that lanes finish together
constexpr int64_t kLaneProducts = 400'000;   // below, waking another thread costs more than it saves

// How a problem is cut. The rows of an item depend on the number of lanes, which changes no result: every row
// is computed by itself. Blocks and chunks of keys, which decide the order of sums, depend on the problem
// alone.
struct Plan {
  int64_t lanes;
  int64_t rows;        // of one key/value head: group * S
  int64_t heads;       // key/value heads
  int64_t item_rows;   // rows of an item
  int64_t row_items;   // items along the rows
  int64_t block_keys;  // keys of a block
  int64_t chunk_keys;  // keys of an item
  int64_t chunks;      // items along the keys
  int64_t items;
  int64_t query_width;  // D in whole vectors
  int64_t query_steps;  // of a product along D
  int64_t value_width;  // Dv in whole vectors
  int64_t score_stride;
  int64_t tile_rows;
  int64_t result_rows;  // of a Partial
  bool keys_in_place, values_in_place;
  bool in_tiles;
  bool final_products;  // nothing stands between Q K^T and the softmax
  bool half_vector;     // the last panel of values is two and a half vectors
  bool one_block;       // a tile sees all its keys at once, and its result is stored at once

  Plan(const AttentionProblem& p, int64_t most_lanes, bool is_float) {
    rows = p.group * p.S;
    heads = p.H / p.group;
    query_width = round_up(p.D, kWidth);
    value_width = round_up(p.Dv, kWidth);
    in_tiles = p.bfloat16 && with_tiles();
    query_steps = p.bfloat16 ? tiled_steps(ceil_div(p.D, 2)) : p.D;
    const int64_t width = query_width + value_width;
    block_keys = std::clamp(kBlockFloats / width / kPanelFloats * kPanelFloats, kPanelFloats, kBlockKeys);
    if (p.T <= block_keys) block_keys = round_up(p.T, kWidth);
    score_stride = block_keys + kWidth;  // not a power of two: rows must not share cache sets
    tile_rows = kMaxTileRows * score_stride <= kScoreFloats ? kMaxTileRows : kTileRows;
    chunks = 1;
    if (p.B * heads * ceil_div(rows, kLeastItemRows) < kEnoughItems) {
      chunks = std::clamp<int64_t>(p.T / kChunkKeys, 1, kEnoughItems);
    }
    chunk_keys = round_up(ceil_div(p.T, chunks), block_keys);
    chunks = ceil_div(p.T, chunk_keys);
    lanes = std::min(most_lanes, 1 + p.B * p.H * p.S * p.T * (p.D + p.Dv) / kLaneProducts);
    const int64_t wanted = lanes == 1 ? 1 : ceil_div(lanes * kItemsPerLane, p.B * heads * chunks);
    item_rows = std::max(std::min(kItemFloats / width, ceil_div(rows, wanted)), kLeastItemRows);
    item_rows = std::min(rows, round_up(ceil_div(rows, ceil_div(rows, item_rows)), tile_rows));
    row_items = ceil_div(rows, item_rows);
    items = p.B * heads * row_items * chunks;
    lanes = std::min(lanes, items);
    keys_in_place = rows <= kFewRows && (p.k.col == 1 || p.k.row == 1) && !p.bfloat16;
    const bool whole_values = p.v.col == 1 && p.Dv == value_width && !p.bfloat16;
    values_in_place = whole_values && (rows <= kFewRows || (is_float && p.v.row == p.Dv));
    final_products =
        !keys_in_place && !p.has_bias && !p.has_mask && !p.causal && !p.window && p.softcap == 0.0f;
    half_vector = kWidth == 16 && value_width % kPanelFloats == 48 && value_width - p.Dv >= kWidth / 2 &&
                  !values_in_place;
    one_block = p.T <= block_keys;
    result_rows = one_block ? tile_rows : round_up(item_rows, kWidth);
  }
};

// What an item leaves behind: unnormalised output, highest score, sum, and the poison of all its values.
struct Partial {
  float *o, *highest, *sum, *poison;
};

struct Scratch {
  float *q, *k, *v, *scores, *most, *factor, *block_poison;
  uint8_t* mask;
  Partial result;
};

Partial take_partial(const Plan& plan, Workspace& workspace) {
  Partial r;
  r.o = workspace.take<float>(plan.result_rows * plan.value_width);
  r.highest = workspace.take<float>(plan.result_rows);
  r.sum = workspace.take<float>(plan.result_rows);
  r.poison = workspace.take<float>(plan.value_width);
  return r;
}

Scratch take_scratch(const Plan& plan, Workspace& workspace) {
  Scratch s;
  s.q = workspace.take<float>(plan.tile_rows * plan.query_width);
  s.k = workspace.take<float>(plan.keys_in_place ? 0 : plan.block_keys * plan.query_steps);
  s.v = workspace.take<float>(plan.values_in_place ? 0 : plan.block_keys * plan.value_width);
  s.scores = workspace.take<float>(plan.tile_rows * plan.score_stride);
  s.most = workspace.take<float>(plan.final_products ? plan.tile_rows * kWidth : 0);
  s.factor = workspace.take<float>(plan.tile_rows);
  s.block_poison = workspace.take<float>(plan.value_width);
  s.mask = workspace.take<uint8_t>(plan.block_keys);
  s.result = take_partial(plan, workspace);
  return s;
}

// The memory of a call: the scratch of each lane, and the partial result of each item where there are several
// to a row.
struct Memory {
  char *lanes, *partials;
  size_t lane_bytes, partial_bytes;
};

Memory take_memory(const Plan& plan, Workspace& workspace) {
  Workspace lane(nullptr), partial(nullptr);
  take_scratch(plan, lane);
  if (plan.chunks > 1) take_partial(plan, partial);
  Memory m;
  m.lane_bytes = lane.bytes();
  m.partial_bytes = partial.bytes();
  m.lanes = workspace.take<char>(plan.lanes * static_cast<int64_t>(m.lane_bytes));
  m.partials = workspace.take<char>(plan.items * static_cast<int64_t>(m.partial_bytes));
  return m;
}

template <class T>
struct Attention {
  const AttentionProblem& p;
  const Plan& plan;
  const T *q, *k, *v, *bias;
  const bool* mask;
  T* o;

  // Query head and position of row r of a key/value head.
  struct Row {
    int64_t h, s;
  };
  Row row_at(int64_t head, int64_t r) const { return {head * p.group + r / p.S, r % p.S}; }
  void advance(Row& row) const {
    if (++row.s == p.S) row = {row.h + 1, 0};
  }

  // The first key that a row sees, and the one behind the last: of `n` keys from `first` on.
  struct Keys {
    int64_t begin, end;
  };
  Keys window_of(Row row, int64_t first, int64_t n) const {
    if (!p.window) return {0, n};
    const int64_t place = row.s + p.T - p.S - first;
    return {std::max<int64_t>(place - p.left, 0), std::clamp<int64_t>(place + p.right + 1, 0, n)};
  }

  // Does to the scores of one row against keys [first, first + n) all that stands between the two products
  // but the softmax; the lanes of the result hold the highest.
  Vec finish_scores(const Scratch& w, float* s, int64_t b, Row row, int64_t first, int64_t n) const {
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

  // Asks for what `rows` rows will read of a bias or mask at keys [first, first + n) where each lies on a
  // page of its own: the processor's own prefetching ends with the page.
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

  // Keys [first, first + n), of which a row of the item sees none, some or all.
  struct Block {
    int64_t first, n;
    const T *k, *v;  // where it comes from
    bool fresh;      // the item's first
    bool poisoned;   // V has a NaN or an infinity, which even keys with probability 0 pass on
    bool keys_packed;
  };

  // How many of the block's keys `rows` rows take. Those that causality or a window hides from all of them have
  // probability 0, unless a finite mask_value may weigh behind causality.
  int64_t keys_that_count(const Block& block, Row row, int64_t rows, const float* highest) const {
    if ((!p.causal && !p.window) || block.poisoned) return block.n;
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

  // C [rows, vectors * kWidth] = A B, or C * factor[row] + A B where there are factors. What is left of the last tile of
  // rows is written, too.
  static void multiply_in_tiles(int64_t rows, int64_t vectors, const Word* a, int64_t lda, const Word* b,
                                int64_t ldb, int64_t steps, float* c, int64_t ldc, const float* factor) {
    const int64_t tiles = ceil_div(steps, kTileSide), most = kBlockTiles * kWidth;
    alignas(64) float product[kBlockRows * most];
    for (int64_t i = 0; i < rows; i += kBlockRows) {
      const int64_t n = std::min(kBlockRows, rows - i);
      const Tiles of_a = {a + i * lda, kTileSide, kTileSide * lda, lda};
      for (int64_t j = 0; j < vectors; j += kBlockTiles) {
        const int64_t width = std::min(kBlockTiles, vectors - j);
        const Tiles of_b = {b + j * kWidth, kTileSide * ldb, kTileSide, ldb};
        float* y = c + i * ldc + j * kWidth;
        if (factor == nullptr) {
          multiply_block(ceil_div(n, kTileSide), width, of_a, of_b, tiles, y, ldc);
          continue;
        }
        multiply_block(ceil_div(n, kTileSide), width, of_a, of_b, tiles, product, most);
        for (int64_t row = 0; row < n; ++row, y += ldc) {
          for (int64_t d = 0; d < width * kWidth; d += kWidth) {
            store(y + d, load(y + d) * factor[i + row] + load(product + row * most + d));
          }
        }
      }
    }
  }

  // Scores of `rows` rows with the block's first n keys, which are packed if they are not yet.
  void multiply_keys(const Scratch& w, Block& block, int64_t b, Row row, int64_t rows, int64_t n,
                     bool most_known) const {
    if (!block.keys_packed) {
      if (p.bfloat16) {
        pack_key_pairs(block.k, p.k.row, p.k.col, block.n, p.D, plan.query_steps, words(w.k));
      } else {
        pack_keys(block.k, p.k.row, p.k.col, block.n, p.D, w.k);
      }
    }
    block.keys_packed = true;
    if (most_known) std::fill_n(w.most, rows * kWidth, -std::numeric_limits<float>::infinity());
    const Result result = most_known ? Result::kMost : Result::kStore;
    for (int64_t j = 0; j < n; j += kPanelFloats) {
      const int64_t width = round_up(std::min(kPanelFloats, block.n - j), kWidth);
      const int64_t vectors = ceil_div(std::min(kPanelFloats, n - j), kWidth);
      prefetch_rows(b, row, rows, block.first + j, std::min(kPanelFloats, n - j));
      const Word* pairs = words(w.k) + j * plan.query_steps;
      if constexpr (kHasTiles) {
        if (plan.in_tiles) {
          multiply_in_tiles(rows, vectors, words(w.q), plan.query_width, pairs, width, plan.query_steps,
                            w.scores + j, plan.score_stride, nullptr);
          continue;
        }
      }
      if (p.bfloat16) {
        multiply_rows(rows, vectors, w.q, plan.query_width, pairs, width, plan.query_steps, result,
                      w.scores + j, plan.score_stride, w.most);
        continue;
      }
      multiply_rows(rows, vectors, w.q, plan.query_width, static_cast<const float*>(w.k + j * p.D), width,
                    p.D, result, w.scores + j, plan.score_stride, w.most);
    }
  }

  // Takes `rows` rows of the item, from row i0 of the item, through one block.
  void tile(const Scratch& w, Block& block, int64_t b, int64_t head, int64_t r0, int64_t i0,
            int64_t rows) const {
    const float infinity = std::numeric_limits<float>::infinity();
    const int64_t at = plan.one_block ? 0 : i0;
    float* const highest = w.result.highest + at;
    float* const sum = w.result.sum + at;
    float* const out = w.result.o + at * plan.value_width;
    if (block.fresh) {
      std::fill_n(highest, round_up(rows, kWidth), -infinity);
      std::fill_n(sum, round_up(rows, kWidth), 0.0f);
    }

    const int64_t n = keys_that_count(block, row_at(head, r0 + i0), rows, highest);
    if (n == 0) {
      if (block.fresh) std::fill_n(out, rows * plan.value_width, 0.0f);
      return;
    }

    load_queries(w, b, row_at(head, r0 + i0), rows);
    const bool most_known = plan.final_products && n % kWidth == 0 && !plan.in_tiles;
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
      multiply_keys(w, block, b, row_at(head, r0 + i0), rows, n, most_known);
    }

    const int64_t padded = round_up(n, kWidth);
    float shifts[kMaxTileRows], totals[kMaxTileRows];
    Row row = row_at(head, r0 + i0);
    reduce_rows(rows, shifts, -infinity, larger, [&](int64_t i) {
      if (most_known) return load(w.most + i * kWidth);
      const Row current = row;
      advance(row);
      return finish_scores(w, w.scores + i * plan.score_stride, b, current, block.first, n);
    });
    for (int64_t i = 0; i < rows; i += kWidth) {
      const Vec before = load(highest + i), next = larger(load(shifts + i), before);
      // Nothing but -inf so far: subtract 0, since -inf - -inf would be NaN although finite scores may
      // follow.
      const Vec shift = next == -infinity ? Vec{} : next;
      store(highest + i, next);
      store(shifts + i, shift);
      store(w.factor + i, exp_nonpositive(before - shift));
    }
    reduce_rows(
        rows, totals, 0.0f, [](Vec x, Vec y) { return x + y; },
        [&](int64_t i) {
          float* s = w.scores + i * plan.score_stride;
          if (p.bfloat16) return exp_pairs(s, shifts[i], padded);
          Vec total{};
          for (int64_t j = 0; j < padded; j += kWidth) {
            const Vec e = exp_nonpositive(load(s + j) - shifts[i]);
            store(s + j, e);
            total += e;
          }
          return total;
        });
    for (int64_t i = 0; i < rows; i += kWidth) {
      store(sum + i, load(sum + i) * load(w.factor + i) + load(totals + i));
    }
    if (p.bfloat16) {
      add_pairs(w, rows, ceil_div(n, 2), block.fresh, out);
    } else if (plan.values_in_place) {
      add_values(w, rows, n, block.fresh, block.v, p.v.row, out);
    } else {
      add_values(w, rows, n, block.fresh, w.v, plan.value_width, out);
    }
  }

  // The scores of a row as exponentials, in words at its beginning; the lanes of the result sum them up.
  static Vec exp_pairs(float* s, float shift, int64_t padded) {
    Vec total{};
    for (int64_t j = 0; j < padded; j += 2 * kWidth) {
      const Vec a = exp_nonpositive(load(s + j) - shift);
      const Vec b = j + kWidth < padded ? exp_nonpositive(load(s + j + kWidth) - shift) : Vec{};
      total += a + b;
      *reinterpret_cast<UnalignedWords*>(s + j / 2) = neighbours(a, b);
    }
    return total;
  }

  // What lies there is read and written as vectors, which may alias.
  static Word* words(float* x) { return reinterpret_cast<Word*>(x); }

  // w.q = scale * `rows` rows of Q
  void load_queries(const Scratch& w, int64_t b, Row row, int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i, advance(row)) {
      float* x = w.q + i * plan.query_width;
      if (p.bfloat16) {
        const T* from = q + b * p.q.b + row.h * p.q.h + row.s * p.q.row;
        for (int64_t d = 0; d < p.D; d += 2 * kWidth) {
          const Vec low = load_apart(from + d * p.q.col, p.q.col, p.D - d);
          const Vec high = load_apart(from + (d + kWidth) * p.q.col, p.q.col, p.D - d - kWidth);
          *reinterpret_cast<UnalignedWords*>(x + d / 2) = neighbours(p.scale * low, p.scale * high);
        }
        continue;
      }
      copy_row(q + b * p.q.b + row.h * p.q.h + row.s * p.q.row, p.q.col, p.D, p.scale, x);
    }
  }

  // out = out * factor + p V
  template <class V>
  void add_values(const Scratch& w, int64_t rows, int64_t n, bool fresh, const V* values, int64_t stride,
                  float* out) const {
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
      multiply_rows(rows - i, vectors, w.scores + i * plan.score_stride, plan.score_stride, values + c,
                    stride, n, fresh ? Result::kStore : Result::kAdd, out + i * plan.value_width + c,
                    plan.value_width, w.factor + i);
    }
  }

  // The same of words.
  void add_pairs(const Scratch& w, int64_t rows, int64_t steps, bool fresh, float* out) const {
    if constexpr (kHasTiles) {
      if (plan.in_tiles) {
        for (int64_t c = 0; c < plan.value_width; c += kPanelFloats) {
          const int64_t vectors = ceil_div(std::min(kPanelFloats, plan.value_width - c), kWidth);
          multiply_in_tiles(rows, vectors, words(w.scores), plan.score_stride, words(w.v) + c,
                            plan.value_width, steps, out + c, plan.value_width, fresh ? nullptr : w.factor);
        }
        return;
      }
    }
    add_values(w, rows, steps, fresh, words(w.v), plan.value_width, out);
  }

  // Rows [r0, r0 + rows) of a key/value head against keys [t0, t1), into w.result, or into o if they are all.
  void item(const Scratch& w, int64_t b, int64_t head, int64_t r0, int64_t rows, int64_t t0,
            int64_t t1) const {
    std::fill_n(w.result.poison, plan.value_width, 0.0f);
    for (int64_t first = t0; first < t1; first += plan.block_keys) {
      Block block{first,
                  std::min(plan.block_keys, t1 - first),
                  k + b * p.k.b + head * p.k.h + first * p.k.row,
                  v + b * p.v.b + head * p.v.h + first * p.v.row,
                  first == t0,
                  false,
                  false};
      if (p.bfloat16) {
        pack_value_pairs(block.v, p.v.row, p.v.col, block.n, p.Dv, plan.value_width, words(w.v));
      } else if (!plan.values_in_place) {
        pack_values(block.v, p.v.row, p.v.col, block.n, p.Dv, plan.value_width, w.v);
      }
      if (p.guard || p.causal || p.window) {
        block.poisoned = p.bfloat16 ? sum_pair_poison(words(w.v), block.n, plan.value_width, w.block_poison)
                         : plan.values_in_place
                             ? sum_poison(block.v, p.v.row, block.n, plan.value_width, w.block_poison)
                             : sum_poison(w.v, plan.value_width, block.n, plan.value_width, w.block_poison);
        for (int64_t c = 0; c < plan.value_width; ++c) w.result.poison[c] += w.block_poison[c];
      }
      for (int64_t i = 0; i < rows; i += plan.tile_rows) {
        const int64_t n = std::min(plan.tile_rows, rows - i);
        tile(w, block, b, head, r0, i, n);
        if (plan.one_block) finish(w.result, b, head, r0 + i, n);
      }
    }
  }

  // Normalises and stores rows [r0, r0 + rows) of a key/value head.
  void finish(const Partial& r, int64_t b, int64_t head, int64_t r0, int64_t rows) const {
    Row row = row_at(head, r0);
    for (int64_t i = 0; i < rows; ++i, advance(row)) {
      T* y = o + b * p.o.b + row.h * p.o.h + row.s * p.o.row;
      // The sum is NaN after a NaN or +inf among the scores and 0 where all were -inf. Then all probabilities
      // of the plain softmax are NaN; the guard makes them 0, and O a sum of 0 * V.
      if (p.guard && !(r.sum[i] > 0.0f)) {
        store_row(r.poison, 1.0f, p.Dv, y, p.o.col);
      } else {
        store_row(r.o + i * plan.value_width, 1.0f / r.sum[i], p.Dv, y, p.o.col);
      }
    }
  }

  // Folds the chunks' partial results into the first.
  void merge(Partial* parts, int64_t rows) const {
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
      for (int64_t d = 0; d < plan.value_width; ++d) parts[0].poison[d] += parts[c].poison[d];
    }
  }
};

bool has_no_result(const AttentionProblem& p) { return p.B == 0 || p.H == 0 || p.S == 0 || p.Dv == 0; }

}  // namespace

template <class T>
size_t fused_attention_workspace(const AttentionProblem& p, size_t lanes) {
  if (has_no_result(p) || p.T == 0) return 0;
  Workspace workspace(nullptr);
  take_memory(Plan(p, static_cast<int64_t>(lanes), std::is_same_v<T, float>), workspace);
  return workspace.bytes();
}

template <class T>
void fused_attention(const AttentionProblem& p, const T* q, const T* k, const T* v, const T* bias,
                     const bool* mask, T* o, Parallel& parallel, void* workspace) {
  if (has_no_result(p)) return;
  if (p.T == 0) {  // a product over no keys
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
  const Plan plan(p, static_cast<int64_t>(parallel.lanes()), std::is_same_v<T, float>);
  const Attention<T> attention{p, plan, q, k, v, bias, mask, o};
  const int64_t groups = plan.items / plan.chunks;  // of items that only differ in their keys
  const auto lanes = static_cast<size_t>(plan.lanes);
  Workspace whole(workspace);
  const Memory memory = take_memory(plan, whole);
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
  const auto compute = [&](Scratch& scratch, int64_t i) {
    int64_t b, head, r0, rows;
    bounds(i / plan.chunks, b, head, r0, rows);
    if (plan.chunks > 1) scratch.result = partial_of(i);
    const int64_t t0 = i % plan.chunks * plan.chunk_keys;
    attention.item(scratch, b, head, r0, rows, t0, std::min(t0 + plan.chunk_keys, p.T));
    if (plan.chunks == 1 && !plan.one_block) attention.finish(scratch.result, b, head, r0, rows);
  };
  auto work = [&](size_t lane) {
    if (lane >= lanes) return;
    Workspace mine(memory.lanes + lane * memory.lane_bytes);
    Scratch scratch = take_scratch(plan, mine);
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < plan.items;) {
      if constexpr (kHasTiles) {
        if (plan.in_tiles) {
          const TileRegisters registers;
          compute(scratch, i);
          continue;
        }
      }
      compute(scratch, i);
    }
  };
  // One lane that has items for more asks for threads all the same: they are known once they have come.
  if (lanes <= 1 && (plan.items <= 1 || parallel.lanes() > 1)) {
    work(0);
  } else {
    parallel.run(work);
  }
  if (plan.chunks == 1) return;
  for (int64_t group = 0; group < groups; ++group) {
    int64_t b, head, r0, rows;
    bounds(group, b, head, r0, rows);
    Partial chunk[kEnoughItems];
    for (int64_t c = 0; c < plan.chunks; ++c) chunk[c] = partial_of(group * plan.chunks + c);
    attention.merge(chunk, rows);
    attention.finish(chunk[0], b, head, r0, rows);
  }
}

template size_t fused_attention_workspace<float>(const AttentionProblem&, size_t);
template size_t fused_attention_workspace<half>(const AttentionProblem&, size_t);
template void fused_attention(const AttentionProblem&, const float*, const float*, const float*, const float*,
                              const bool*, float*, Parallel&, void*);
template void fused_attention(const AttentionProblem&, const half*, const half*, const half*, const half*,
                              const bool*, half*, Parallel&, void*);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
