// The shape of FusedAttention's work-groups on each architecture, shared by the kernel (kernel.hip) and its launch plan
// (plan.cpp).
#pragma once

#include "device/traits.h"

namespace graphopt::hip {

// A work-group: `waves` waves of `rows` query rows each, and blocks of `keys` keys, for heads of up to `head` elements.
//
// Matrix units: a wave holds 16-row tiles of the scores and of the output in registers, and of the queries unless they
// are in LDS. There are `wave_groups` wave groups of `waves` waves each. Every group has all rows, and the groups
// alternate over the blocks of keys. Vector unit: the work-items of a wave form a grid of wave / 8 x 8. Each has rows /
// (wave / 8) rows, and in each row keys / 8 scores and head / 8 outputs.
struct AttentionShape {
  int head, waves, rows, keys;
  bool queries_in_lds;
  int sharing;  // work-groups that should fit on a compute unit of an NVIDIA GPU or of CDNA at the same time
  int parts = 1;  // vector unit: number of parts in which p of a block passes through LDS, one after another
  int wave_groups = 1;

  constexpr int block_rows() const { return waves * rows; }
  constexpr int all_waves() const { return wave_groups * waves; }

  // Returns the elements of LDS that K and V of a block take, with padding. element: bytes of T.
  constexpr int keys_and_values(bool loads_rows, int element) const {
    const int pad = 16 / element, k = keys * (head + pad);
    return k + (loads_rows ? k : head * (keys + pad));
  }
  // Returns the number of parts of the rows. Q and the output pass through the LDS of K and V one part at a time.
  constexpr int row_parts(bool loads_rows, bool ahead, int element) const {
    const int q = block_rows() * (head + 16 / element);
    return !ahead && !queries_in_lds && q > keys_and_values(loads_rows, element) ? 2 : 1;
  }

  static constexpr int kExtraBytes = 128;  // bytes of LDS that AttentionExtras takes

  // Returns the bytes of LDS of a work-group; the kernel checks that they match its buffers. loads_rows: V has the same
  // layout in LDS as in memory (instruction.h). ahead: K and V are double-buffered for each wave group, and Q is stored
  // separately.
  constexpr int lds_bytes(bool matrix, bool loads_rows, bool ahead, int element) const {
    if (!matrix)
      return (head * (block_rows() + 2 * keys + 1) + block_rows() * (keys / parts + 1)) * 4 + kExtraBytes;
    const int q = block_rows() / row_parts(loads_rows, ahead, element) * (head + 16 / element);
    const int kv = keys_and_values(loads_rows, element);
    const int all = ahead ? q + 2 * wave_groups * kv : queries_in_lds ? q + kv : q > kv ? q : kv;
    return all * element + (block_rows() + head) * 4 + kExtraBytes;
  }
};

constexpr int kAttentionHeads[] = {64, 128, 256};

// Variants of a work-group. kMany: more rows, which multiply faster. kFew: fewer rows, which make more work-groups.
// kPingPong: two wave groups in a work-group; one multiplies while the other computes exponentials. kPairs: the fewest
// rows, for causal problems with two work-groups on each compute unit, one with many keys and one with few.
enum class AttentionRows { kFew, kMany, kPingPong, kPairs };

// Whether kMany exists. In kMany, a work-item of the vector unit, or a wave of NVIDIA's matrix units, has twice as many
// rows. It uses an operand from LDS in twice as many multiplications. copies: memory can be copied to LDS directly
// (kCopiesToLds). element: bytes of T. On the vector unit, only float32 has kMany. In waves of 64 with 256 registers
// (kGcn), heads of 128 elements would need scratch memory.
constexpr bool attention_has_many(bool matrix, int wave, bool copies, int head, bool plain, int element) {
  return matrix ? copies && plain && head == 64 : element == 4 && head <= (wave == 64 ? 64 : 128);
}

// Whether kPingPong exists. It needs direct copies to LDS, because each wave group double-buffers K and V in LDS.
constexpr bool attention_has_ping_pong(bool matrix, bool copies, int head, bool plain, int element) {
  return matrix && copies && plain && head <= 128 && element == 2;
}

// Whether kPairs exists.
constexpr bool attention_has_pairs(bool matrix, bool copies, int head, bool plain, int element) {
  return attention_has_ping_pong(matrix, copies, head, plain, element) && head == 128;
}

// lds_bytes: maximum LDS of a work-group on the target. element: bytes of T. plain: scores are scale Q K^T with
// scale > 0. Bias, mask, window and softcap need registers, so other kernels may have fewer rows.
constexpr AttentionShape attention_shape(bool matrix, int wave, int lds_bytes, int head, int element,
                                         bool plain, AttentionRows rows) {
  if (matrix) {
    if (wave == 64) {  // 512 registers for each work-item
      if (head == 64 && element == 2) return {head, 4, plain ? 32 : 16, 64, false, plain ? 3 : 2};
      if (head == 128 && element == 2) return {head, 4, plain ? 32 : 16, 32, false, 2};
      if (head == 64) return {head, 4, plain ? 32 : 16, 64, false, 1};
      if (head == 128) return {head, 4, 16, 32, false, 1};
      if (element == 2) return {head, 4, 16, 32, false, 1};
      return {head, 2, 16, 16, false, 1};
    }
    if (head == 64 && rows == AttentionRows::kPingPong) return {head, 4, 32, 64, false, 1, 1, 2};
    if (head == 64 && rows == AttentionRows::kMany) return {head, 4, 32, 64, false, 2};
    if (head == 64) return {head, 4, 16, 64, false, plain ? 4 : 3};
    if (head == 128 && rows == AttentionRows::kPingPong) return {head, 4, 32, 64, true, 1, 1, 2};
    if (head == 128 && rows == AttentionRows::kPairs) return {head, 4, 16, 64, true, 2};
    if (head == 128 && lds_bytes > kAmdLdsBytes) return {head, 4, plain ? 32 : 16, 64, plain, 2};
    if (head == 128) return {head, 4, 16, 32, false, 1};
    return {head, 4, 16, 16, true, 2};
  }
  const int groups = wave / 8;
  const bool many = rows == AttentionRows::kMany;
  if (lds_bytes > kAmdLdsBytes) {
    if (head == 64)
      return many ? AttentionShape{head, 4, groups * 8, 64, true, 2, 2}
                  : AttentionShape{head, 4, groups * 4, 64, true, 3};
    if (head == 128)
      return many ? AttentionShape{head, 8, groups * 8, 32, true, 1}
                  : AttentionShape{head, 8, groups * 4, 64, true, 1};
    return {head, 4, groups * 4, 16, true, 2};
  }
  // A wave of 64 work-items has as many rows as two waves of 32.
  const int waves = wave == 64 ? 1 : 2;
  if (head == 64) return {head, waves, groups * (many ? 8 : 4), 32, true, 1};
  if (head == 128) return {head, waves, groups * (many ? 8 : 4), 16, true, 1};
  return {head, waves, groups * 4, 8, true, 1};
}

}  // namespace graphopt::hip
