// Quantizes X to bytes with one scale for the tensor, and multiplies it by W. W is packed as words of four bytes at
// adjacent indices k. The range of X is computed first. Then X is quantized and packed in blocks of rows, which remain
// in the second-level cache while they are multiplied by all panels of W. The products are exact, and their int32 sums
// wrap: no instruction in use saturates. Zero points, scales, bias and activation are applied while a result is in the
// first-level cache.
//
// With x' = x - x_zero and w' = w - w_zero, sum(x' w') = sum(x w) - x_zero sum(w) - w_zero sum(x) + K x_zero w_zero.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/microkernels/activation.h"
#include "cpu/microkernels/byte_gemm.h"
#include "cpu/microkernels/bytes.h"
#include "cpu/microkernels/packing.h"
#include "cpu/microkernels/quantization.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/matmul/quantized_linear/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// --- Weights

// An even number, because the format Eights multiplies two steps at a time.
int64_t steps_of(const QuantizedLinearProblem& p) { return round_up(ceil_div(p.K, kBytes), 2); }
int64_t padded_columns(const QuantizedLinearProblem& p) { return round_up(p.N, kPanelWidth); }
int64_t panel_words(const QuantizedLinearProblem& p) { return steps_of(p) * padded_columns(p); }

// Returns the number that converts bytes of W to signed bytes when it is added to them modulo 256.
uint8_t offset_of(const WeightBytes& bytes) { return bytes.is_signed ? 0 : 128; }

// A word of W that is not in the panels.
struct LargeWord {
  int32_t at;  // index in the panel: step * kPanelWidth + column
  Word word;
};

// With AVX2 but without VNNI, Eights is the fastest format, but it does not fit all weights. In trained weights with one
// scale, few words do not fit. These are zero in the panels, and a list of them is multiplied separately in the format
// Pairs. If the list would be long, all words are in the panels, which are then multiplied in the format Pairs.
struct PackedW {
  Word* panels;
  int32_t* sums;     // sum of each column of the signed W
  int32_t* begins;   // index of the first large word of each panel, and their number; -1 without a list
  LargeWord* large;  // in the order of panels

  PackedW(const QuantizedLinearProblem& p, Workspace& memory)
      : panels(memory.take<Word>(panel_words(p))),
        sums(memory.take<int32_t>(padded_columns(p))),
        begins(memory.take<int32_t>(padded_columns(p) / kPanelWidth + 1)),
        large(memory.take<LargeWord>(most_large_words(p))) {}

  static int64_t most_large_words([[maybe_unused]] const QuantizedLinearProblem& p) {
#if defined(__AVX2__)
    if (!has_vnni()) return panel_words(p) / 32;  // with more, Pairs is as fast
#endif
    return 0;
  }
  bool fit_eights() const { return begins[0] >= 0; }
};

PackedW packed_w(const QuantizedLinearProblem& p, void* memory) {
  Workspace parts(memory);
  return {p, parts};
}

#if defined(__AVX2__)
// Moves the words that do not fit the format Eights from the panels to the list, unless it would be too long.
void list_large_words(const QuantizedLinearProblem& p, const PackedW& weights) {
  const auto for_each_large_word = [&](const auto& f) {
    for (int64_t n = 0; n < p.N; ++n) {
      Word* words = panel_at(weights.panels, steps_of(p), n / kPanelWidth) + n % kPanelWidth;
      for (int64_t step = 0; step < steps_of(p); step += 2, words += 2 * kPanelWidth) {
        Word &first = words[0], &second = words[kPanelWidth];
        if (Eights::fit(first, second)) continue;
        const bool first_fits = Eights::fit(first, 0), second_fits = Eights::fit(0, second);
        const int64_t at = step * kPanelWidth + n % kPanelWidth;
        if (!first_fits || second_fits) f(n / kPanelWidth, at, first);
        if (!second_fits) f(n / kPanelWidth, at + kPanelWidth, second);
      }
    }
  };
  int64_t count = 0;
  for_each_large_word([&](int64_t, int64_t, Word) { ++count; });
  if (count > PackedW::most_large_words(p)) return;
  const int64_t panels = padded_columns(p) / kPanelWidth;
  std::fill(weights.begins, weights.begins + panels + 1, 0);
  int32_t index = 0;
  for_each_large_word([&](int64_t panel, int64_t at, Word& word) {
    weights.large[index++] = {static_cast<int32_t>(at), word};
    weights.begins[panel + 1] = index;
    word = 0;
  });
  for (int64_t panel = 0; panel < panels; ++panel) {
    weights.begins[panel + 1] = std::max(weights.begins[panel + 1], weights.begins[panel]);
  }
}
#endif

