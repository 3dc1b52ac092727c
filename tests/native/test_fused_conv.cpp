// FusedConv against sums in double, in float32 and in bfloat16.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "operators/conv/fused_conv/cpu.h"
#include "testing.h"

namespace graphopt::test {
namespace {

// Rounds if the problem computes in bfloat16.
double factor(const ConvolutionProblem& p, double x) { return p.bfloat16 ? rounded(x) : x; }

// Inputs of a problem, and its sums without bias, residual and activation, which many cases share.
struct Operands {
  std::vector<float> x, w, b, r;
  std::vector<double> sums;

  explicit Operands(const ConvolutionProblem& p)
      : x(random_tensor<float>(p.N * p.x_channels() * p.in_size(), 1, 1.0f)),
        w(random_tensor<float>(p.y_channels() * p.C * p.taps(), 2, 0.2f)),
        b(random_tensor<float>(p.y_channels(), 3, 1.0f)),
        r(random_tensor<float>(p.N * p.y_channels() * p.out_size(), 4, 1.0f)),
        sums(r.size()) {
    const auto factors = [&p](const std::vector<float>& from) {
      std::vector<double> to;
      to.reserve(from.size());
      for (const float value : from) to.push_back(factor(p, value));
      return to;
    };
    const std::vector<double> images = factors(x), filters = factors(w);
    for (int64_t n = 0; n < p.N; ++n) {
      for (int64_t m = 0; m < p.y_channels(); ++m) {
        double* y = sums.data() + (n * p.y_channels() + m) * p.out_size();
        for (int64_t c = 0; c < p.C; ++c) {
          const double* image = images.data() + (n * p.x_channels() + m / p.M * p.C + c) * p.in_size();
          for (int64_t tap = 0; tap < p.taps(); ++tap) {
            add_tap(p, filters[static_cast<size_t>((m * p.C + c) * p.taps() + tap)], tap, image, y);
          }
        }
      }
    }
  }

