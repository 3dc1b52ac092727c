// Loads operands of any layout through registers to LDS.
#pragma once

#include "device/platform.h"
#include "gemm/args.h"

namespace graphopt::hip {

// The part of an operand that a work-item copies in one step. kByLine: LDS has a row for each line
// (gemm/args.h); otherwise it has a row for each index k.
template <class T, int kLines, int kDepth, int kThreads, bool kByLine>
class OperandPart {
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kPacks = kLines * kDepth / kSize / kThreads;
  static_assert(kPacks * kSize * kThreads == kLines * kDepth && (!kByLine || kPacks % 2 == 0),
                "whole packs for every work-item");

 public:
  // `p` points to the first of the `lines` lines of the work-group. Elements beyond the last line or beyond K
  // are zeros.
  DEVICE OperandPart(const T* p, const OperandLayout& layout, int lines, int K)
      : p_(p), layout_(layout), lines_(lines), K_(K), along_k_(layout.k == 1 || layout.is_aligned == 0) {}

  DEVICE void load(int first_k) {
    if (layout_.is_aligned == 0) {
      const int me = opaque(thread_x());  // otherwise the addresses of all elements are kept in registers
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Position at = position_along_k(i, me);
        Pack<T> pack;
        UNROLL for (int j = 0; j < kSize; ++j) {
          const int k = first_k + at.k + j;
          pack.v[j] = at.line < lines_ && k < K_ ? *address(at.line, k) : from_float<T>(0.0f);
        }
        staged_[i] = bit_cast<Bits128>(pack);
      }
    } else if (along_k_) {
      UNROLL for (int i = 0; i < kPacks; ++i) staged_[i] = load_at(position_along_k(i), first_k);
    } else {
      UNROLL for (int i = 0; i < kPacks; ++i) staged_[i] = load_at(position_along_lines(i), first_k);
    }
  }

  // Stores the result of load() in the rows of LDS.
  template <class Row>
  DEVICE void store(Row* to) const {
    if constexpr (kByLine) {
      store_lines(to);
    } else {
      store_k(to);
    }
  }

 private:
  // Stores to LDS with a row of type T for each line.
  template <class Row>
  DEVICE void store_lines(Row* to) const {
    if (along_k_) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Position at = position_along_k(i);
        store_pack(&to[at.line][at.k], pack(i));
      }
    } else {
      struct alignas(2 * sizeof(T)) Two {
        T v[2];
      };
      UNROLL for (int i = 0; i < kPacks; i += 2) {
        const Position at = position_along_lines(i);
        const Pack<T> first = pack(i), second = pack(i + 1);
        UNROLL for (int j = 0; j < kSize; ++j) {
          *reinterpret_cast<Two*>(&to[at.line + j][at.k]) = {{first.v[j], second.v[j]}};
        }
      }
    }
  }

  // Stores to LDS with a row of float32 elements for each index k.
  template <class Row>
  DEVICE void store_k(Row* to) const {
    if (along_k_) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Position at = position_along_k(i);
        const Pack<T> x = pack(i);
        UNROLL for (int j = 0; j < kSize; ++j) to[at.k + j][at.line] = to_float(x.v[j]);
      }
    } else {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Position at = position_along_lines(i);
        const Pack<T> x = pack(i);
        UNROLL for (int j = 0; j < kSize; j += 4) {
          const Pack<float> four = {
              {to_float(x.v[j]), to_float(x.v[j + 1]), to_float(x.v[j + 2]), to_float(x.v[j + 3])}};
          store_pack(&to[at.k][at.line + j], four);
        }
      }
    }
  }

  struct Position {
    int line, k;
  };
  // Returns the position of pack i of this work-item in the step.
  DEVICE static Position position_along_k(int i, int me = thread_x()) {
    const int at = i * kThreads + me;
    return {at / (kDepth / kSize), at % (kDepth / kSize) * kSize};
  }
  // If LDS has a row for each line, packs 0 and 1, 2 and 3, ... have consecutive indices k, because store_lines writes
  // two elements of a line at a time.
  DEVICE static Position position_along_lines(int i) {
    if constexpr (kByLine) {
      const int at = i / 2 * kThreads + thread_x();
      return {at / (kDepth / 2) * kSize, at % (kDepth / 2) * 2 + i % 2};
    }
    const int at = i * kThreads + thread_x();
    return {at % (kLines / kSize) * kSize, at / (kLines / kSize)};
  }
  DEVICE const T* address(int line, int k) const {
    return p_ + static_cast<ptrdiff_t>(line) * layout_.line + static_cast<ptrdiff_t>(k) * layout_.k;
  }
  DEVICE Bits128 load_at(const Position& at, int first_k) const {
    Bits128 bits = {};
    if (at.line < lines_ && first_k + at.k < K_) {
      bits = *reinterpret_cast<const Bits128*>(address(at.line, first_k + at.k));
    }
    return bits;
  }
  DEVICE Pack<T> pack(int i) const { return bit_cast<Pack<T>>(staged_[i]); }

  const T* p_;
  OperandLayout layout_;
  int lines_, K_;
  bool along_k_;
  Bits128 staged_[kPacks];  // as Bits128, which the compiler keeps in registers
};

}  // namespace graphopt::hip