// Calls f with the fastest format that is exact for these weights.
template <class F>
void with_format([[maybe_unused]] const PackedW& weights, const F& f) {
#if defined(__AVX2__)
  if (weights.fit_eights()) return f(Eights());
#endif
  with_byte_format(f);
}

// --- Quantization of X

// The packed X: blocks of at most kMaxRows rows. The blocks that are packed at a time fit in a cache.
struct Blocks {
  int64_t slot, count, most;  // words of a block; number of blocks; maximum number packed at a time
  int64_t ranges;             // number of work items that compute the range of X
  int64_t rows, longer;       // least rows of a block; number of blocks, the first ones, with one more row

  template <class E>
  static Blocks of(const QuantizedLinearProblem& p) {
    Blocks b;
    b.slot = steps_of(p) * E::kParts * kMaxRows + L;
    b.count = ceil_div(p.rows, kMaxRows);
    b.most = ceil_div(b.count, std::max<int64_t>(ceil_div(b.count * b.slot * 4, kChunkBytes), 1));
    b.ranges = ceil_div(p.rows * p.K, kRangeElements);
    b.rows = p.rows / b.count;
    b.longer = p.rows % b.count;
    return b;
  }
  int64_t first_row(int64_t block) const { return block * rows + std::min(block, longer); }
};

struct Packed {
  Range* ranges;
  Quantization* quantization;  // written when X is packed
  Word* words;
  int32_t* sums;  // sum of each quantized row

  Packed(const Blocks& blocks, Workspace& workspace)
      : ranges(workspace.take<Range>(blocks.ranges)),
        quantization(workspace.take<Quantization>(1)),
        words(workspace.take<Word>(blocks.most * blocks.slot)),
        sums(workspace.take<int32_t>(blocks.most * kMaxRows)) {}
};

// Quantizes x [rows, n] and packs it to s [steps][kParts][rows]. Writes up to kWidth words beyond the end of s. Writes
// the sum of each quantized row to `sums` unless it is null.
template <class E>
void pack(const Quantization& quantize, const float* x, int64_t rows, int64_t n, Word* s, int32_t* sums) {
  constexpr int64_t kSpan = kWidth * kBytes;
  alignas(64) uint8_t by_row[kWidth * kSpan] = {};
  alignas(64) Word by_step[kWidth * kWidth];
  if (sums != nullptr) std::fill(sums, sums + rows, 0);
  for (int64_t k = 0; k < n; k += kSpan) {
    const int64_t here = std::min(kSpan, n - k);
    for (int64_t i = 0; i < rows; ++i) {
      uint8_t* row = by_row + i * kSpan;
      for (int64_t j = 0; j < kBytes; ++j) {
        const Vec v = load_range(x + i * n + k + j * L, 0, here - j * L);
        const Bytes bytes = low_bytes(quantize(v));
        std::memcpy(row + j * L, &bytes, sizeof bytes);
      }
      std::fill(row + here, row + kSpan, uint8_t{0});
      if (sums != nullptr) {
        int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < kSpan; ++j) sum += row[j];
        sums[i] += sum;
      }
    }
    transpose(reinterpret_cast<const float*>(by_row), kWidth, reinterpret_cast<float*>(by_step), kWidth);
    for (int64_t j = 0; j < round_up(ceil_div(here, kBytes), 2); ++j) {
      const Words words = *reinterpret_cast<const AlignedWords*>(by_step + j * kWidth);
      for (int part = 0; part < E::kParts; ++part, s += rows) {
        // The words beyond this part are overwritten by the next part.
        *reinterpret_cast<UnalignedWords*>(s) = E::row_part(words, part);
      }
    }
  }
}

