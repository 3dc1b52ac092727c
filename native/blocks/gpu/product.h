// What matrix products of a work-group have in common, whatever multiplies (sgemm.h, hgemm.h): their steps,
// the way of an operand from memory to LDS, and that of the sums to memory. A line is a row of the left
// operand or a column of the right one; a step is kDepth consecutive k of all lines.
#pragma once

#include "blocks/gpu/product_args.h"
#include "device/platform.h"

namespace graphopt::hip {

// The steps of a product, one being loaded while another is multiplied: begin(k, buffer) starts to load the
// step from k on, finish(buffer) has brought it to that buffer in LDS, multiply(buffer) adds it.
template <int kDepth, class Begin, class Finish, class Multiply>
DEVICE void product_steps(int depth, const Begin& begin, const Finish& finish, const Multiply& multiply) {
  begin(0, 0);
  finish(0);
  barrier();
  int buffer = 0;
  for (int k = kDepth; k < depth; k += kDepth) {
    begin(k, buffer ^ 1);
    multiply(buffer);
    buffer ^= 1;
    finish(buffer);
    barrier();
  }
  multiply(buffer);
}

// The same with copies beside the work-items: kBuffers - 1 steps are on their way while one is multiplied.
// begin(buffer, part) starts one of kTeamDepth / 16 parts of the next step's copies, which lie between the products, so that
// they cost no time of their own. Steps beyond the last one are begun, too, of which operands copy zeros: a branch would
// keep the compiler from mixing copies and products. Operands are on their way from LDS while those of 16 k before are
// multiplied, also from one step to the next: a buffer is free as soon as all waves have its last operands.
template <class Product, class Begin>
DEVICE void product_steps_ahead(Product& product, typename Product::Lds& lds, int depth, const Begin& begin) {
  constexpr int kDepth = Product::kDepth, kBuffers = Product::kBuffers, kParts = Product::kTeamDepth / 16;
  static_assert(kParts % 2 == 0, "a step begins with the first of two operands");
  UNROLL for (int ahead = 0; ahead < kBuffers - 1; ++ahead) {
    if (ahead * kDepth < depth) {
      UNROLL for (int part = 0; part < kParts; ++part) begin(ahead, part);
    }
    end_group_of_copies();
  }
  typename Product::Operands operands[2];
  wait_for_copies_but<kBuffers - 2>();
  barrier();
  int buffer = 0, next = kBuffers - 1;  // multiplied, and copied to
  begin(next, 0);
  product.load(lds, buffer, 0, operands[0]);
  NO_UNROLL for (int k = 0; k < depth; k += kDepth) {
    UNROLL for (int part = 0; part < kParts; ++part) {
      keep_order();
      if (part < kParts - 1) {
        product.load(lds, buffer, part * 16 + 16, operands[(part + 1) % 2]);
        begin(next, part + 1);
      } else {
        end_group_of_copies();
        wait_for_copies_but<kBuffers - 2>();
        barrier();  // all have the step after this one, and no one reads this one any more
        next = buffer;
        buffer = buffer + 1 == kBuffers ? 0 : buffer + 1;
        product.load(lds, buffer, 0, operands[0]);
        begin(next, 0);
      }
      product.multiply(operands[part % 2]);
    }
  }
  wait_for_copies();  // of steps beyond the last one: what follows may use the same LDS
}

// A work-item's share of a step. kByLine: LDS has a row for each line, else for each k.
template <class T, int kLines, int kDepth, int kThreads, bool kByLine>
class OperandPart {
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kPacks = kLines * kDepth / kSize / kThreads;
  static_assert(kPacks * kSize * kThreads == kLines * kDepth && (!kByLine || kPacks % 2 == 0),
                "whole packs for every work-item");

 public:
  // `p` is the first of the work-group's lines, of which there are `lines`; k beyond K are zeros.
  DEVICE OperandPart(const T* p, const OperandLayout& layout, int lines, int K)
      : p_(p), layout_(layout), lines_(lines), K_(K), along_k_(layout.k == 1 || layout.packs == 0) {}

