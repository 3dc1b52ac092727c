// Loads the patches of a channels-last convolution as a GEMM operand. A tap must read consecutive pixels of X
// for consecutive pixels of Y. The pixels of X that a tile needs are copied to LDS once for each block of
// channels, not once for each tap.
#pragma once

#include "device/platform.h"
#include "gemm/loaders/halo_args.h"
#include "gemm/pipelines/aligned.h"

namespace graphopt::hip {

// Calls copy_to_lds if `condition` is true. On CUDA the copy is predicated, because a branch would separate the
// multiplications before and after it.
DEVICE void copy_to_lds_if(bool condition, half_t* to, const half_t* from, bool inside) {
#if defined(__CUDACC__)
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("{.reg .pred is; setp.ne.b32 is, %3, 0; @is cp.async.cg.shared.global [%0], [%1], 16, %2;}"
               :
               : "r"(address), "l"(from), "r"(inside ? 16 : 0), "r"(static_cast<int>(condition))
               : "memory");
#else
  if (condition) copy_to_lds(to, from, inside);
#endif
}

// The GEMM of a tile. Its left operand is read from LDS, which has a row for each pixel of X; each tap starts
// at a different row.
template <class Base>
struct HaloTileGemm : Base {
  static constexpr int kM = Base::kM, kRow = Base::kRow, kTilesM = Base::kTilesM;
  struct Lds {
    alignas(16) half_t b[Base::kBuffers][Base::kN][kRow];
    uint32_t inside[kM];
  };

  const ConvHaloArgs& args;
  const half_t* pixels;  // in LDS: rows of zeros, then the rows of two blocks of channels
  // In LDS, a mask for each line (a pixel of Y): bit t is set if tap t is inside X. The masks of this
  // work-item are also in registers if there are enough registers.
  const uint32_t* inside;
  static constexpr bool kTapsInRegisters = kTilesM * Base::kTilesN <= 12;
  uint32_t taps_in_registers[kTapsInRegisters ? kTilesM : 1];
  int at[kTilesM] = {};  // the row that each line reads at this tap, as an offset in elements
  // Of the next step: the tap, its column, the distance of its rows from those of tap 0, and the first row of the
  // block.
  int tap, column, shift, block = 0;

  DEVICE HaloTileGemm(const ConvHaloArgs& of, const half_t* rows, uint32_t* lines, int first_m, int first_tap)
      : args(of), pixels(rows), inside(lines), tap(first_tap) {
    const auto r = static_cast<int>(divide(static_cast<uint32_t>(tap), args.kernel_w));
    column = tap - r * static_cast<int>(args.kernel_w.d);
    shift = r * args.W + column;
    for (int m = thread_x(); m < kM; m += Base::kThreads) lines[m] = taps_inside(first_m + m);
    if constexpr (kTapsInRegisters) {
      barrier();
      UNROLL for (int i = 0; i < kTilesM; ++i) taps_in_registers[i] = inside[line(i)];
    }
  }

  DEVICE uint32_t taps_of(int i) const {
    if constexpr (kTapsInRegisters) return taps_in_registers[i];
    return inside[line(i)];
  }

  // Returns the line that this work-item loads: on all targets, line lane_id() % 16 of tile m of the left operand.
  DEVICE static int line(int m) { return Base::wave_m() + m * 16 + lane_id() % 16; }

  // Returns the mask of the taps of pixel m of Y that are inside X.
  DEVICE uint32_t taps_inside(int m) const {
    const auto pixel = static_cast<uint32_t>(min_int(m, args.M - 1));
    const uint32_t in_image = pixel - divide(pixel, args.per_image) * args.per_image.d;
    const uint32_t down = divide(in_image, args.columns);
    const int y = static_cast<int>(down) - args.top;
    const int x = static_cast<int>(in_image - down * args.columns.d) - args.left;
    uint32_t bits = 0;
    int bit = 0;
    NO_UNROLL for (int r = 0; r < args.kernel_h; ++r) {
      const bool has_row = m < args.M && static_cast<uint32_t>(y + r) < static_cast<uint32_t>(args.H);
      NO_UNROLL for (int s = 0; s < static_cast<int>(args.kernel_w.d); ++s) {
        const bool is = has_row && static_cast<uint32_t>(x + s) < static_cast<uint32_t>(args.W);
        bits |= static_cast<uint32_t>(is) << bit++;
      }
    }
    return bits;
  }

  // Sets `at` for the tap of this step and advances to the next tap.
  DEVICE void next_tap() {
    UNROLL for (int i = 0; i < kTilesM; ++i) {
      const int row = kHaloZeros + block + shift + line(i);
      at[i] = ((taps_of(i) >> tap & 1) != 0 ? row : row & (kHaloZeros - 1)) * kRow;
    }
    ++tap;
    ++column;
    ++shift;
    if (column == static_cast<int>(args.kernel_w.d)) {
      column = 0;
      shift += args.W - static_cast<int>(args.kernel_w.d);
    }
    if (tap == static_cast<int>(args.taps.d)) {
      tap = column = shift = 0;
      block = args.rows - block;
    }
  }