// --- Multiplication

// Stores vectors. GCC copies the array in parts that the processor cannot forward to the loads of whole vectors.
template <int kRows>
void store_sums(const Words (&sum)[kRows][kPanel], Word* o) {
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kPanel; ++j) {
      *reinterpret_cast<AlignedWords*>(o + i * kPanelWidth + j * kWidth) = sum[i][j];
    }
  }
}

// Computes the sums o [kRows][kPanelWidth] of a block of rows s [steps][kParts][kRows] and a panel v
// [steps][kPanelWidth].
template <class E>
struct Multiply {
  template <int kRows>
  struct Of {
    static void run(const Word* s, const Word* v, int64_t steps, Word* o) {
      Words sum[kRows][kPanel] = {};
      for (int64_t step = 0; step < steps; ++step, v += kPanelWidth) {
#pragma GCC unroll 4
        for (int part = 0; part < E::kParts; ++part, s += kRows) {
          Words w[kPanel];
#pragma GCC unroll 2
          for (int j = 0; j < kPanel; ++j) {
            w[j] = E::column_part(*reinterpret_cast<const AlignedWords*>(v + j * kWidth), part);
          }
#pragma GCC unroll 14
          for (int i = 0; i < kRows; ++i) {
            const Words x = s[i] - Words{};
#pragma GCC unroll 2
            for (int j = 0; j < kPanel; ++j) sum[i][j] = E::multiply_add(x, w[j], sum[i][j]);
          }
        }
      }
      store_sums(sum, o);
    }
  };
};

#if defined(__AVX2__)
template <>
struct Multiply<Eights> {
  template <int kRows>
  struct Of {
    static void run(const Word* s, const Word* v, int64_t steps, Word* o) {
      Words sum[kRows][kPanel] = {};
      for (int64_t step = 0; step < steps; step += 2, s += 2 * kRows, v += 2 * kPanelWidth) {
        const auto w = [&](int i, int j) {
          return *reinterpret_cast<const AlignedWords*>(v + i * kPanelWidth + j * kWidth);
        };
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i) {
          const Words x[] = {s[i] - Words{}, s[kRows + i] - Words{}};
#pragma GCC unroll 2
          for (int j = 0; j < kPanel; ++j) sum[i][j] = Eights::multiply_add(x, w(0, j), w(1, j), sum[i][j]);
        }
      }
      store_sums(sum, o);
    }
  };
};

// Adds the products of the rows s and the large words of a panel to the sums o of the panel.
template <int kRows>
struct AddLargeWords {
  static void run(const PackedW& weights, const Word* s, int64_t panel, Word* o) {
    for (int32_t i = weights.begins[panel]; i < weights.begins[panel + 1]; ++i) {
      const LargeWord& large = weights.large[i];
      // Elements beyond the rows are not used.
      const Words x = *reinterpret_cast<const UnalignedWords*>(s + large.at / int32_t{kPanelWidth} * kRows);
      const Words w = large.word - Words{};
      Words sum = {};
#pragma GCC unroll 2
      for (int part = 0; part < Pairs::kParts; ++part) {
        sum = Pairs::multiply_add(Pairs::row_part(x, part), Pairs::column_part(w, part), sum);
      }
#pragma GCC unroll 14
      for (int row = 0; row < kRows; ++row)
        o[row * kPanelWidth + large.at % int32_t{kPanelWidth}] += sum[row];
    }
  }
};
#endif

struct Epilogue {
  const QuantizedLinearProblem& p;
  const Quantization& quantization;
  const int32_t* column_sums;  // sum of each column of the signed W
  const WeightBytes& bytes;
  bool is_asymmetric;  // a zero point of the signed W is not 0
  const float *scales, *b;

