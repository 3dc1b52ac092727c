// Computes A B with A and B rounded to bfloat16. Each call packs both operands: B into panels, and A into blocks of
// rows, which are multiplied by each panel. Several pairs of matrices A and B are packed at a time if they fit in the
// second-level caches. If one pair does not fit, all of B is packed first, and A in parts. With AMX
// (cpu/microkernels/tiles.h), blocks consist of tiles.
#include <algorithm>
#include <vector>

#include "cpu/microkernels/packing.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/matmul/matmul_bfloat16/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// The division of a problem into matrices, blocks and panels.
struct Plan {
  bool in_tiles;
  int64_t workers;
  int64_t steps;        // steps along K
  int64_t block_rows;   // maximum number of rows of a block
  int64_t blocks;       // blocks of a matrix A
  int64_t slot;         // words of a block
  int64_t panels;       // panels of a matrix B
  int64_t b_words;      // words of a packed matrix B
  int64_t matrices;     // maximum number of matrices A, and of matrices B, that are packed at a time
  int64_t most_blocks;  // maximum number of blocks of a matrix A that are packed at a time

  Plan(const MatMulBfloat16Problem& p, int64_t all_workers) {
    in_tiles = with_tiles();
    workers = all_workers;
    steps = tiled_steps(ceil_div(p.K, Bfloat16Pairs::kDepth));
    block_rows = in_tiles ? kBlockRows : ceil_div(p.M, ceil_div(p.M, kMaxRows));
    blocks = ceil_div(p.M, block_rows);
    slot = in_tiles ? steps * kBlockRows : steps * kMaxRows + L;
    panels = ceil_div(p.N, kPanelWidth);
    b_words = panels_words(steps, p.N);
    const auto size = static_cast<int64_t>(sizeof(Word));
    const int64_t bytes = std::max<int64_t>((b_words + blocks * slot) * size, 1);
    matrices = std::clamp<int64_t>(workers * kChunkBytes / bytes, 1, p.batch.elements());
    const int64_t parts = matrices > 1 ? 1 : ceil_div(blocks * slot * size, kChunkBytes);
    most_blocks = ceil_div(blocks, std::max<int64_t>(parts, 1));
  }
};

// Workspace for the operands that are packed at a time.
struct Packed {
  Word *a, *b;
  Packed(const Plan& plan, Workspace& workspace)
      : a(workspace.take<Word>(plan.matrices * plan.most_blocks * plan.slot)),
        b(workspace.take<Word>(plan.matrices * plan.b_words)) {}
};

struct Matrices {
  const float *a, *b;
  float* y;
};

Matrices matrices_of(const MatMulBfloat16Problem& p, int64_t i, Matrices at) {
  at.y += i * p.M * p.N;
  for (size_t axis = p.batch.rank(); axis-- > 0; i /= p.batch[axis]) {
    at.a += i % p.batch[axis] * p.a_batch[axis];
    at.b += i % p.batch[axis] * p.b_batch[axis];
  }
  return at;
}

// Packs at most kWidth columns of b. The elements of a column are contiguous; columns are `next` elements apart. Writes
// one vector for each step; the vectors are `width` words apart.
void pack_columns(const float* b, int64_t next, int64_t columns, int64_t K, Word* out, int64_t width) {
  alignas(64) Word packed[kWidth * kWidth];
  for (int64_t k = 0; k < K; k += L * Bfloat16Pairs::kDepth) {
    const int64_t n = std::min(L * Bfloat16Pairs::kDepth, K - k);
    pack_rows<Bfloat16Pairs>(b + k, next, columns, n, packed);
    for (int64_t step = 0; step < ceil_div(n, Bfloat16Pairs::kDepth); ++step, out += width) {
      // The words after the last column are arbitrary and unused.
      *reinterpret_cast<AlignedWords*>(out) =
          *reinterpret_cast<const UnalignedWords*>(packed + step * columns);
    }
  }
}

void pack_panel(const MatMulBfloat16Problem& p, const float* b, int64_t panel, int64_t steps, Word* to) {
  const int64_t vectors = panel_vectors(p.N, panel), width = vectors * L;
  const int64_t filled = ceil_div(p.K, Bfloat16Pairs::kDepth);
  for (int64_t j = 0; j < vectors; ++j) {
    const int64_t n = panel * kPanelWidth + j * L, columns = std::min(L, p.N - n);
    Word* out = to + j * L;
    if (p.b_transposed) {
      pack_columns(b + n * p.b_next, p.b_next, columns, p.K, out, width);
      continue;
    }
    for (int64_t step = 0; step < filled; ++step) {
      const float* row = b + step * Bfloat16Pairs::kDepth * p.b_next + n;
      const Vec low = load_range(row, 0, columns);
      const Vec high =
          step * Bfloat16Pairs::kDepth + 1 < p.K ? load_range(row + p.b_next, 0, columns) : Vec{};
      *reinterpret_cast<AlignedWords*>(out + step * width) = Bfloat16Pairs::make_words(low, high);
    }
  }
  std::fill(to + filled * width, to + steps * width, Word{0});
}

// The multiplication of packed blocks of a matrix A by its packed B. y: the first row of Y that they compute.
struct Work {
  const MatMulBfloat16Problem& p;
  const Plan& plan;
  int64_t rows;  // rows of all blocks
  Word *a, *b;
  float* y;

  int64_t rows_of(int64_t block) const { return std::min(plan.block_rows, rows - block * plan.block_rows); }

