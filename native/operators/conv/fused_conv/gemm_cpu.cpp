// Convolutions with several input or output channels in each group, as an implicit GEMM. A step of the GEMM is one tap
// of the window for one word: two channels in bfloat16 and in integers, or one in float32. Each step reads the words of
// the pixels at an offset in s, the packed x (strips.h). The rows of the GEMM are output channels and the columns are
// pixels, as in y. If y has few pixels, vectors of pixels would be partly empty. The rows are then pixels, whose words
// may be gathered first, and the columns are channels. With AMX, all bfloat16 convolutions run in AMX tiles
// (tiles_cpu.cpp).
#include "operators/conv/fused_conv/gemm_cpu.h"

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "cpu/microkernels/workspace.h"
#include "cpu/parallel_for.h"
#include "operators/conv/fused_conv/panels.h"
#include "operators/conv/fused_conv/quantized_gemm.h"
#include "operators/conv/fused_conv/tiles.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

// Maximum bytes of weights of the channel blocks that a work item multiplies.
constexpr int64_t kGroupBytes = 256 << 10;
// Maximum bytes of gathered words: half a second-level cache. The other half is for panels of weights.
constexpr int64_t kGatheredBytes = 512 << 10;
constexpr int64_t kCachedBytes = 128 << 10;  // the largest schedule that is cached for the next run
// If pixels fill less than this fraction of their vectors, vectors of channels are faster.
constexpr double kFull = 0.9;

template <class E>
Strips strips_of(const ConvolutionProblem& p, int64_t workers) {
  return Strips(p, kStripBytes * workers, p.groups * pairs_of<E>(p), 1);
}

// Returns the number of words of s for a strip.
template <class E>
int64_t strip_words(const ConvolutionProblem& p, const Strips& strips) {
  return p.groups * pairs_of<E>(p) * strips.at(p, 0).words + kPanelWidth;
}

// Returns the number of images that are multiplied in one call of the thread pool. It exceeds 1 only if a strip is an
// entire image and smaller than the caches.
template <class E>
int64_t images_at_once(const ConvolutionProblem& p, const Strips& strips, int64_t workers) {
  if (workers == 1 || strips.most < p.out[strips.axis]) return 1;
  return std::clamp<int64_t>(kStripBytes * workers / (4 * strip_words<E>(p, strips)), 1, p.N);
}

// Returns the number of gathered words of a block of pixels.
template <class E>
int64_t block_slot(const ConvolutionProblem& p) {
  return steps_of<E>(p) * kMaxRows + L;
}

// For a GEMM whose rows are pixels: returns whether their words are gathered. If they would exceed kGatheredBytes and a
// row of y fills blocks well, they are not gathered. Each block then has pixels of one row, whose words are adjacent in
// s.
template <class E>
bool gathers(const ConvolutionProblem& p, const Strips& strips) {
  const Strip strip = strips.at(p, 0);
  const int64_t columns = strip.out[2], blocks = ceil_div(strip.span(), kMaxRows);
  const int64_t words = p.groups * blocks * block_slot<E>(p);
  return words * 4 <= kGatheredBytes ||
         static_cast<double>(columns) < kFull * static_cast<double>(round_up(columns, kMaxRows));
}

std::vector<PixelBlock> pixel_blocks(const ConvolutionProblem& p, const Strip& strip, bool gathered) {
  std::vector<PixelBlock> all;
  int64_t first = 0;
  if (gathered) {
    const int64_t width = ceil_div(strip.span(), ceil_div(strip.span(), kMaxRows));
    for (const Pixels& pixels : pixels_of(p, strip, width)) {
      all.push_back({pixels, first});
      first += width;
    }
    return all;
  }
  const int64_t columns = strip.out[2], in_row = ceil_div(columns, kMaxRows);
  int64_t at = (strip.first[0] * p.out[1] + strip.first[1]) * p.out[2] + strip.first[2];
  for (int64_t d = 0; d < strip.out[0]; ++d) {
    for (int64_t h = 0; h < strip.out[1]; ++h) {
      first = (d * strip.size[1] + h) * strip.size[2];
      for (int64_t i = 0; i < in_row; ++i) {
        const int64_t begin = columns * i / in_row, count = columns * (i + 1) / in_row - begin;
        all.push_back({{(1u << count) - 1, static_cast<int32_t>(count), at}, first + begin});
        at += count;
      }
    }
  }
  return all;
}