  // Computes `rows` rows of y, from column n on, from their sums o. Overwrites o. row_sums: the sums of the rows of X.
  void store(Word* o, int64_t rows, int64_t n, const int32_t* row_sums, float* y) const {
    const bool relu = p.act.kind == ActivationKind::kRelu;
    const bool simple = relu || p.act.kind == ActivationKind::kNone;
    const int64_t vectors = panel_vectors(p.N, n / kPanelWidth);
    auto* results = reinterpret_cast<float*>(o);
    for (int64_t j = 0; j < vectors; ++j) {
      const int64_t column = n + j * L, here = p.N - column;
      const Words zero_points = zero_points_of(column, here);
      const Words begin = correction(column, zero_points);
      const Vec scale = load_range(scales + column, 0, here) * quantization.scale;
      const Vec bias = load_range(b + column, 0, here);
      for (int64_t i = 0; i < rows; ++i) {
        Words sum = *reinterpret_cast<const AlignedWords*>(o + i * kPanelWidth + j * L) + begin;
        if (is_asymmetric) sum -= zero_points * static_cast<Word>(row_sums[i]);
        Vec v = __builtin_convertvector((IntVec)sum, Vec) * scale + bias;
        if (relu) v = larger(Vec{}, v);
        if (simple) {
          store_part(y + i * p.N + column, v, here, false);
        } else {
          store_aligned(results + i * kPanelWidth + j * L, v);
        }
      }
    }
    if (simple) return;
    activate_block(p.act, results, results, static_cast<size_t>(rows * kPanelWidth));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < vectors; ++j) {
        store_part(y + i * p.N + n + j * L, load_aligned(results + i * kPanelWidth + j * L), p.N - n - j * L,
                   false);
      }
    }
  }

 private:
  Words zero_points_of(int64_t column, int64_t here) const {
    Words zero_points = {};
    if (!is_asymmetric) return zero_points;
    for (int64_t i = 0; i < std::min(L, here); ++i) {
      const auto zero_point = static_cast<int8_t>(bytes.zero_points[column + i] + offset_of(bytes));
      zero_points[i] = static_cast<Word>(static_cast<int32_t>(zero_point));
    }
    return zero_points;
  }
  // Returns K x_zero w_zero - x_zero sum(w) for each column.
  Words correction(int64_t column, Words zero_points) const {
    const Words sums = *reinterpret_cast<const AlignedWords*>(column_sums + column);
    return (zero_points * static_cast<Word>(p.K) - sums) * static_cast<Word>(quantization.zero);
  }
};

template <class E>
void run(const QuantizedLinearProblem& p, const float* x, const PackedW& w, const WeightBytes& bytes,
         const float* scales, const float* b, float* y, Parallel& parallel, void* memory) {
  const Blocks blocks = Blocks::of<E>(p);
  Workspace workspace(memory);
  const Packed packed(blocks, workspace);
  const int64_t steps = steps_of(p), panels = ceil_div(p.N, kPanelWidth), elements = p.rows * p.K;
  const auto workers = static_cast<int64_t>(parallel.workers());
  // At least one zero point is not 0 in the signed W.
  const bool is_asymmetric =
      bytes.zero_points[0] != offset_of(bytes) ||
      std::memcmp(bytes.zero_points, bytes.zero_points + 1, static_cast<size_t>(p.N - 1)) != 0;
  const Epilogue epilogue = {p, *packed.quantization, w.sums, bytes, is_asymmetric, scales, b};
  std::vector<Loop> loops;
  loops.push_back({blocks.ranges, [&](int64_t i, size_t) {
                     const int64_t begin = i * kRangeElements;
                     packed.ranges[i] = range_of(x + begin, std::min(kRangeElements, elements - begin));
                   }});
  for (int64_t first = 0; first < blocks.count; first += blocks.most) {
    const int64_t count = std::min(blocks.most, blocks.count - first);
    loops.push_back({count, [&, first](int64_t i, size_t) {
                       const int64_t row = blocks.first_row(first + i);
                       const Quantization quantization(packed.ranges, blocks.ranges);
                       if (first + i == 0) *packed.quantization = quantization;
                       pack<E>(quantization, x + row * p.K, blocks.first_row(first + i + 1) - row, p.K,
                               packed.words + i * blocks.slot,
                               is_asymmetric ? packed.sums + i * kMaxRows : nullptr);
                     }});
    const int64_t parts = parts_of_rows(count, panels, workers);
    loops.push_back(
        {panels * parts, [&, first, count, parts](int64_t item, size_t) {
           int64_t panel = item, begin = 0, end = count;
           if (parts > 1) {  // the divisions would take a part of the time for few rows
             const int64_t part = item % parts;
             panel = item / parts, begin = count * part / parts, end = count * (part + 1) / parts;
           }
           const int64_t n = panel * kPanelWidth;
           alignas(64) Word o[kMaxRows * kPanelWidth];
           for (int64_t i = begin; i < end; ++i) {
             const int64_t row = blocks.first_row(first + i), rows = blocks.first_row(first + i + 1) - row;
             prefetch_rows(y + row * p.N + n, p.N, rows);
             const Word* s = packed.words + i * blocks.slot;
             of_rows<Multiply<E>::template Of>(rows)(s, panel_at(w.panels, steps, panel), steps, o);
#if defined(__AVX2__)
             if constexpr (std::is_same_v<E, Eights>) of_rows<AddLargeWords>(rows)(w, s, panel, o);
#endif
             epilogue.store(o, rows, n, packed.sums + i * kMaxRows, y + row * p.N);
           }
         }});
  }
  parallel_loops(parallel, loops);
}

}  // namespace

