// Vectors of float as wide as the instruction set allows: sixteen, eight or four elements. For kernel files only (see
// cpu/isa.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
// gcc 12 warns about its own _mm512_undefined_ps (bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include "blocks/half.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int64_t L = kWidth;    // short name, for index computations
constexpr int kLineFloats = 16;  // floats in a cache line

using Vec = float __attribute__((vector_size(kWidth * 4)));
using IntVec = int32_t __attribute__((vector_size(kWidth * 4)));
using AlignedVec = float __attribute__((vector_size(kWidth * 4), may_alias));
using UnalignedVec = float __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

inline Vec load(const float* x) { return *reinterpret_cast<const UnalignedVec*>(x); }
inline void store(float* x, Vec v) { *reinterpret_cast<UnalignedVec*>(x) = v; }
inline Vec load_aligned(const float* x) { return *reinterpret_cast<const AlignedVec*>(x); }
inline void store_aligned(float* x, Vec v) { *reinterpret_cast<AlignedVec*>(x) = v; }
inline Vec splat(float x) { return x - Vec{}; }

// --- Permutations of elements

// Returns a vector whose element i is element index(i) of a; indices from kWidth on select from b.
template <class Index, int... kLanes>
inline Vec shuffle(Vec a, Vec b, Index, std::integer_sequence<int, kLanes...>) {
  return __builtin_shufflevector(a, b, Index::at(kLanes)...);
}
template <class Index>
inline Vec shuffle(Vec a, Vec b, Index index) {
  return shuffle(a, b, index, std::make_integer_sequence<int, kWidth>());
}

// Indices for shuffle(a, b). EveryOther: elements kFirst, kFirst + 2, ... of a and then b. Interleaved: a[kFirst],
// b[kFirst], a[kFirst + 1], b[kFirst + 1], ...
template <int kFirst>
struct EveryOther {
  static constexpr int at(int i) { return 2 * i + kFirst; }
};
template <int kFirst>
struct Interleaved {
  static constexpr int at(int i) { return kFirst + i / 2 + i % 2 * kWidth; }
};

// Indices for shuffle(a, b) that move groups of kHalf elements. For two groups a0 a1 of a and b0 b1 of b, the result
// is: Swapped a1 a0, Diagonal a0 b1, OffDiagonal a1 b0, Lower a0 b0, Upper a1 b1.
template <int kHalf>
struct Swapped {
  static constexpr int at(int i) { return i ^ kHalf; }
};
template <int kHalf>
struct Diagonal {
  static constexpr int at(int i) { return (i & kHalf) ? kWidth + i : i; }
};
template <int kHalf>
struct OffDiagonal {
  static constexpr int at(int i) { return (i & kHalf) ? kWidth + (i ^ kHalf) : (i ^ kHalf); }
};
template <int kHalf>
struct Lower {
  static constexpr int at(int i) { return (i & kHalf) ? kWidth + (i ^ kHalf) : i; }
};
template <int kHalf>
struct Upper {
  static constexpr int at(int i) { return (i & kHalf) ? kWidth + i : (i ^ kHalf); }
};

template <int kXor>
inline Vec swap_lanes(Vec x) {
  return shuffle(x, x, Swapped<kXor>());
}

// larger() and smaller() return the element-wise maximum and minimum; if an element of a or b is NaN, the element of b.
// They use intrinsics because gcc 12 compiles the comparison to two instructions.
inline Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
inline Vec smaller(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

inline float sum_of(Vec x) {
  if constexpr (kWidth > 8) x += swap_lanes<8>(x);
  if constexpr (kWidth > 4) x += swap_lanes<4>(x);
  x += swap_lanes<2>(x);
  x += swap_lanes<1>(x);
  return x[0];
}

// Reduces kGroup vectors at once: element i of the result is the reduction of r[i % kGroup] by `op`. Single reductions
// would take about twice as many instructions, and more of these would depend on each other.
constexpr int kGroup = kWidth < 8 ? kWidth : 8;
template <int kHalf = kGroup / 2, class Op>
inline Vec reduce_group(Vec (&r)[kGroup], Op op) {
#pragma GCC unroll 4
  for (int i = 0; i < kHalf; ++i) {
    const Vec a = r[i], b = r[i + kHalf];
    r[i] = op(shuffle(a, b, Diagonal<kHalf>()), shuffle(a, b, OffDiagonal<kHalf>()));
  }
  if constexpr (kHalf > 1) return reduce_group<kHalf / 2>(r, op);
  if constexpr (kWidth > kGroup) r[0] = op(r[0], swap_lanes<kGroup>(r[0]));
  return r[0];
}

inline IntVec lane_numbers() {
  IntVec lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  return lane;
}

// Returns a vector of the first `count` elements of x; its remaining elements are `other`.
inline Vec keep_part(Vec x, int64_t count, float other) {
  return lane_numbers() < static_cast<int32_t>(count) ? x : splat(other);
}

// Returns a vector whose element i is a[i] if keep[i] is not zero, else b[i].
inline Vec select(const uint8_t* keep, Vec a, Vec b) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(keep));
  return _mm512_mask_blend_ps(_mm_test_epi8_mask(bytes, bytes), b, a);