// The number of gathered words, zero if words are read from s. With AMX, these are the words of the tiles of all
// threads; otherwise those of a strip of all images that are multiplied together. `of_image`: the gathered words of one
// image; 0 with AMX.
struct Gathered {
  int64_t words = 0, of_image = 0;
};
template <class E>
Gathered gathered_words(const ConvolutionProblem& p, FusedConvVectors vectors, const Strips& strips,
                        [[maybe_unused]] int64_t workers) {
  if constexpr (kHasTiles && std::is_same_v<E, Bfloat16Pairs>) {
    if (vectors == FusedConvVectors::kTiles) return {conv_tiles_words(p, workers), 0};
  }
  if (vectors != FusedConvVectors::kChannels || !gathers<E>(p, strips)) return {};
  const int64_t words = p.groups * ceil_div(strips.at(p, 0).span(), kMaxRows) * block_slot<E>(p);
  return {images_at_once<E>(p, strips, workers) * words, words};
}

// Tables that all runs with the same shape and number of threads share.
struct GemmSchedule final : ConvSchedule {
  Strips strips;
  int64_t images;      // images that are multiplied together
  int64_t words_of_s;  // words of s for each image
  Gathered gathered;
  bool in_place;                           // x is read in place (reads_in_place)
  std::vector<StripSchedule> cached = {};  // all strips, or none

  template <class E>
  static GemmSchedule of(const ConvolutionProblem& p, FusedConvVectors vectors, int64_t workers);
  // Caches the schedules of all strips for the next run if they take little memory.
  template <class E>
  void cache_strips(const ConvolutionProblem& p, FusedConvVectors vectors);
  template <class E>
  StripSchedule of_strip(const ConvolutionProblem& p, FusedConvVectors vectors, int64_t begin) const;

 private:
  GemmSchedule(const Strips& all, int64_t together, int64_t words, Gathered words_of_pixels, bool of_x)
      : strips(all), images(together), words_of_s(words), gathered(words_of_pixels), in_place(of_x) {}
};

// The workspace of a run: s of each image, and the gathered words (null if there are none).
struct Memory {
  Word *s, *gathered;

  Memory(const GemmSchedule& schedule, Workspace& workspace)
      : s(workspace.take<Word>(schedule.images * schedule.words_of_s)),
        gathered(schedule.gathered.words > 0 ? workspace.take<Word>(schedule.gathered.words) : nullptr) {}
};

// Returns the loop that multiplies a strip, with pixels as the vectors.
template <class E, class F>
Loop multiply_by_pixel(const ConvolutionProblem& p, const StripSchedule& schedule, const Steps& steps,
                       const Word* s, const Word* w, const F& image, const Sharing& sharing) {
  const int64_t outputs = p.M, blocks = blocks_of(outputs);
  const int64_t together = std::clamp<int64_t>(kGroupBytes / (steps.count * kMaxRows * 4 + 1), 1, blocks);
  const int64_t passes = ceil_div(blocks, together);
  const auto vectors = static_cast<int64_t>(schedule.pixels.size());
  const int64_t panels = ceil_div(vectors, kPanel), parts = sharing.parts(p.groups * passes, panels);
  const auto multiply = [=, &p, &schedule](int64_t item, size_t) {
    const Pixels* pixels = schedule.pixels.data();
    const int64_t part = item % parts, pass = item / parts % passes, g = item / parts / passes;
    const Word* packed = s + g * pairs_of<E>(p) * schedule.strip.words;
    const Word* group = w + g * outputs * steps.count;
    const Panels part_of_strip = {pixels, vectors, panels * part / parts, panels * (part + 1) / parts};
    // A block of channels processes all panels before the next block starts: each output channel is then written
    // sequentially.
    for (int64_t block = pass * together; block < std::min(blocks, (pass + 1) * together); ++block) {
      const int64_t m = first_of(outputs, block), rows = first_of(outputs, block + 1) - m;
      const Word* weights = group + m * steps.count;
      const F finish = image.at(g * outputs + m, pixels);
      StoreSums each = {finish.initial_sums()};
      if (block + 1 < blocks) {
        // The first panel prefetches the weights of the next block.
        each.next = reinterpret_cast<const char*>(weights + rows * steps.count);
        each.prefetch_bytes = (first_of(outputs, block + 2) - m - rows) * static_cast<int64_t>(sizeof(Word));
      }
      multiply_panels<E>(rows, part_of_strip, weights, packed, steps, each, finish);
    }
  };
  return {p.groups * passes * parts, multiply};
}