template <class T>
size_t quantized_linear_weights(const QuantizedLinearProblem& p) {
  Workspace memory(nullptr);
  PackedW(p, memory);
  return memory.bytes();
}

template <class T>
void quantized_linear_prepare(const QuantizedLinearProblem& p, const WeightBytes& bytes, void* weights) {
  const PackedW packed = packed_w(p, weights);
  std::fill(packed.sums, packed.sums + padded_columns(p), 0);
  for (int64_t n = 0; n < padded_columns(p); n += kPanelWidth) {
    auto* out = reinterpret_cast<uint8_t*>(panel_at(packed.panels, steps_of(p), n / kPanelWidth));
    const int64_t columns = std::min(kPanelWidth, p.N - n);
    for (int64_t k = 0; k < steps_of(p) * kBytes; ++k) {
      uint8_t* to = out + k / kBytes * kPanelWidth * kBytes + k % kBytes;
      for (int64_t j = 0; j < kPanelWidth; ++j) {
        const bool exists = k < p.K && j < columns;
        const auto value = static_cast<int8_t>(exists ? bytes.w[k * p.N + n + j] + offset_of(bytes) : 0);
        to[j * kBytes] = static_cast<uint8_t>(value);
        packed.sums[n + j] += value;
      }
    }
  }
  packed.begins[0] = -1;
#if defined(__AVX2__)
  if (!has_vnni()) list_large_words(p, packed);
#endif
}

template <class T>
size_t quantized_linear_workspace(const QuantizedLinearProblem& p, size_t) {
  const auto bytes_with = [&](auto format) {
    Workspace workspace(nullptr);
    Packed(Blocks::of<decltype(format)>(p), workspace);
    return workspace.bytes();
  };
#if defined(__AVX2__)
  return std::max(with_byte_format(bytes_with), bytes_with(Eights()));
#else
  return with_byte_format(bytes_with);
#endif
}

template <class T>
void quantized_linear(const QuantizedLinearProblem& p, const T* x, const void* weights,
                      const WeightBytes& bytes, const T* scales, const T* b, T* y, Parallel& parallel,
                      void* workspace) {
  if (p.rows <= 0 || p.N <= 0) return;
  const PackedW packed = packed_w(p, const_cast<void*>(weights));
  with_format(packed, [&](auto format) {
    run<decltype(format)>(p, x, packed, bytes, scales, b, y, parallel, workspace);
  });
}

template decltype(quantized_linear_weights<float>) quantized_linear_weights<float>;
template decltype(quantized_linear_prepare<float>) quantized_linear_prepare<float>;
template decltype(quantized_linear_workspace<float>) quantized_linear_workspace<float>;
template decltype(quantized_linear<float>) quantized_linear<float>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
