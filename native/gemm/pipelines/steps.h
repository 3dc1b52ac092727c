// The loops over K that all pipelines (vector.h, matrix.h) share, and the exchange of the sums through LDS
// before they are stored. A line is a row of the left operand or a column of the right one; a step covers
// kDepth consecutive indices k of all lines.
#pragma once

#include "device/platform.h"

namespace graphopt::hip {

// Runs the steps of a GEMM: one step is loaded while another is multiplied. begin(k, buffer) starts to load the step
// that begins at index k. finish(buffer) completes the load into that buffer in LDS. multiply(buffer) adds the products
// of the step to the sums. With one buffer, each step needs a second barrier, but the smaller LDS allows more
// work-groups, which multiply while this one waits.
template <int kDepth, int kBuffers, class Begin, class Finish, class Multiply>
DEVICE void run_steps(int depth, const Begin& begin, const Finish& finish, const Multiply& multiply) {
  static_assert(kBuffers == 1 || kBuffers == 2, "one or two buffers");
  constexpr int kOther = kBuffers - 1;
  begin(0, 0);
  finish(0);
  lds_barrier();
  int buffer = 0;
  for (int k = kDepth; k < depth; k += kDepth) {
    begin(k, buffer ^ kOther);
    multiply(buffer);
    buffer ^= kOther;
    if constexpr (kBuffers == 1) {
      keep_order();
      lds_barrier();  // all waves have read the current step
    }
    finish(buffer);
    lds_barrier();
  }
  multiply(buffer);
}

// Runs the steps of a GEMM with asynchronous copies to LDS: kBuffers - 1 steps are in flight while one is
// multiplied. begin(buffer, part) starts one of the kSplitDepth / 16 parts of the copies of the next step.
// The parts are placed between the multiplications, where they take no extra time. Copies of steps beyond the
// last one are started as well and write zeros, because a branch would prevent the compiler from interleaving
// copies and multiplications. Operands are loaded from LDS while those of the previous 16 indices k are
// multiplied, also across steps. A buffer is therefore free as soon as all waves have read its last operands.
template <class Gemm, class Begin>
DEVICE void run_steps_ahead(Gemm& gemm, typename Gemm::Lds& lds, int depth, const Begin& begin) {
  constexpr int kDepth = Gemm::kDepth, kBuffers = Gemm::kBuffers, kParts = Gemm::kSplitDepth / 16;
  static_assert(kParts % 2 == 0, "an even number of parts");
  UNROLL for (int ahead = 0; ahead < kBuffers - 1; ++ahead) {
    if (ahead * kDepth < depth) {
      UNROLL for (int part = 0; part < kParts; ++part) begin(ahead, part);
    }
    end_group_of_copies();
  }
  typename Gemm::Operands operands[2];
  wait_for_copies_except<kBuffers - 2>();
  lds_barrier();
  int buffer = 0, next = kBuffers - 1;  // buffers of the multiplied and of the copied step
  begin(next, 0);
  gemm.load(lds, buffer, 0, operands[0]);
  NO_UNROLL for (int k = 0; k < depth; k += kDepth) {
    UNROLL for (int part = 0; part < kParts; ++part) {
      keep_order();
      if (part < kParts - 1) {
        gemm.load(lds, buffer, part * 16 + 16, operands[(part + 1) % 2]);
        begin(next, part + 1);
      } else {
        end_group_of_copies();
        wait_for_copies_except<kBuffers - 2>();
        lds_barrier();  // the next step is complete, and all waves have read the current one
        next = buffer;
        buffer = buffer + 1 == kBuffers ? 0 : buffer + 1;
        gemm.load(lds, buffer, 0, operands[0]);
        begin(next, 0);
      }
      gemm.multiply(operands[part % 2]);
    }
  }
  wait_for_copies();  // copies of steps beyond the last one: the following code may use the same LDS
}

// Number of elements of a row of sums in LDS. Rows are padded and therefore begin in different banks.
template <int kColumns>
constexpr int kRowOfSums = kColumns + 4;

// Calls visit(m, n, values) for all sums, in packs of kSize consecutive columns. Many work-items hold sums of fewer
// consecutive columns, and the unrolled code of `visit` would be repeated for each of their sums. The sums are
// therefore exchanged through LDS, in kChunks chunks of kRows rows. store(which, lds) stores the chunk selected by a
// bit of `which` to lds[kRows][kRowOfSums<kColumns>]. row_of(chunk, row) returns the row of C for a row of a chunk.
template <int kChunks, int kRows, int kColumns, int kSize, int kThreads, class Store, class RowOf,
          class Visit>
DEVICE void exchange_sums(float* lds, const Store& store, const RowOf& row_of, const Visit& visit) {
  constexpr int kAcross = kColumns / kSize;
  // A bit mask, because compilers turn `chunk == i` into an index into the array of sums, which moves the
  // sums from registers to memory.
  uint32_t which = 1;
  NO_UNROLL for (int chunk = 0; chunk < kChunks; ++chunk) {
    lds_barrier();
    store(which, lds);
    which *= 2;
    lds_barrier();
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