// Returns the loops that multiply a strip, with channels as the vectors.
template <class E, class F>
std::vector<Loop> multiply_by_channel(const ConvolutionProblem& p, const StripSchedule& schedule,
                                      const Steps& steps, const Word* s, const Word* w, const F& image,
                                      Word* gathered) {
  const int64_t outputs = p.M, panels = ceil_div(outputs, kPanelWidth), slot = block_slot<E>(p);
  const int64_t words_of_group = pairs_of<E>(p) * schedule.strip.words;
  const auto blocks = static_cast<int64_t>(schedule.blocks.size());
  const auto gather = [=, &schedule](int64_t item, size_t) {
    const PixelBlock& here = schedule.blocks[static_cast<size_t>(item % blocks)];
    const Word* from = s + item / blocks * words_of_group + here.first;
    Word* to = gathered + item * slot;
    const int64_t* at = steps.until(here.first + L);
    for (int64_t step = 0; step < steps.count; ++step) {
      const Vec words = load(reinterpret_cast<const float*>(from + at[step]));
      store(reinterpret_cast<float*>(to), compressed(words, here.pixels));
      to += here.pixels.count;
    }
  };
  const auto multiply = [=, &schedule](int64_t item, size_t) {
    const int64_t panel = item % panels, g = item / panels;
    const int64_t vectors = panel_vectors(outputs, panel), m = panel * kPanelWidth;
    const Word* v = panel_at(w + g * panels_words(steps.count, outputs), steps.count, panel);
    // The first blocks share the prefetching of the next panel.
    const Word* next = v + steps.count * vectors * L;
    const int64_t fetching = std::min(blocks, vectors), lines = vectors / fetching;
    alignas(64) float o[L * kPanelWidth] = {};
    for (int64_t block = 0; block < blocks; ++block) {
      const PixelBlock& from = schedule.blocks[static_cast<size_t>(block)];
      Pixels here = from.pixels;
      const int64_t rows = here.count;
      if (rows == 0) continue;
      if (gathered != nullptr) here.mask = (1u << here.count) - 1;  // the pixels are contiguous
      const bool fetches = block < fetching && panel + 1 < panels;
      StoreSums each;
      if (fetches) {
        each.next = reinterpret_cast<const char*>(next + block * steps.count * lines * L);
        each.prefetch_bytes = lines * L * static_cast<int64_t>(sizeof(Word));
      }
      if (gathered != nullptr) {
        multiply_rows<E>(rows, vectors, gathered + (g * blocks + block) * slot, v, Panel{}, steps.count, o,
                         each);
      } else {
        const Word* packed = s + g * words_of_group + from.first;
        multiply_rows<E>(rows, vectors, packed, v, TableOfRows{steps.offsets}, steps.count, o, each);
      }
      const int64_t channels = std::min(kPanelWidth, outputs - m);
      image.at(g * outputs + m, &here).finish_block(channels, vectors, o);
    }
  };
  std::vector<Loop> loops;
  if (gathered != nullptr) loops.push_back({p.groups * blocks, gather});
  loops.push_back({p.groups * panels, multiply});
  return loops;
}