#else
  using Bytes = uint8_t __attribute__((vector_size(kWidth)));
  Bytes bytes;
  std::memcpy(&bytes, keep, sizeof bytes);
  return __builtin_convertvector(bytes, IntVec) != 0 ? a : b;
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each mask of eight bits: the indices of the bits that are set, in order, then zeros.
inline constexpr auto kSelectedIndices = [] {
  std::array<std::array<uint8_t, 8>, 256> all = {};
  for (size_t mask = 0; mask < all.size(); ++mask) {
    size_t count = 0;
    for (uint8_t i = 0; i < 8; ++i) {
      if ((mask >> i & 1) != 0) all[mask][count++] = i;
    }
  }
  return all;
}();
#endif

// Moves the elements selected by the bits of `mask` to the front, in order. The other elements are unspecified.
inline Vec move_to_front(Vec v, uint32_t mask) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_compress_ps(static_cast<__mmask16>(mask), (__m512)v);
#elif defined(__AVX2__)
  const auto* indices = reinterpret_cast<const __m128i*>(kSelectedIndices[mask].data());
  return (Vec)_mm256_permutevar8x32_ps((__m256)v, _mm256_cvtepu8_epi32(_mm_loadl_epi64(indices)));
#else
  Vec result = {};
  int count = 0;
  for (int i = 0; i < kWidth; ++i) {
    if ((mask >> i & 1) != 0) result[count++] = v[i];
  }
  return result;
#endif
}

// Computes y[i][j] = x[j][i] for i and j in [0, kWidth), with rows x_stride and y_stride apart. The rows of x are
// aligned.
inline void transpose(const float* x, int64_t x_stride, float* y, int64_t y_stride) {
#if defined(__AVX512F__)
  __m512 r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_ps(x + i * x_stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
    const __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
    r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {  // 128-bit lane l of r[4 g + j] is column 4 l + j of rows 4 g to 4 g + 3
    const __m512 even01 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
    const __m512 even23 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
    const __m512 odd01 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
    const __m512 odd23 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    _mm512_storeu_ps(y + j * y_stride, _mm512_shuffle_f32x4(even01, even23, 0x88));
    _mm512_storeu_ps(y + (4 + j) * y_stride, _mm512_shuffle_f32x4(odd01, odd23, 0x88));
    _mm512_storeu_ps(y + (8 + j) * y_stride, _mm512_shuffle_f32x4(even01, even23, 0xdd));
    _mm512_storeu_ps(y + (12 + j) * y_stride, _mm512_shuffle_f32x4(odd01, odd23, 0xdd));
  }
#elif defined(__AVX2__)
  __m256 r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_load_ps(x + i * x_stride);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_ps(y + j * y_stride, _mm256_permute2f128_ps(r[j], r[4 + j], 0x20));
    _mm256_storeu_ps(y + (4 + j) * y_stride, _mm256_permute2f128_ps(r[j], r[4 + j], 0x31));
  }
#else
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t j = 0; j < kWidth; ++j) y[i * y_stride + j] = x[j * x_stride + i];
  }
#endif
}

// --- float and float16, whole vectors and parts

inline Vec load_as_float(const float* x) { return load(x); }
inline Vec load_as_float(const half* x) {
#if defined(__AVX512F__)
  // The unmasked forms of GCC 12 warn about their uninitialized operand (GCC bug 105593).
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
#else
  Vec v;
  for (int i = 0; i < kWidth; ++i) v[i] = static_cast<float>(x[i]);
  return v;
#endif
}

// Stores v as float16, rounded to nearest even.
inline void store(half* x, Vec v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x),
                      _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(x), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kWidth; ++i) x[i] = static_cast<half>(v[i]);
#endif
}

