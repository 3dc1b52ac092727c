// GEMMs and convolutions of int8 elements on NVIDIA's warpgroups (gemm/pipelines/wgmma.h).
//
// A work-group computes several tiles, and their steps form one sequence. While a step is multiplied or a tile is
// stored, the operands of the next steps and the residual of the next tile are copied to LDS. A step covers 128 bytes
// of K. Each work-item requantizes its sums in registers and stores 16 adjacent bytes of a row at once. Launch:
// plan.cpp.
#include "device/platform.h"
#include "gemm/integer_epilogue.h"
#include "gemm/kernels.h"
#include "gemm/loaders/dense.h"
#include "gemm/loaders/im2col.h"
#include "gemm/pipelines/wgmma.h"
#include "operators/matmul/integer_matmul/args.h"
#include "operators/matmul/integer_matmul/patches.h"

#if GRAPHOPT_WARPGROUPS

namespace graphopt::hip {

// An order of the right operand's columns: sums of a work-item in a row are kPack adjacent columns of Y.
struct WarpgroupColumns {
  static constexpr int kPack = 2 * kIntegerPack, kLanes = 4, kN = kLanes * kPack;
  // Returns the column of Y for column `at` of the tile.
  DEVICE static constexpr int column(int at) {
    return at / kN * kN + at / 2 % kLanes * kPack + at % kN / 8 * 2 + at % 2;
  }
  // Returns the first column of this work-item.
  DEVICE static int first() { return lane_id() % kLanes * kPack; }
};

// Left: the type of the elements of X. kIsConv: otherwise X is [M, K].
template <GemmTile kTile, class Left, bool kIsConv>
class IntegerWarpgroups {
  static constexpr IntegerWarpgroupTile kShape = row_of(kIntegerWarpgroupTiles, kTile);
  using Instruction = IntegerWarpgroupInstruction<kShape.n, Left>;
  using Rows = Warpgroup::Rows;
  using Columns = WarpgroupColumns;

  // The members that loaders read.
  struct Pipeline {
    static constexpr int kM = kShape.m, kN = kShape.n, kDepth = Warpgroup::kLdsRow,
                         kThreads = kShape.threads();
    static constexpr bool kAsyncCopies = true;
    struct Gemm {
      static constexpr bool kInt8 = true;
      static constexpr int kSplitDepth = kDepth;
    };
  };
  static constexpr int kM = kShape.m, kN = kShape.n, kDepth = Pipeline::kDepth, kThreads = Pipeline::kThreads;
  // The steps that are copied in advance: of the other steps in LDS, one is multiplied, and one may still be read by
  // another warpgroup. So many tiles, and the current one, have residuals in LDS.
  static constexpr int kStages = kShape.stages, kAhead = kStages - 2, kResiduals = kStages - 1;
  static constexpr int kPacks = kN / Columns::kN, kRows = 2;  // of sums of a work-item

  using Dense = DenseRows<true, kM, kDepth, kThreads, 1, 1>;
  using Right = DenseRows<true, kN, kDepth, kThreads, 1, 1, Columns>;
  struct DenseLeft {
    const IntegerWarpgroupArgs& args;
    Dense rows;
    DEVICE DenseLeft(const IntegerWarpgroupArgs& of, const IntegerPatches&, int first_m)
        : args(of), rows(x(of, first_m), of.K, of.M - first_m, of.K) {}
    DEVICE void start(int first_m) { rows = Dense(x(args, first_m), args.K, args.M - first_m, args.K); }
    DEVICE static const half_t* x(const IntegerWarpgroupArgs& args, int first_m) {
      const half_t* const x = args.x;
      return x + static_cast<ptrdiff_t>(first_m) * args.K;
    }
  };
  struct PatchesLeft {
    Im2colRows<Pipeline, IntegerPatches> rows;
    DEVICE PatchesLeft(const IntegerWarpgroupArgs& of, const IntegerPatches& patches, int first_m)
        : rows(patches, first_m, 0, of.K) {}
    DEVICE void start(int first_m) { rows.start(first_m, 0); }
  };

 public:
  struct Lds {
    alignas(1024) Rows a[kStages][kM];
    Rows b[kStages][kN];
    alignas(16) uint8_t residual[kResiduals][kPacks * kRows][kThreads][Columns::kPack];
  };
  // LDS ends with the residuals, which not all problems have.
  static_assert(sizeof(Lds) == kShape.lds_bytes(true), "the size that plans assume");