// Runs the loops of several images with equal numbers of items: first loop 0 of all images, then loop 1, and so on.
void run_together(Parallel& parallel, std::vector<std::vector<Loop>> images) {
  std::vector<Loop> loops = std::move(images[0]);
  for (size_t i = 0; i < loops.size() && images.size() > 1; ++i) {
    std::vector<Loop> same = {std::move(loops[i])};
    for (size_t n = 1; n < images.size(); ++n) same.push_back(std::move(images[n][i]));
    const int64_t items = same[0].items;
    loops[i].items = items * static_cast<int64_t>(same.size());
    loops[i].run = [items, same = std::move(same)](int64_t item, size_t worker) {
      same[static_cast<size_t>(item / items)].run(item % items, worker);
    };
  }
  parallel_loops(parallel, loops);
}

// Whether the words of a strip are read from x in place: the convolution is pointwise and x is NCHW2c. Vectors that
// reach beyond a pair of channels then read words of the next pair. The end of the last pair is copied to s.
bool reads_in_place(const ConvolutionProblem& p) {
  bool same = p.x_nchw2c && p.groups == 1 && p.C > 2 && p.in_size() >= kPanelWidth;
  for (size_t i = 0; i < 3; ++i) {
    same = same && p.kernel[i] == 1 && p.stride[i] == 1 && p.pad[i] == 0 && p.in[i] == p.out[i];
  }
  return same;
}

// The strip of an image: its first word, the offset of each step, and the loop that packs it.
struct StripOfImage {
  const Word* begins;
  Steps steps;
  Loop pack;
};

// Returns the strip of an image that is read from x in place. Copies the last words of x to s and pads them, because
// vectors read beyond the end.
StripOfImage strip_in_place(const ConvolutionProblem& p, StripSchedule& schedule, int64_t slot, const void* x,
                            int64_t n, Word* s) {
  const ConvolutionProblem::Axes& first = schedule.strip.first;
  const int64_t begin = (first[0] * p.in[1] + first[1]) * p.in[2] + first[2];
  const Word* begins = static_cast<const Word*>(x) + n * pairs_of<Bfloat16Pairs>(p) * p.in_size() + begin;
  const int64_t there = p.in_size() - begin, copied = std::min(kPanelWidth, there);
  std::copy_n(begins + schedule.offsets.back() + there - copied, copied, s);
  std::fill_n(s + copied, kPanelWidth, Word{});
  std::vector<int64_t>& at_end = schedule.at_end[static_cast<size_t>(slot)];
  const intptr_t distance = reinterpret_cast<intptr_t>(s) - reinterpret_cast<intptr_t>(begins);
  at_end.back() = distance / static_cast<intptr_t>(sizeof(Word)) - (there - copied);
  const auto steps = static_cast<int64_t>(at_end.size());
  return {begins, {schedule.offsets.data(), steps, there, at_end.data()}, {0, {}}};
}

// Returns the strip of an image that is packed to s. x: elements of T, or words in the NCHW2c bf16 layout.
template <class T, class E>
StripOfImage packed_strip(const E& format, const ConvolutionProblem& p, const StripSchedule& schedule,
                          const void* x, int64_t n, Word* s) {
  const int64_t channels = p.C, pairs = pairs_of<E>(p);
  const auto pack = [=, &p, &strip = schedule.strip](int64_t item, size_t) {
    Word* packed = s + item * strip.words;
    if (p.x_nchw2c) {
      const auto* words = static_cast<const float*>(x) + (n * p.groups * pairs + item) * p.in_size();
      return pack_words(Float32(), p, strip, words, Second{}, packed);
    }
    const int64_t pair = item % pairs, c = item / pairs * channels + pair * E::kDepth;
    const T* image = static_cast<const T*>(x) + (n * p.x_channels() + c) * p.in_size();
    const bool both = pair * E::kDepth + 1 < channels;
    const Second columns = {pairs_columns<E>(p), p.dilation[2], p.dilation[2]};
    pack_words(format, p, strip, image, both ? Second{true, p.in_size(), 0} : columns, packed);
  };
  const auto steps = static_cast<int64_t>(schedule.offsets.size());
  return {s, {schedule.offsets.data(), steps}, {p.groups * pairs, pack}};
}