  DEVICE void load(int first_k) {
    if (layout_.packs == 0) {
      const int me = opaque(thread_x());  // or the addresses of all elements stay in registers
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Place at = place_along_k(i, me);
        Pack<T> pack;
        UNROLL for (int j = 0; j < kSize; ++j) {
          const int k = first_k + at.k + j;
          pack.v[j] = at.line < lines_ && k < K_ ? *address(at.line, k) : from_float<T>(0.0f);
        }
        staged_[i] = bit_cast<Bits128>(pack);
      }
    } else if (along_k_) {
      UNROLL for (int i = 0; i < kPacks; ++i) staged_[i] = load_at(place_along_k(i), first_k);
    } else {
      UNROLL for (int i = 0; i < kPacks; ++i) staged_[i] = load_at(place_along_lines(i), first_k);
    }
  }

  // What load() loaded, to the rows of LDS.
  template <class Row>
  DEVICE void store(Row* to) const {
    if constexpr (kByLine) {
      store_lines(to);
    } else {
      store_k(to);
    }
  }

 private:
  // Into rows of lines, which hold T as it is.
  template <class Row>
  DEVICE void store_lines(Row* to) const {
    if (along_k_) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Place at = place_along_k(i);
        store_pack(&to[at.line][at.k], pack(i));
      }
    } else {
      struct alignas(2 * sizeof(T)) Two {
        T v[2];
      };
      UNROLL for (int i = 0; i < kPacks; i += 2) {
        const Place at = place_along_lines(i);
        const Pack<T> first = pack(i), second = pack(i + 1);
        UNROLL for (int j = 0; j < kSize; ++j) {
          *reinterpret_cast<Two*>(&to[at.line + j][at.k]) = {{first.v[j], second.v[j]}};
        }
      }
    }
  }

  // Into rows of k, which hold float32.
  template <class Row>
  DEVICE void store_k(Row* to) const {
    if (along_k_) {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Place at = place_along_k(i);
        const Pack<T> x = pack(i);
        UNROLL for (int j = 0; j < kSize; ++j) to[at.k + j][at.line] = to_float(x.v[j]);
      }
    } else {
      UNROLL for (int i = 0; i < kPacks; ++i) {
        const Place at = place_along_lines(i);
        const Pack<T> x = pack(i);
        UNROLL for (int j = 0; j < kSize; j += 4) {
          const Pack<float> four = {
              {to_float(x.v[j]), to_float(x.v[j + 1]), to_float(x.v[j + 2]), to_float(x.v[j + 3])}};
          store_pack(&to[at.k][at.line + j], four);
        }
      }
    }
  }

  struct Place {
    int line, k;
  };
  // Where pack i of this work-item lies in the step.
  DEVICE static Place place_along_k(int i, int me = thread_x()) {
    const int at = i * kThreads + me;
    return {at / (kDepth / kSize), at % (kDepth / kSize) * kSize};
  }
  // Rows of lines take two k at a time, which two packs in a row hold.
  DEVICE static Place place_along_lines(int i) {
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
  DEVICE Bits128 load_at(const Place& at, int first_k) const {
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
  Bits128 staged_[kPacks];  // packs, as the compiler keeps in registers
};

// The sums of a product as packs of kSize neighbours in a row: what a lane holds is rarely that, and the code
// that follows would be repeated for each of its sums. They go through LDS in kChunks parts of kRows rows:
// store(which, lds) brings those of the part whose bit is set to lds[kRows][kRowOfSums<kColumns>],
// row_of(chunk, row) is the row of the product, visit(m, n, values) takes a pack.
template <int kColumns>
constexpr int kRowOfSums = kColumns + 4;  // rows in different banks

template <int kChunks, int kRows, int kColumns, int kSize, int kThreads, class Store, class RowOf,
          class Visit>
DEVICE void sums_in_packs(float* lds, const Store& store, const RowOf& row_of, const Visit& visit) {
  constexpr int kAcross = kColumns / kSize;
  // A bit: of `chunk == i` compilers would make an index into the sums, which would then lie in memory.
  uint32_t which = 1;
  NO_UNROLL for (int chunk = 0; chunk < kChunks; ++chunk) {
    barrier();
    store(which, lds);
    which *= 2;
    barrier();
    NO_UNROLL for (int at = thread_x(); at < kRows * kAcross; at += kThreads) {
      const int row = at / kAcross, n = at % kAcross * kSize;
      float values[kSize];
      UNROLL for (int j = 0; j < kSize; j += 4) {
        const Pack<float> four = load_pack(lds + row * kRowOfSums<kColumns> + n + j);
        UNROLL for (int e = 0; e < 4; ++e) values[j + e] = four.v[e];
      }
      visit(row_of(chunk, row), n, values);
    }
  }
}

}  // namespace graphopt::hip