  DEVICE IntegerWarpgroups(const IntegerWarpgroupArgs& args, const IntegerPatches& patches, Lds& lds)
      : args_(args),
        lds_(lds),
        steps_((args.K + kDepth - 1) / kDepth),
        copied_tile_(block_x()),
        left_(args, patches, first_m(block_x())),
        right_(right(block_x())) {
    swizzle();
  }

  DEVICE void run() {
    const uint8_t* const residual = args_.residual;
    NO_UNROLL for (int i = 0; i < kAhead; ++i) copy();
    int buffer = 0, of_residual = 0;
    NO_UNROLL for (int tile = block_x(); tile < args_.tiles; tile += args_.work_groups) {
      Instruction sums;
      NO_UNROLL for (int step = 0; step < steps_; ++step) {
        wait_for_copies_except<kAhead - 1>();
        Warpgroup::publish();
        barrier();
        Warpgroup::begin();
        UNROLL for (int k = 0; k < kDepth; k += 16) {
          sums.multiply(lds_.a[buffer] + wave_id() / 4 * Warpgroup::kRows, lds_.b[buffer], k);
        }
        Warpgroup::end();
        buffer = next<kStages>(buffer);
        copy();  // to the buffer of the previous step but one
        Warpgroup::template wait_except<1>();
      }
      Warpgroup::template wait_except<0>();
      if (residual == nullptr) {
        store<false>(tile, sums, 0);
      } else {
        store<true>(tile, sums, of_residual);
      }
      of_residual = next<kResiduals>(of_residual);
    }
    wait_for_copies();
  }

 private:
  template <int kCount>
  DEVICE static int next(int i) {
    return i + 1 == kCount ? 0 : i + 1;
  }
  DEVICE int down(int tile) const {
    return static_cast<int>(divide(static_cast<uint32_t>(tile), args_.across));
  }
  DEVICE int first_m(int tile) const { return down(tile) * kM; }
  DEVICE int first_n(int tile) const { return (tile - down(tile) * static_cast<int>(args_.across.d)) * kN; }
  DEVICE Right right(int tile) const {
    const half_t* const w = args_.w;
    const int first = first_n(tile);
    return Right(w + static_cast<ptrdiff_t>(first) * args_.K, args_.K, args_.N - first, args_.K);
  }
  // Sets the positions in LDS of the packs of this work-item, which are equal in all its rows.
  DEVICE void swizzle() {
    left_.rows.column = Warpgroup::swizzled(thread_x() % 8, thread_x() / 8) * 8;
    right_.column = left_.rows.column;
  }

  // Starts to copy the operands of the next step; before the first step of a tile also its residual.
  DEVICE void copy() {
    if (copied_tile_ < args_.tiles) {
      if (copied_step_ == 0) copy_residual();
      left_.rows.begin(lds_.a[copied_buffer_], kAllParts);
      right_.begin(lds_.b[copied_buffer_], kAllParts);
      copied_buffer_ = next<kStages>(copied_buffer_);
      if (++copied_step_ == steps_) {
        copied_step_ = 0;
        copied_tile_ += args_.work_groups;
        if (copied_tile_ < args_.tiles) {
          left_.start(first_m(copied_tile_));
          right_ = right(copied_tile_);
          swizzle();
        }
      }
    }
    end_group_of_copies();
  }
  // A work-item copies the elements that it adds.
  DEVICE void copy_residual() {
    const uint8_t* const residual = args_.residual;
    if (residual == nullptr) return;
    UNROLL for (int p = 0; p < kPacks; ++p) {
      UNROLL for (int which = 0; which < kRows; ++which) {
        const bool inside = is_inside(copied_tile_, p, which);
        copy_to_lds(residual_of(copied_residual_, p, which),
                    residual + (inside ? at(copied_tile_, p, which) : 0), inside);
      }
    }
    copied_residual_ = next<kResiduals>(copied_residual_);
  }
  DEVICE uint8_t* residual_of(int buffer, int pack, int which) const {
    return lds_.residual[buffer][pack * kRows + which][thread_x()];
  }