  DEVICE void load(const Lds& lds, int buffer, int k, typename Base::Operands& to) {
    if (k == 0) next_tap();
    const int from = Base::split() * Base::kSplitDepth + k;
    Base::load_right(lds, buffer, from, to.right);
    UNROLL for (int m = 0; m < kTilesM; ++m) {
      to.left[m] =
          Base::Instruction::load_left([&](int, int across) { return &pixels[at[m] + from + across]; });
    }
  }
};

// The copies of a work-item to LDS: the filters of each step and, during the steps of one block of channels,
// the pixels of the next block.
template <class P>
struct HaloCopies {
  static constexpr int kDepth = P::kDepth, kAcross = kDepth / 8, kRows = P::kThreads / kAcross;
  static constexpr int kPacks = P::kN / kRows, kParts = P::Gemm::kSplitDepth / 16, kRow = P::Gemm::kRow;
  // Filters are copied kStepsInFlight steps before they are used. While the filters of the first kStepsInFlight steps
  // of block b are copied, the multiplications therefore still read the pixels of block b - 1. Block b + 1 overwrites
  // these pixels, so its copies begin after those steps (begin_step).
  static constexpr int kStepsInFlight = P::kBuffers - 1;
  static constexpr int kChunks = halo_chunks(P::kThreads, kParts), kDistance = kParts / kChunks;
  static_assert(kPacks * kRows == P::kN && kDistance * kChunks == kParts, "whole packs for every work-item");

  const ConvHaloArgs& args;
  typename P::Lds& lds;
  half_t* pixels;
  const half_t *w, *x;                // point to the filters of this step and to the pixels of block `next`
  ptrdiff_t from_filter, from_chunk;  // from one pack of filters, or chunk of pixels, to the next
  int row, column, first;             // first: the first pixel of X that the tile needs
  int tap, block;                     // tap and block of channels of the step
  int remaining_steps;
  int next, last;   // blocks: the next one to copy, and the last one of this split
  int to = 0;       // first row of block `next` in LDS
  int filters = 0;  // a bit for each pack inside W
  bool has_k;       // whether the step exists and contains channels for this work-item
  // The next chunk of pixels: its row in the block (kNoChunk if there is none), source and destination.
  static constexpr int kNoChunk = 1 << 24;
  int chunk = kNoChunk;
  const half_t* chunk_from;
  half_t* chunk_to;

  // `step` is the first of the `steps` steps of this split.
  DEVICE HaloCopies(const ConvHaloArgs& of, typename P::Lds& operands, half_t* rows, int first_m, int first_n,
                    int step, int steps)
      : args(of),
        lds(operands),
        pixels(rows),
        from_chunk(static_cast<ptrdiff_t>(kRows) * of.C),
        row(thread_x() / kAcross),
        column(thread_x() % kAcross * 8),
        first(first_m - args.top * args.W - args.left),
        remaining_steps(steps) {
    const auto taps = static_cast<int>(args.taps.d);
    block = static_cast<int>(divide(static_cast<uint32_t>(step), args.taps));
    tap = step - block * taps;
    next = block;
    last = static_cast<int>(divide(static_cast<uint32_t>(step + steps - 1), args.taps));
    const int K = taps * args.C;
    from_filter = static_cast<ptrdiff_t>(kRows) * K;
    const half_t *of_w = args.w, *of_x = args.x;
    w = of_w + static_cast<ptrdiff_t>(first_n + row) * K + (tap * args.C + block * kDepth + column);
    x = of_x + static_cast<ptrdiff_t>(first + row) * args.C + (block * kDepth + column);
    chunk_from = x;
    chunk_to = pixels;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      filters |= static_cast<int>(first_n + row + i * kRows < args.N) << i;
    }
    filters = opaque(filters);
    for (int r = thread_x(); r < kHaloZeros * kRow; r += P::kThreads) pixels[r] = from_float<half_t>(0.0f);
    copy_next_block();
    // If a split begins after the first tap of a block, the remaining steps of this block may be too few to
    // copy the next one.
    if (tap != 0 && next <= last) copy_next_block();
    begin_step();
  }

  DEVICE void copy_next_block() {
    begin_next_block();
    NO_UNROLL while (chunk - row < args.rows) copy_chunk();
    end_next_block();
  }
  DEVICE void begin_next_block() {
    chunk = row;
    chunk_from = x;
    chunk_to = pixels + ((kHaloZeros + to + row) * kRow + column);
  }
  DEVICE void end_next_block() {
    chunk = kNoChunk;
    ++next;
    x += kDepth;
    to = args.rows - to;
  }
  DEVICE void copy_chunk() {
    const bool inside = static_cast<uint32_t>(first + chunk) < static_cast<uint32_t>(args.M) &&
                        next * kDepth + column < args.C;
    copy_to_lds_if(chunk < args.rows, chunk_to, chunk_from, inside);
    chunk += kRows;
    chunk_from += from_chunk;
    chunk_to += kRows * kRow;
  }

  // The next block is copied as soon as no step reads the rows that it overwrites.
  DEVICE void begin_step() {
    has_k = remaining_steps > 0 && block * kDepth + column < args.C;
    if (tap == kStepsInFlight && next == block + 1 && next <= last) begin_next_block();
  }

  DEVICE void begin(int buffer, int part) {
    UNROLL for (int i = 0; i < kPacks; ++i) {
      if (!in_part(i, kPacks, part, kParts, kChunks)) continue;
      copy_to_lds_if((filters >> i & 1) != 0, &lds.b[buffer][i * kRows + row][column], w + i * from_filter,
                     has_k);
    }
    if (part % kDistance == 0) copy_chunk();
    if (!is_last_part(part, kParts)) return;
    --remaining_steps;
    ++tap;
    w += args.C;
    if (tap == static_cast<int>(args.taps.d)) {
      tap = 0;
      w += kDepth - static_cast<int>(args.taps.d) * args.C;
      ++block;
      if (next == block) end_next_block();
    }
    begin_step();
  }
};

template <class P_>
struct HaloGemm : P_ {
  static_assert(P_::kAsyncCopies, "requires asynchronous copies");
  using Gemm = HaloTileGemm<typename P_::Gemm>;
  using Lds = typename Gemm::Lds;
};

}  // namespace graphopt::hip