  void pack_block(const float* from, int64_t block) const {
    const float* x = from + block * plan.block_rows * p.a_row;
    Word* to = a + block * plan.slot;
    if constexpr (kHasTiles) {
      if (plan.in_tiles) {
        return pack_tiles(x, p.a_row, rows_of(block), p.K, plan.steps / kTileSide, to);
      }
    }
    pack_rows<Bfloat16Pairs>(x, p.a_row, rows_of(block), p.K, to);
  }

  // Multiplies blocks [begin, end) by a panel.
  void multiply(int64_t panel, int64_t begin, int64_t end) const {
    const int64_t vectors = panel_vectors(p.N, panel), n = panel * kPanelWidth;
    const Word* v = panel_at(b, plan.steps, panel);
    alignas(64) float o[std::max<int64_t>(kMaxRows, kBlockRows) * kPanelWidth];
    for (int64_t block = begin; block < end; ++block) {
      float* to = y + block * plan.block_rows * p.N + n;
      prefetch_rows(to, p.N, rows_of(block));
      multiply_block_by(block, vectors, v, o);
      for (int64_t i = 0; i < rows_of(block); ++i) {
        for (int64_t j = 0; j < vectors; ++j) {
          store_part(to + i * p.N + j * L, p.alpha * load_aligned(o + (i * vectors + j) * L), p.N - n - j * L,
                     false);
        }
      }
    }
  }

 private:
  void multiply_block_by(int64_t block, int64_t vectors, const Word* v, float* o) const {
    const Word* s = a + block * plan.slot;
    if constexpr (kHasTiles) {
      if (plan.in_tiles) {
        const Tiles of_a = {s, kBlockTiles * kTileWords, kTileWords, kTileSide};
        const Tiles of_b = {v, kTileSide * vectors * L, kTileSide, vectors * L};
        return multiply_block(ceil_div(rows_of(block), kTileSide), vectors, of_a, of_b,
                              plan.steps / kTileSide, o, vectors * L);
      }
    }
    multiply_rows<Bfloat16Pairs>(rows_of(block), vectors, s, v, Panel{}, plan.steps, o, StoreSums{});
  }
};

bool has_no_result(const MatMulBfloat16Problem& p) { return p.M * p.N * p.batch.elements() == 0; }

}  // namespace

template <class T>
size_t matmul_bfloat16_workspace(const MatMulBfloat16Problem& p, size_t workers) {
  if (has_no_result(p)) return 0;
  Workspace workspace(nullptr);
  const Packed packed(Plan(p, static_cast<int64_t>(workers)), workspace);
  return workspace.bytes();
}

template <class T>
void matmul_bfloat16(const MatMulBfloat16Problem& p, const T* a, const T* b, T* y, Parallel& parallel,
                     void* memory) {
  if (has_no_result(p)) return;
  const Plan plan(p, static_cast<int64_t>(parallel.workers()));
  Workspace workspace(memory);
  const Packed packed(plan, workspace);
  // Returns the work for matrix first + i and its blocks from `block` on.
  const auto work_of = [&](int64_t first, int64_t block, int64_t i) {
    const int64_t row = block * plan.block_rows;
    return Work{p,
                plan,
                std::min(plan.most_blocks * plan.block_rows, p.M - row),
                packed.a + i * plan.most_blocks * plan.slot,
                packed.b + i * plan.b_words,
                matrices_of(p, first + i, {a, b, y}).y + row * p.N};
  };
  std::vector<Loop> loops;
  const int64_t all = p.batch.elements();
  for (int64_t first = 0; first < all; first += plan.matrices) {
    const int64_t count = std::min(plan.matrices, all - first);
    for (int64_t block = 0; block < plan.blocks; block += plan.most_blocks) {
      const int64_t blocks = std::min(plan.most_blocks, plan.blocks - block);
      const int64_t panels = block == 0 ? plan.panels : 0, items = panels + blocks;  // items to pack
      loops.push_back({count * items, [&, first, block, panels, items](int64_t item, size_t) {
                         const int64_t i = item / items, at = item % items;
                         const Work work = work_of(first, block, i);
                         const Matrices from = matrices_of(p, first + i, {a, b, y});
                         if (at < panels) {
                           pack_panel(p, from.b, at, plan.steps, panel_at(work.b, plan.steps, at));
                         } else {
                           work.pack_block(from.a + block * plan.block_rows * p.a_row, at - panels);
                         }
                       }});
      // If there are few panels, the rows are also divided among the threads.
      const int64_t parts =
          plan.workers == 1 ? 1 : std::min(blocks, ceil_div(4 * plan.workers, count * plan.panels));
      loops.push_back({count * plan.panels * parts, [&, first, block, blocks, parts](int64_t item, size_t) {
                         const int64_t panel = item / parts % plan.panels, part = item % parts;
                         const Work work = work_of(first, block, item / parts / plan.panels);
                         const int64_t begin = blocks * part / parts, end = blocks * (part + 1) / parts;
                         if constexpr (kHasTiles) {
                           if (plan.in_tiles) {
                             const TileRegisters registers;
                             return work.multiply(panel, begin, end);
                           }
                         }
                         work.multiply(panel, begin, end);
                       }});
    }
  }
  parallel_loops(parallel, loops);
}

template decltype(matmul_bfloat16_workspace<float>) matmul_bfloat16_workspace<float>;
template decltype(matmul_bfloat16<float>) matmul_bfloat16<float>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