  DEVICE int row(int tile, int which) const {
    return first_m(tile) + wave_id() * 16 + Warpgroup::row_of(2 * which);
  }
  DEVICE int column(int tile, int pack) const {
    return first_n(tile) + pack * Columns::kN + Columns::first();
  }
  DEVICE bool is_inside(int tile, int pack, int which) const {
    return row(tile, which) < args_.M && column(tile, pack) < args_.N;
  }
  DEVICE size_t at(int tile, int pack, int which) const {
    return static_cast<size_t>(row(tile, which)) * static_cast<size_t>(args_.N) +
           static_cast<size_t>(column(tile, pack));
  }

  template <bool kAdds>
  DEVICE void store(int tile, const Instruction& sums, int of_residual) const {
    constexpr int kHalves = Columns::kPack / kIntegerPack;
    UNROLL for (int p = 0; p < kPacks; ++p) {
      const int n = column(tile, p);
      if (n >= args_.N) continue;
      Pack<uint64_t> bytes[kRows];
      UNROLL for (int half = 0; half < kHalves; ++half) {
        const IntegerColumns columns(args_, 0, false, n + half * kIntegerPack, args_.N, kIsSigned);
        const auto scale = load_values(columns.scales);
        UNROLL for (int which = 0; which < kRows; ++which) {
          IntegerBytes added = {};
          if constexpr (kAdds) {
            added = *reinterpret_cast<const IntegerBytes*>(residual_of(of_residual, p, which) +
                                                           half * kIntegerPack);
          }
          int32_t values[kIntegerPack];
          UNROLL for (int i = 0; i < kIntegerPack; ++i) {
            values[i] = sums.v[((p * kHalves + half) * (kIntegerPack / 2) + i / 2) * 4 + 2 * which + i % 2];
          }
          bytes[which].v[half] = columns.template finish_bytes<kAdds>(values, added, scale);
        }
      }
      uint8_t* const y = args_.y;
      UNROLL for (int which = 0; which < kRows; ++which) {
        if (row(tile, which) < args_.M) {
          store_pack(reinterpret_cast<uint64_t*>(y + at(tile, p, which)), bytes[which]);
        }
      }
    }
  }

  static constexpr bool kIsSigned = static_cast<Left>(-1) < 0;

  const IntegerWarpgroupArgs& args_;
  Lds& lds_;
  int steps_;
  // The next step to copy.
  int copied_tile_, copied_step_ = 0, copied_buffer_ = 0, copied_residual_ = 0;
  typename Select<kIsConv, PatchesLeft, DenseLeft>::Type left_;
  Right right_;
};

template <GemmTile kTile, class Left, bool kIsConv>
DEVICE void integer_warpgroups(const IntegerWarpgroupArgs& args) {
  using Gemm = IntegerWarpgroups<kTile, Left, kIsConv>;
  LARGE_SHARED(lds, typename Gemm::Lds);
  const IntegerPatches patches(args, 0);
  Gemm(args, patches, lds).run();
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

// The kernels of one tile; gemm/kernels.h has the reason for macros.
#define INTEGER_WARPGROUP_KERNEL(name, tile, Left, is_conv)                                              \
  KERNEL_OF(                                                                                             \
      name, (integer_warpgroups<GemmTile::kIntegerWarpgroup##tile, Left, is_conv>),                      \
      (LaunchBounds{row_of(kIntegerWarpgroupTiles, GemmTile::kIntegerWarpgroup##tile).threads(),         \
                    row_of(kIntegerWarpgroupTiles, GemmTile::kIntegerWarpgroup##tile).groups_per_unit}), \
      IntegerWarpgroupArgs, x, w, columns, residual, table, y)
#define INTEGER_WARPGROUP_KERNELS(name, targets, ...)                                           \
  GEMM_ON_##targets(                                                                            \
      INTEGER_WARPGROUP_KERNEL(integer_warpgroups_gemm_##name##_i8, name, int8_t, false)        \
          INTEGER_WARPGROUP_KERNEL(integer_warpgroups_gemm_##name##_u8, name, uint8_t, false)   \
              INTEGER_WARPGROUP_KERNEL(integer_warpgroups_conv_##name##_i8, name, int8_t, true) \
                  INTEGER_WARPGROUP_KERNEL(integer_warpgroups_conv_##name##_u8, name, uint8_t, true))
GEMM_INTEGER_WARPGROUP_TILES(INTEGER_WARPGROUP_KERNELS)

#endif
