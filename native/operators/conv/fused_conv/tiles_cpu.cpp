// Convolutions with several channels in each group as an implicit GEMM in AMX tiles: the rows are output channels and
// the columns are pixels. If 16 steps are adjacent pairs of channels at one tap, their words form a tile in s
// (strips.h), which is loaded directly. Groups of 16 steps with several taps or too few channels are gathered first,
// for one panel of pixels at a time.
#include <type_traits>
#include <utility>

#include "cpu/parallel_for.h"
#include "operators/conv/fused_conv/tiles.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

static_assert(kWidth == kTileSide && kPanel == kBlockTiles);

// Maximum bytes of weights of the channel blocks that a work item multiplies.
constexpr int64_t kPassBytes = 512 << 10;
constexpr int64_t kGatheredWords = kTileSide * kPanelWidth;  // gathered words of 16 steps

// The B operand of multiply_block: tiles of steps and pixels.
struct Columns {
  const TileSource* sources;
  const Word *s, *gathered;
  const Word* at(int64_t k, int64_t i) const {
    return (sources[k].gathered ? gathered : s) + sources[k].offset + i * kTileSide;
  }
  int64_t bytes(int64_t k) const { return sources[k].row * static_cast<int64_t>(sizeof(Word)); }
};

// Whether the 16 steps from `first` on are adjacent pairs of channels of one tap, whose words have a constant stride.
// If x is read in place, the last 16 steps do not count: vectors at the end read the last step from a copy.
bool has_constant_stride(const ConvolutionProblem& p, int64_t steps, int64_t first, bool in_place) {
  if (pairs_columns<Bfloat16Pairs>(p) || first + kTileSide > steps ||
      (in_place && first + kTileSide == steps))
    return false;
  const int64_t pairs = pairs_of<Bfloat16Pairs>(p);
  return first / pairs == (first + kTileSide - 1) / pairs;
}

// Gathers the tiles without a constant stride, for `vectors` vectors of pixels from position `from` of s on.
void gather(const std::vector<TileSource>& sources, const int64_t* offsets, const std::vector<int64_t>& order,
            const Word* from, int64_t vectors, Word* to) {
  const auto steps = static_cast<int64_t>(order.size());
  for (size_t k = 0; k < sources.size(); ++k) {
    if (!sources[k].gathered) continue;
    for (int64_t i = 0; i < kTileSide; ++i, to += kPanelWidth) {
      const int64_t step = static_cast<int64_t>(k) * kTileSide + i;
      const Word* words = step < steps ? from + offsets[order[static_cast<size_t>(step)]] : nullptr;
      for (int64_t j = 0; j < vectors; ++j) {
        *reinterpret_cast<AlignedWords*>(to + j * L) =
            words != nullptr ? *reinterpret_cast<const UnalignedWords*>(words + j * L) : Words{};
      }
    }
  }
}

}  // namespace

std::vector<TileSource> tile_sources(const ConvolutionProblem& p, const std::vector<int64_t>& offsets,
                                     const std::vector<int64_t>& order, bool in_place) {
  const auto at = [&](int64_t i) { return offsets[static_cast<size_t>(order[static_cast<size_t>(i)])]; };
  const auto steps = static_cast<int64_t>(order.size());
  std::vector<TileSource> sources;
  sources.reserve(static_cast<size_t>(ceil_div(steps, kTileSide)));
  int64_t gathered = 0;
  for (int64_t first = 0; first < steps; first += kTileSide) {
    if (has_constant_stride(p, steps, first, in_place)) {
      sources.push_back({at(first), at(first + 1) - at(first), false});
    } else {
      sources.push_back({gathered, kPanelWidth, true});
      gathered += kGatheredWords;
    }
  }
  return sources;
}

int64_t conv_tiles_words(const ConvolutionProblem& p, int64_t workers) {
  const int64_t steps = steps_of<Bfloat16Pairs>(p);
  int64_t gathered = 0;
  for (int64_t first = 0; first < steps; first += kTileSide) {
    // An upper bound for all strips, because it is not known yet whether x is read in place.
    gathered += has_constant_stride(p, steps, first, true) ? 0 : kGatheredWords;
  }
  return workers * gathered;
}

template <class F>
Loop multiply_in_tiles(const ConvolutionProblem& p, const StripSchedule& schedule, const Steps& steps,
                       const Word* s, const Word* w, const F& image, const Sharing& sharing, Word* gathered) {
  const auto tiles = static_cast<int64_t>(schedule.tile_sources.size()),
             vectors = static_cast<int64_t>(schedule.pixels.size());
  const int64_t panels = ceil_div(vectors, kPanel), blocks = ceil_div(p.M, kBlockRows);
  const int64_t slot = conv_tiles_words(p, 1);
  int64_t together = std::clamp<int64_t>(kPassBytes / (tiles * kBlockTiles * kTileWords * 4 + 1), 1, blocks);
  if (sharing.workers > 1) {
    const int64_t all = sharing.images * p.groups * blocks * panels;
    together = std::clamp<int64_t>(all / (4 * sharing.workers), 1, together);
  }
  const int64_t passes = ceil_div(blocks, together), parts = sharing.parts(p.groups * passes, panels);
  const auto multiply = [=, &p, &schedule](int64_t item, size_t worker) {
    const TileRegisters registers;
    const int64_t part = item % parts, pass = item / parts % passes, g = item / parts / passes;
    const Word* packed = s + g * pairs_of<Bfloat16Pairs>(p) * schedule.strip.words;
    const Word* group = w + g * tiled_group_words(p);
    Word* mine = gathered + static_cast<int64_t>(worker) * slot;
    const int64_t end = std::min(blocks, (pass + 1) * together);
    alignas(64) float o[kBlockRows * kPanelWidth];
    for (int64_t panel = panels * part / parts; panel < panels * (part + 1) / parts; ++panel) {
      const int64_t j = panel * kPanel, here = std::min<int64_t>(kPanel, vectors - j);
      gather(schedule.tile_sources, steps.until((j + kPanel) * L), schedule.order, packed + j * L, here,
             mine);
      const Columns columns = {schedule.tile_sources.data(), packed + j * L, mine};
      for (int64_t block = pass * together; block < end; ++block) {
        const int64_t m = block * kBlockRows, rows = std::min(kBlockRows, p.M - m);
        const int64_t high = ceil_div(rows, kTileSide);
        const F finish = image.at(g * p.M + m, schedule.pixels.data() + j);
        finish.fetch(rows);
        const Tiles weights = {group + m * tiles * kTileSide, high * kTileWords, kTileWords, kTileSide};
        multiply_block(high, here, weights, columns, tiles, o, here * L);
        finish.finish_sums(rows, here, o, false);
      }
    }
  };
  return {p.groups * passes * parts, multiply};
}

template decltype(multiply_in_tiles<Finish<float>>) multiply_in_tiles<Finish<float>>;
template decltype(multiply_in_tiles<Finish<half>>) multiply_in_tiles<Finish<half>>;
template decltype(multiply_in_tiles<Finish<float, true>>) multiply_in_tiles<Finish<float, true>>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