// Returns the loops that pack and multiply the strip of an image; `end` is the epilogue.
template <class E, class F>
std::vector<Loop> loops_of_image(const ConvolutionProblem& p, FusedConvVectors vectors,
                                 const StripSchedule& schedule, StripOfImage image, const Word* w,
                                 const F& end, const Sharing& sharing, Word* gathered) {
  std::vector<Loop> loops = {std::move(image.pack)};
  if constexpr (kHasTiles && std::is_same_v<E, Bfloat16Pairs>) {
    if (vectors == FusedConvVectors::kTiles) {
      loops.push_back(multiply_in_tiles(p, schedule, image.steps, image.begins, w, end, sharing, gathered));
      return loops;
    }
  }
  if (vectors == FusedConvVectors::kChannels) {
    for (Loop& loop : multiply_by_channel<E>(p, schedule, image.steps, image.begins, w, end, gathered)) {
      loops.push_back(std::move(loop));
    }
  } else {
    loops.push_back(multiply_by_pixel<E>(p, schedule, image.steps, image.begins, w, end, sharing));
  }
  return loops;
}

template <class E>
StripSchedule GemmSchedule::of_strip(const ConvolutionProblem& p, FusedConvVectors vectors,
                                     int64_t begin) const {
  StripSchedule of = {strips.at(p, begin), {}};
  if (in_place) {
    for (int64_t pair = 0; pair < pairs_of<E>(p); ++pair) of.offsets.push_back(pair * p.in_size());
    of.at_end.assign(static_cast<size_t>(images), of.offsets);
  } else {
    of.offsets = step_offsets<E>(p, of.strip);
  }
  if (vectors == FusedConvVectors::kChannels) {
    of.blocks = pixel_blocks(p, of.strip, gathered.words > 0);
  } else {
    of.pixels = pixels_of(p, of.strip, L);
  }
  if constexpr (kHasTiles && std::is_same_v<E, Bfloat16Pairs>) {
    if (vectors == FusedConvVectors::kTiles) {
      of.order = order_of_steps(p);
      of.tile_sources = tile_sources(p, of.offsets, of.order, in_place);
    }
  }
  return of;
}

template <class E>
GemmSchedule GemmSchedule::of(const ConvolutionProblem& p, FusedConvVectors vectors, int64_t workers) {
  const Strips strips = strips_of<E>(p, workers);
  return {strips, images_at_once<E>(p, strips, workers), strip_words<E>(p, strips),
          gathered_words<E>(p, vectors, strips, workers), reads_in_place(p)};
}

template <class E>
void GemmSchedule::cache_strips(const ConvolutionProblem& p, FusedConvVectors vectors) {
  int64_t bytes = 0;
  for (int64_t begin = 0; begin < p.out[strips.axis]; begin += strips.most) {
    cached.push_back(of_strip<E>(p, vectors, begin));
    bytes += cached.back().bytes();
    if (bytes > kCachedBytes) return cached.clear();
  }
}

// Computes the convolution. `format` makes words of E, `end` is the epilogue of all images. x: elements of T, or words in
// the NCHW2c bf16 layout.
template <class E, class P, class T, bool kTwoChannels>
void multiply_groups(const P& format, const ConvolutionProblem& p, FusedConvVectors vectors,
                     GemmSchedule& schedule, const void* x, const Word* w, const Finish<T, kTwoChannels>& end,
                     Parallel& parallel, void* memory) {
  const auto workers = static_cast<int64_t>(parallel.workers());
  Workspace workspace(memory);
  const Memory taken(schedule, workspace);
  const int64_t at_once = schedule.images, most = schedule.strips.most;
  for (int64_t begin = 0; begin < p.out[schedule.strips.axis]; begin += most) {
    std::optional<StripSchedule> made;
    if (schedule.cached.empty()) made = schedule.of_strip<E>(p, vectors, begin);
    StripSchedule& strip = made ? *made : schedule.cached[static_cast<size_t>(begin / most)];
    std::vector<std::vector<Loop>> images;
    for (int64_t n = 0; n < p.N; ++n) {
      const int64_t slot = n % at_once;  // index among the images that are multiplied together
      const Sharing sharing = {workers, std::min(at_once, p.N - n + slot)};
      Word* const s = taken.s + slot * schedule.words_of_s;
      Word* const gathered =
          taken.gathered == nullptr ? nullptr : taken.gathered + slot * schedule.gathered.of_image;
      StripOfImage image = schedule.in_place ? strip_in_place(p, strip, slot, x, n, s)
                                             : packed_strip<T>(format, p, strip, x, n, s);
      images.push_back(
          loops_of_image<E>(p, vectors, strip, std::move(image), w, end.of_image(n), sharing, gathered));
      if (slot + 1 == at_once || n + 1 == p.N) {
        run_together(parallel, std::move(images));
        images.clear();
      }
    }
  }
}

