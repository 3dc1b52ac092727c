// Computes X W with AMX tiles. X is rounded to bfloat16 and packed into tiles, block by block. The blocks remain in the
// second-level cache while they are multiplied by the panels of W.
#include "cpu/microkernels/tiles.h"
#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/matmul/linear/finish.h"
#include "operators/matmul/linear/tiles.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

static_assert(kWidth == kTileSide && kPanel == kBlockTiles);

// X in blocks of two tiles of rows: [block][group of 16 steps][tile]. The blocks that are packed at a time fit in a
// cache.
struct Blocks {
  int64_t tiles;        // number of tiles along K
  int64_t slot;         // words of a block
  int64_t count, most;  // number of blocks; maximum number of blocks that are packed at a time

  explicit Blocks(const LinearProblem& p)
      : tiles(ceil_div(p.K, kTileSide * Bfloat16Pairs::kDepth)),
        slot(tiles * kBlockTiles * kTileWords),
        count(ceil_div(p.rows, kBlockRows)),
        most(ceil_div(count, std::max<int64_t>(ceil_div(count * slot * 4, kChunkBytes), 1))) {}
  Word* take(Workspace& workspace) const { return workspace.take<Word>(most * slot); }
};

}  // namespace

size_t linear_tiles_workspace(const LinearProblem& p) {
  Workspace workspace(nullptr);
  Blocks(p).take(workspace);
  return workspace.bytes();
}

template <class T>
void linear_in_tiles(const LinearProblem& p, const T* x, const Word* w, const T* b, const T* r, T* y,
                     Parallel& parallel, void* memory) {
  const Blocks blocks(p);
  const int64_t tiles = blocks.tiles, panels = ceil_div(p.N, kPanelWidth);
  const auto workers = static_cast<int64_t>(parallel.workers());
  const auto rows_of = [&](int64_t block) { return std::min(kBlockRows, p.rows - block * kBlockRows); };
  Workspace workspace(memory);
  Word* s = blocks.take(workspace);
  std::vector<Loop> loops;
  for (int64_t first = 0; first < blocks.count; first += blocks.most) {
    const int64_t count = std::min(blocks.most, blocks.count - first);
    loops.push_back({count, [&, first](int64_t i, size_t) {
                       const int64_t block = first + i;
                       pack_tiles(x + block * kBlockRows * p.K, p.K, rows_of(block), p.K, tiles,
                                  s + i * blocks.slot);
                     }});
    // If there are few panels, the rows are also divided among the threads.
    const int64_t parts = workers == 1 ? 1 : std::min(count, ceil_div(4 * workers, panels));
    loops.push_back(
        {panels * parts, [&, first, count, parts](int64_t item, size_t) {
           const TileRegisters registers;
           const int64_t panel = item / parts, part = item % parts;
           const int64_t vectors = panel_vectors(p.N, panel), n = panel * kPanelWidth;
           const Word* v = panel_at(w, tiles * kTileSide, panel);
           const Tiles columns = {v, kTileSide * vectors * kTileSide, kTileSide, vectors * kTileSide};
           const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
           // Each block prefetches a part of the next panel: `lines` cache lines for each 16 steps.
           const int64_t lines = ceil_div(kTileSide * vectors, end - begin);
           const auto* next = reinterpret_cast<const char*>(v + tiles * kTileWords * vectors);
           alignas(64) float o[kBlockRows * kPanelWidth];
           for (int64_t i = begin; i < end; ++i) {
             const int64_t row = (first + i) * kBlockRows, rows = rows_of(first + i);
             prefetch_rows(y + row * p.N + n, p.N, rows);
             const Tiles of_x = {s + i * blocks.slot, kBlockTiles * kTileWords, kTileWords, kTileSide};
             multiply_block(ceil_div(rows, kTileSide), vectors, of_x, columns, tiles, o, vectors * kTileSide,
                            {next + (i - begin) * tiles * lines * 64, lines});
             finish(p, o, rows, vectors, p.N - n, b + n, p.has_residual ? r + row * p.N + n : nullptr,
                    y + row * p.N + n);
           }
         }});
  }
  parallel_loops(parallel, loops);
}

GRAPHOPT_INSTANTIATE(linear_in_tiles)

}  // namespace graphopt::cpu::GRAPHOPT_ISA