 private:
  // Adds the products of one weight with a plane, row by row, to a plane of sums.
  static void add_tap(const ConvolutionProblem& p, double weight, int64_t tap, const double* image,
                      double* y) {
    const std::array<int64_t, 3> k = {tap / p.kernel[2] / p.kernel[1], tap / p.kernel[2] % p.kernel[1],
                                      tap % p.kernel[2]};
    const auto position = [&](size_t axis, int64_t at) {
      return at * p.stride[axis] + k[axis] * p.dilation[axis] - p.pad[axis];
    };
    const auto inside = [&](size_t axis, int64_t at) {
      return position(axis, at) >= 0 && position(axis, at) < p.in[axis];
    };
    int64_t begin = 0, end = p.out[2];
    while (begin < end && !inside(2, begin)) ++begin;
    while (begin < end && !inside(2, end - 1)) --end;
    for (int64_t d = 0; d < p.out[0]; ++d) {
      for (int64_t h = 0; h < p.out[1]; ++h) {
        if (!inside(0, d) || !inside(1, h)) continue;
        const double* source = image + (position(0, d) * p.in[1] + position(1, h)) * p.in[2];
        double* row = y + (d * p.out[1] + h) * p.out[2];
        for (int64_t i = begin; i < end; ++i) row[i] += weight * source[position(2, i)];
      }
    }
  }
};

void check_result(const ConvolutionProblem& p, const Operands& given, const std::vector<float>& y,
                  double rounding = 0) {
  double worst = 0;
  CHECK(y.size() == given.sums.size() + 1);
  for (size_t i = 0; i < given.sums.size(); ++i) {
    const auto m = static_cast<size_t>(static_cast<int64_t>(i) / p.out_size() % p.y_channels());
    const double want = reference_activation(
        p.act, given.sums[i] + double(given.b[m]) + double(p.has_residual ? given.r[i] : 0.0f));
    const double error = std::abs(want - double(y[i])) - rounding * std::abs(want);
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  CHECK(y.back() == 77.0f);
  CHECK(worst < 5e-5);
}

// Returns the vectors of all implementations of a problem on this machine.
std::vector<cpu::FusedConvVectors> ways(const ConvolutionProblem& p) {
  using Algorithm = cpu::FusedConvVectors;
  if (p.C == 1 && p.M == 1) return {Algorithm::kPixels};
  std::vector<Algorithm> all = {Algorithm::kPixels, Algorithm::kChannels};
  if (cpu::fused_conv_choose<float>(p) == Algorithm::kTiles) all.push_back(Algorithm::kTiles);
  return all;
}

void compare(const ConvolutionProblem& p, const Operands& given, size_t workers) {
  std::vector<float> y(given.sums.size() + 1);
  ThreadParallel pool(workers);
  for (const auto vectors : ways(p)) {
    HeapWorkspace arena;
    void* weights = arena.allocate(cpu::fused_conv_weights<float>(p, vectors));
    cpu::fused_conv_prepare(p, vectors, given.w.data(), weights);
    std::fill(y.begin(), y.end(), 77.0f);
    cpu::fused_conv<float>(p, vectors, given.x.data(), weights, given.b.data(),
                           p.has_residual ? given.r.data() : nullptr, nullptr, y.data(), pool,
                           arena.allocate(cpu::fused_conv_workspace<float>(p, vectors, workers)));
    check_result(p, given, y);
  }
}

// Returns NCHW2c: for each pixel two channels rounded to bfloat16.
std::vector<uint32_t> to_nchw2c(const std::vector<float>& x, int64_t planes, int64_t size) {
  const auto half = [](float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  };
  std::vector<uint32_t> words(static_cast<size_t>(planes / 2 * size));
  for (int64_t i = 0; i < planes / 2 * size; ++i) {
    const auto low = static_cast<size_t>(i / size * 2 * size + i % size);
    words[static_cast<size_t>(i)] = half(x[low]) | half(x[low + static_cast<size_t>(size)]) << 16;
  }
  return words;
}

// A copy of values that ends at an inaccessible page.
template <class T>
class AtTheEnd {
 public:
  explicit AtTheEnd(const std::vector<T>& numbers) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = numbers.size() * sizeof(T), whole = (bytes + page - 1) / page * page;
    bytes_ = whole + page;
    memory_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(memory_ != MAP_FAILED);
    if (whole > 0) REQUIRE(mprotect(memory_, whole, PROT_READ | PROT_WRITE) == 0);
    data_ = reinterpret_cast<T*>(memory_ + whole - bytes);
    std::copy(numbers.begin(), numbers.end(), data_);
  }
  ~AtTheEnd() { munmap(memory_, bytes_); }
  AtTheEnd(const AtTheEnd&) = delete;
  AtTheEnd& operator=(const AtTheEnd&) = delete;
  const T* data() const { return data_; }

 private:
  char* memory_;
  size_t bytes_;
  T* data_;
};

// From float32 and NCHW2c inputs, to float32, to NCHW2c, and to both.
void compare_nchw2c(ConvolutionProblem p, const Operands& given, size_t workers) {
  const auto size = static_cast<int64_t>(given.sums.size());
  const bool planes = p.C == 1 && p.M == 1;
  const bool even_x = planes || p.C % 2 == 0, even_y = planes || p.M % 2 == 0;
  const AtTheEnd<float> numbers(given.x), others(std::vector<float>(given.x.size(), 0.5f));
  const AtTheEnd<uint32_t> words(even_x ? to_nchw2c(given.x, p.N * p.x_channels(), p.in_size())
                                        : std::vector<uint32_t>());
  ThreadParallel pool(workers);
  for (const auto vectors : ways(p)) {
    for (const int which : {0, 1, 2, 3, 4, 5}) {
      p.x_nchw2c = which >= 3;
      const bool wants_y = which % 3 != 1, wants_nchw2c = which % 3 != 0;
      if ((p.x_nchw2c && !even_x) || (wants_nchw2c && !even_y)) continue;
      HeapWorkspace arena;
      void* weights = arena.allocate(cpu::fused_conv_weights<float>(p, vectors));
      cpu::fused_conv_prepare(p, vectors, given.w.data(), weights);
      std::vector<float> y(static_cast<size_t>(size) + 1, 77.0f);
      std::vector<uint32_t> pairs(static_cast<size_t>(size / 2) + 1, 77);
      // A schedule does not depend on the tensors: it is first used with other tensors.
      const auto schedule = workers > 1 ? cpu::conv_schedule<float>(p, vectors, workers) : nullptr;
      for (const bool first : {true, false}) {
        if (first && schedule == nullptr) continue;
        const void* x = first        ? static_cast<const void*>(others.data())
                        : p.x_nchw2c ? static_cast<const void*>(words.data())
                                     : numbers.data();
        cpu::nchw2c_conv<float>(p, vectors, schedule.get(), x, weights, given.b.data(),
                                p.has_residual ? given.r.data() : nullptr, wants_y ? y.data() : nullptr,
                                wants_nchw2c ? pairs.data() : nullptr, pool,
                                arena.allocate(cpu::nchw2c_conv_workspace<float>(p, vectors, workers)));
      }
      if (wants_y) check_result(p, given, y);
      if (!wants_nchw2c) continue;
      CHECK(pairs.back() == 77);
      pairs.pop_back();
      if (wants_y) {
        y.pop_back();
        CHECK(pairs == to_nchw2c(y, p.N * p.y_channels(), p.out_size()));
      } else {
        for (size_t i = 0; i < y.size() - 1; ++i) {
          const auto at = static_cast<int64_t>(i);
          const int64_t plane = at / p.out_size();
          const uint32_t word = pairs[static_cast<size_t>(plane / 2 * p.out_size() + at % p.out_size())];
          const uint32_t bits = plane % 2 == 0 ? word << 16 : word & 0xffff0000u;
          std::memcpy(&y[i], &bits, sizeof bits);
        }
        check_result(p, given, y, 0x1p-8);
      }
    }
  }
}

TEST_CASE("NCHW2c convolutions of many shapes") {
  std::vector<ConvolutionProblem> problems(21);
  for (ConvolutionProblem& p : problems) {
    p.bfloat16 = true;
    p.C = p.M = 20;
    p.in = {1, 9, 13};
    p.kernel = {1, 3, 3};
    p.pad = {0, 1, 1};
  }
  problems[1].C = 3;
  problems[1].M = 32;
  problems[1].stride = {1, 2, 2};
  problems[1].N = 2;
  problems[2].groups = 6;  // single planes
  problems[2].C = problems[2].M = 1;
  problems[2].N = 2;
  problems[3] = problems[2];
  problems[3].in = {1, 35, 41};
  problems[3].stride = {1, 2, 2};
  problems[4] = problems[2];
  problems[4].kernel = {1, 5, 2};
  problems[4].pad = {0, 2, 3};
  problems[4].dilation = {1, 2, 1};
  problems[4].stride = {1, 1, 3};
  problems[5].kernel = {1, 1, 1};
  problems[5].pad = {};
  problems[5].C = 33;
  problems[5].M = 72;
  problems[5].in = {1, 7, 7};
  problems[6].groups = 3;
  problems[6].C = 6;
  problems[6].M = 34;
  problems[7].M = 7;          // no NCHW2c output
  problems[8] = problems[2];  // two rows of y in a vector
  problems[8].in = {1, 11, 7};
  problems[9] = problems[8];
  problems[9].kernel = {1, 5, 5};
  problems[9].pad = {0, 2, 2};
  problems[9].stride = {1, 2, 2};
  problems[10] = problems[9];
  problems[10].in = {1, 6, 19};
  problems[10].stride = {1, 1, 1};
  problems[11].C = 200;  // too many words to be gathered
  problems[11].M = 6;
  problems[11].in = {1, 13, 13};
  problems[12].C = 5;  // the last channel is multiplied by two columns at a time
  problems[12].M = 34;
  problems[12].kernel = {1, 2, 7};
  problems[12].dilation = {1, 1, 2};
  problems[12].pad = {0, 0, 5};
  problems[14] = problems[5];  // NCHW2c input that is read in place
  problems[14].C = 34;
  problems[14].N = 2;
  problems[15] = problems[14];
  problems[15].in = {1, 40, 70};  // in several strips
  problems[15].C = 96;
  problems[15].M = 30;
  problems[16] = problems[14];
  problems[16].in = {3, 4, 5};
  problems[16].C = 2;
  const ConvolutionProblem::Axes sizes[] = {{1, 3, 11}, {1, 8, 8}, {1, 5, 5}, {1, 1, 49}};
  for (size_t i = 0; i < 4; ++i) {
    problems[17 + i] = problems[14];
    problems[17 + i].in = sizes[i];
  }
  problems[13].C = 3;
  problems[13].kernel = {1, 1, 4};
  problems[13].stride = {1, 1, 3};
  for (ConvolutionProblem& p : problems) {
    for (size_t axis = 0; axis < 3; ++axis) p.out[axis] = p.out_of(axis, p.pad[axis]);
  }
  using Kind = ActivationKind;
  for (ConvolutionProblem& p : problems) {
    const Operands given(p);
    for (const size_t workers : {1, 3}) {
      p.has_residual = workers == 3;
      for (const Activation& act : {Activation{Kind::kClip, -0.25f, 0.5f}, Activation{Kind::kSilu, 0, 0},
                                    Activation{Kind::kLeakyRelu, -0.5f, 0}}) {
        p.act = act;
        compare_nchw2c(p, given, workers);
      }
    }
  }
}

TEST_CASE("images multiplied in one GEMM, and remaining images") {
  std::array<ConvolutionProblem, 3> problems;  // two to five images fill the caches of three threads
  problems[0].C = 16;
  problems[0].in = {1, 60, 81};
  problems[1].C = 48;
  problems[1].in = {1, 7, 7};
  problems[2].C = 24;
  problems[2].in = {1, 52, 62};
  for (ConvolutionProblem& p : problems) {
    p.N = 5;
    p.M = 36;
    const int64_t side = &p == &problems[2] ? 1 : 3;
    p.kernel = {1, side, side};
    p.pad = {0, side / 2, side / 2};
    for (size_t axis = 0; axis < 3; ++axis) p.out[axis] = p.out_of(axis, p.pad[axis]);
    p.act = {ActivationKind::kRelu, 0, 0};
    for (const bool bfloat16 : {false, true}) {
      p.bfloat16 = bfloat16;
      compare(p, Operands(p), 3);
    }
    compare_nchw2c(p, Operands(p), 3);
  }
}

TEST_CASE("an infinite element makes the outputs of its windows infinite, and no other") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ConvolutionProblem p;
  p.bfloat16 = true;
  p.M = 2;
  p.in = {1, 1, 9};
  ThreadParallel pool(1);
  for (const auto& [channels, width] : {std::array<int64_t, 2>{1, 3}, {3, 3}, {3, 4}, {2, 3}, {5, 5}}) {
    p.C = channels;
    p.kernel = {1, 1, width};
    p.out = {1, 1, 10 - width};
    const auto w = random_tensor<float>(p.y_channels() * p.C * p.taps(), 2, 0.2f);
    const std::vector<float> b(2);
    for (const auto vectors : ways(p)) {
      HeapWorkspace arena;
      void* weights = arena.allocate(cpu::fused_conv_weights<float>(p, vectors));
      cpu::fused_conv_prepare(p, vectors, w.data(), weights);
      void* workspace = arena.allocate(cpu::fused_conv_workspace<float>(p, vectors, 1));
      for (int64_t at = 0; at < 9; ++at) {
        std::vector<float> x(static_cast<size_t>(p.x_channels() * 9), 1.0f),
            y(static_cast<size_t>(2 * p.out[2]));
        x[static_cast<size_t>((p.C - 1) * 9 + at)] = kInfinity;
        cpu::fused_conv<float>(p, vectors, x.data(), weights, b.data(), nullptr, nullptr, y.data(), pool,
                               workspace);
        for (int64_t i = 0; i < 2 * p.out[2]; ++i) {
          const int64_t m = i / p.out[2], tap = at - i % p.out[2];
          const float got = y[static_cast<size_t>(i)];
          if (tap < 0 || tap >= width) {
            CHECK(std::isfinite(got));
          } else {
            CHECK(got == kInfinity * w[static_cast<size_t>(((m + 1) * p.C - 1) * width + tap)]);
          }
        }
      }
    }
  }
}

TEST_CASE("depthwise convolutions that keep the size of planes") {
  ConvolutionProblem p;
  p.bfloat16 = true;
  p.groups = 4;
  p.N = 2;
  for (const int64_t kernel : {3, 5}) {
    p.kernel = {1, kernel, kernel};
    for (const auto& [height, width] :
         {std::array<int64_t, 2>{1, 1}, {2, 3}, {7, 7}, {3, 17}, {33, 4}, {4, 16}}) {
      p.in = p.out = {1, height, width};
      for (const int64_t pad : {kernel / 2, int64_t{0}, kernel - 1}) {
        p.pad = {0, pad, kernel - 1 - pad};
        const Operands given(p);
        for (const ActivationKind kind :
             {ActivationKind::kNone, ActivationKind::kRelu, ActivationKind::kSilu}) {
          p.act.kind = kind;
          p.has_residual = kind == ActivationKind::kNone && pad == 0;
          compare_nchw2c(p, given, 1);
        }
      }
    }
  }
}

TEST_CASE("infinite numbers of a plane stay in their windows") {
  ConvolutionProblem p;
  p.bfloat16 = p.x_nchw2c = true;
  p.groups = 2;
  p.kernel = {1, 3, 3};
  p.pad = {0, 1, 1};
  p.in = p.out = {1, 6, 5};
  const auto w = random_tensor<float>(p.groups * p.taps(), 2, 0.2f);
  const std::vector<float> b(2);
  ThreadParallel pool(1);
  const auto vectors = cpu::FusedConvVectors::kPixels;
  HeapWorkspace arena;
  void* weights = arena.allocate(cpu::fused_conv_weights<float>(p, vectors));
  cpu::fused_conv_prepare(p, vectors, w.data(), weights);
  for (int64_t at = 0; at < p.in_size(); ++at) {
    std::vector<float> y(static_cast<size_t>(2 * p.out_size()));
    std::vector<uint32_t> x(static_cast<size_t>(p.in_size()), 0x3f803f80);
    x[static_cast<size_t>(at)] = 0x3f807f80;  // in the first plane
    cpu::nchw2c_conv<float>(p, vectors, nullptr, x.data(), weights, b.data(), nullptr, y.data(), nullptr,
                            pool, arena.allocate(cpu::nchw2c_conv_workspace<float>(p, vectors, 1)));
    for (int64_t i = 0; i < 2 * p.out_size(); ++i) {
      const bool near = i < p.out_size() && std::abs(i / 5 - at / 5) < 2 && std::abs(i % 5 - at % 5) < 2;
      CHECK(std::isfinite(y[static_cast<size_t>(i)]) != near);
    }
  }
}

TEST_CASE("fused conv of many shapes") {
  std::vector<ConvolutionProblem> problems(19);
  ConvolutionProblem::Axes ends[19] = {};  // trailing padding
  for (ConvolutionProblem& p : problems) {
    p.C = p.M = 20;
    p.in = {1, 9, 13};
  }
  problems[0].kernel = {1, 3, 3};
  problems[0].pad = ends[0] = {0, 1, 1};
  problems[1].stride = {1, 2, 2};
  problems[1].N = 2;
  problems[2].kernel = {1, 5, 3};
  problems[2].stride = {1, 2, 3};
  problems[2].dilation = {1, 1, 2};
  ends[2] = {0, 2, 1};
  problems[3].kernel = {1, 3, 3};
  problems[3].groups = 20;
  problems[3].C = problems[3].M = 1;
  problems[3].stride = {1, 1, 2};
  problems[3].pad = {0, 1, 1};
  problems[4].groups = 4;
  problems[4].C = 5;
  problems[4].M = 2;
  problems[4].kernel = {1, 2, 2};
  problems[5].in = {4, 5, 6};
  problems[5].kernel = {2, 3, 2};
  problems[5].stride = {2, 1, 1};
  problems[5].pad = {1, 0, 1};
  problems[6].C = 7;
  problems[6].M = 71;
  problems[6].in = {1, 17, 19};
  problems[7].in = {1, 3, 131};
  problems[7].kernel = {1, 3, 3};
  problems[7].pad = ends[7] = {0, 1, 1};
  problems[8].pad = {0, 1, 2};
  problems[8].stride = {1, 2, 1};
  problems[9].C = 96;  // computed in strips of rows
  problems[9].M = 5;
  problems[9].in = {1, 70, 61};
  problems[9].kernel = {1, 3, 3};
  problems[9].stride = {1, 2, 2};
  problems[9].pad = ends[9] = {0, 1, 1};
  problems[10].C = 40;  // computed in strips of columns
  problems[10].M = 6;
  problems[10].in = {1, 1, 4001};
  problems[10].kernel = {1, 1, 5};
  problems[10].dilation = {1, 1, 3};
  problems[10].pad = {0, 0, 4};
  problems[11].groups = 3;  // single planes
  problems[11].C = problems[11].M = 1;
  problems[11].in = {1, 150, 70};
  problems[11].kernel = {1, 7, 7};
  problems[11].pad = ends[11] = {0, 3, 3};
  problems[12].in = {1, 7, 7};
  problems[12].stride = {1, 3, 4};
  problems[12].kernel = {1, 5, 2};
  problems[12].pad = {0, 2, 0};
  problems[13].C = 33;  // vectors of channels
  problems[13].M = 71;
  problems[13].in = {1, 7, 7};
  problems[13].kernel = {1, 3, 3};
  problems[13].pad = ends[13] = {0, 1, 1};
  problems[14].N = 2;
  problems[14].groups = 2;
  problems[14].C = 5;
  problems[14].M = 40;
  problems[14].in = {1, 9, 8};
  problems[14].kernel = {1, 2, 3};
  problems[14].stride = {1, 2, 2};
  problems[15].C = 65;
  problems[15].M = 64;
  problems[15].in = {1, 1, 3};
  problems[16].C = 1;  // a one-dimensional window with more taps than outputs
  problems[16].M = 37;
  problems[16].in = {1, 1, 333};
  problems[16].kernel = {1, 1, 65};
  problems[16].stride = {1, 1, 16};
  problems[16].pad = {0, 0, 5};
  problems[17].groups = 3;  // one input channel and two filters in each group
  problems[17].C = 1;
  problems[17].M = 2;
  problems[17].in = {1, 15, 20};
  problems[17].kernel = {1, 3, 4};
  problems[17].pad = ends[17] = {0, 1, 1};
  problems[18].C = 3;  // the stride uses every second element of some vectors
  problems[18].in = {1, 7, 101};
  problems[18].kernel = {1, 3, 3};
  problems[18].stride = {1, 2, 2};
  problems[18].pad = ends[18] = {0, 1, 1};
  for (size_t i = 0; i < problems.size(); ++i) {
    for (size_t axis = 0; axis < 3; ++axis) {
      problems[i].out[axis] = problems[i].out_of(axis, ends[i][axis]);
    }
  }
  // The kernels apply some activations in registers, others to stored results.
  using Kind = ActivationKind;
  const Activation activations[] = {
      {Kind::kRelu, 0, 0}, {Kind::kLeakyRelu, -0.5f, 0}, {Kind::kClip, -0.25f, 0.5f}, {Kind::kSilu, 0, 0}};
  for (ConvolutionProblem& p : problems) {
    for (const bool bfloat16 : {false, true}) {
      p.bfloat16 = bfloat16;
      const Operands given(p);
      for (const size_t workers : {1, 3}) {
        p.has_residual = workers == 3;
        for (const Activation& act : activations) {
          p.act = act;
          compare(p, given, workers);
        }
      }
    }
  }
}

}  // namespace
}  // namespace graphopt::test