// Returns x[i] for i in [lo, hi) and 0 elsewhere in [0, kWidth). Reads no other memory.
inline Vec load_range(const float* x, int64_t lo, int64_t hi) {
  if (lo <= 0 && hi >= kWidth) return *reinterpret_cast<const UnalignedVec*>(x);
  lo = std::max<int64_t>(lo, 0);
  hi = std::min<int64_t>(hi, kWidth);
  if (lo >= hi) return Vec{};
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>((0xffffu >> (kWidth - hi)) & (0xffffu << lo));
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(mask, x));
#elif defined(__AVX2__)
  const IntVec lane = lane_numbers();
  const IntVec mask = (lane >= static_cast<int32_t>(lo)) & (lane < static_cast<int32_t>(hi));
  return (Vec)_mm256_maskload_ps(x, (__m256i)mask);
#else
  alignas(64) float part[kWidth] = {};
  for (int64_t i = lo; i < hi; ++i) part[i] = x[i];
  return load_aligned(part);
#endif
}

// Returns the first `count` of kWidth values, then zeros.
template <class T>
inline Vec load_first(const T* x, int64_t count) {
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  if constexpr (sizeof(T) == 4) {
    return _mm512_maskz_loadu_ps(mask, x);
  } else {
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_maskz_loadu_epi16(mask, x));
  }
#else
  if constexpr (sizeof(T) == 4) return load_range(x, 0, count);
  T part[kWidth];
  for (int64_t i = 0; i < kWidth; ++i) part[i] = i < count ? x[i] : T(0.0f);
  return load_as_float(part);
#endif
}

#if defined(__AVX512F__)
// One bit for each element.
using Lanes = __mmask16;

// Returns x[i] for the selected elements and 0 elsewhere. Reads no other memory.
inline Vec load_lanes(const float* x, Lanes lanes) {
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(lanes, x));
}

// Returns kWidth elements of the concatenation of x and `next`, starting at kFirst; 0 for elements that are
// not selected.
template <int kFirst>
inline Vec lanes_from(Vec x, Vec next, Lanes lanes) {
  const auto a = (__m512i)x, b = (__m512i)next;
  return (Vec)(kFirst == 0 ? _mm512_maskz_mov_epi32(lanes, a)
                           : _mm512_maskz_alignr_epi32(lanes, b, a, kFirst));
}
#endif

inline Vec load_range(const half* x, int64_t lo, int64_t hi) {
  if (lo <= 0 && hi >= kWidth) return load_as_float(x);
  alignas(64) float part[kWidth] = {};
  lo = std::max<int64_t>(lo, 0);
  hi = std::min<int64_t>(hi, kWidth);
  for (int64_t i = lo; i < hi; ++i) part[i] = static_cast<float>(x[i]);
  return load_aligned(part);
}

// Stores the first n elements of v. With `stream`, aligned whole vectors bypass the caches, and the caller must issue a
// fence afterwards.
inline void store_part(float* x, Vec v, int64_t n, [[maybe_unused]] bool stream) {
  if (n >= kWidth) {
#if defined(__AVX512F__)
    if (stream && reinterpret_cast<uintptr_t>(x) % sizeof(Vec) == 0) {
      _mm512_stream_ps(x, reinterpret_cast<__m512>(v));
      return;
    }
#elif defined(__AVX2__)
    if (stream && reinterpret_cast<uintptr_t>(x) % sizeof(Vec) == 0) {
      _mm256_stream_ps(x, reinterpret_cast<__m256>(v));
      return;
    }
#endif
    *reinterpret_cast<UnalignedVec*>(x) = v;
    return;
  }
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(x, static_cast<__mmask16>(0xffffu >> (kWidth - n)), reinterpret_cast<__m512>(v));
#elif defined(__AVX2__)
  // A masked store takes tens of cycles on AMD processors.
  if (n <= 0) return;
  __m128 rest = _mm256_castps256_ps128((__m256)v);
  if ((n & 4) != 0) {
    _mm_storeu_ps(x, rest);
    rest = _mm256_extractf128_ps((__m256)v, 1);
    x += 4;
  }
  if ((n & 2) != 0) {
    _mm_storel_pi(reinterpret_cast<__m64*>(x), rest);
    rest = _mm_movehl_ps(rest, rest);
    x += 2;
  }
  if ((n & 1) != 0) _mm_store_ss(x, rest);
#else
  for (int64_t i = 0; i < n; ++i) x[i] = v[i];
#endif
}

inline void store_part(half* x, Vec v, int64_t n, bool) {
  if (n >= kWidth) return store(x, v);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<half>(v[i]);
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