GemmSchedule schedule_of(const ConvolutionProblem& p, FusedConvVectors vectors, size_t workers) {
  const auto count = static_cast<int64_t>(workers);
  return with_words(p, [&](auto format) { return GemmSchedule::of<decltype(format)>(p, vectors, count); });
}

}  // namespace

FusedConvVectors conv_gemm_vectors(const ConvolutionProblem& p) {
  if (p.bfloat16 && with_tiles()) return FusedConvVectors::kTiles;
  if (p.in_size() == 0 || p.out_size() <= 0 || p.M < 2 * L) return FusedConvVectors::kPixels;
  const int64_t span = Strip(p, 0, 0, p.out[0]).span();
  const bool few = static_cast<double>(p.out_size()) < kFull * static_cast<double>(round_up(span, L));
  return few ? FusedConvVectors::kChannels : FusedConvVectors::kPixels;
}

size_t conv_gemm_workspace(const ConvolutionProblem& p, FusedConvVectors vectors, size_t workers) {
  Workspace workspace(nullptr);
  const Memory taken(schedule_of(p, vectors, workers), workspace);
  return workspace.bytes();
}

std::unique_ptr<ConvSchedule> conv_gemm_schedule(const ConvolutionProblem& p, FusedConvVectors vectors,
                                                 size_t workers) {
  auto schedule = std::make_unique<GemmSchedule>(schedule_of(p, vectors, workers));
  with_words(p, [&](auto format) { schedule->cache_strips<decltype(format)>(p, vectors); });
  return schedule;
}

template <class T>
void conv_gemm(const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule, const void* x,
               const void* weights, const T* b, Residual<T> residual, Outputs<T> to, Parallel& parallel,
               void* workspace) {
  const auto* w = static_cast<const Word*>(weights);
  std::optional<GemmSchedule> made;
  if (schedule == nullptr) made = schedule_of(p, vectors, parallel.workers());
  GemmSchedule& of = made ? *made : static_cast<GemmSchedule&>(*schedule);
  if constexpr (std::is_same_v<T, float>) {
    if (to.nchw2c != nullptr || residual.nchw2c != nullptr) {
      const Finish<T, true> two(p, b, residual, to);
      return multiply_groups<Bfloat16Pairs>(Bfloat16Pairs(), p, vectors, of, x, w, two, parallel, workspace);
    }
    if (p.bfloat16) {
      const Finish<T> finish(p, b, residual, to);
      return multiply_groups<Bfloat16Pairs>(Bfloat16Pairs(), p, vectors, of, x, w, finish, parallel,
                                            workspace);
    }
  }
  multiply_groups<Float32>(Float32(), p, vectors, of, x, w, Finish<T>(p, b, residual, to), parallel,
                           workspace);
}

GRAPHOPT_INSTANTIATE(conv_gemm)

void quantized_gemm(const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule,
                    const Quantization& quantization, const float* x, const void* weights,
                    const float* factors, const float* b, float* y, Parallel& parallel, void* workspace) {
  std::optional<GemmSchedule> made;
  if (schedule == nullptr) made = schedule_of(p, vectors, parallel.workers());
  GemmSchedule& of = made ? *made : static_cast<GemmSchedule&>(*schedule);
  const Finish<float> finish(p, b, Residual<float>(p, nullptr), {y, nullptr}, factors);
  multiply_groups<ShortPairs>(QuantizedPairs(quantization), p, vectors, of, x,
                              static_cast<const Word*>(weights), finish, parallel, workspace);
}

}  // namespace graphopt::cpu::GRAPHOPT_ISA
