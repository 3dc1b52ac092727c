// QuantizedConv against integer sums and a definition in double.
#include <sys/mman.h>
#include <unistd.h>

#include "operators/conv/quantized_conv/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

struct Sizes {
  int64_t N, H, W, C, M, groups, KH, KW, stride = 1, dilation = 1, top = 0, left = 0, bottom = 0, right = 0;
};

// A copy of bytes that ends before a page without access.
class BytesBeforePage {
 public:
  explicit BytesBeforePage(const std::vector<uint8_t>& bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t used = (bytes.size() + page - 1) / page * page;
    size_ = used + page;
    memory_ = static_cast<uint8_t*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(mprotect(memory_ + used, page, PROT_NONE) == 0);
    first_ = memory_ + used - bytes.size();
    std::copy(bytes.begin(), bytes.end(), first_);
  }
  BytesBeforePage(const BytesBeforePage&) = delete;
  BytesBeforePage& operator=(const BytesBeforePage&) = delete;
  ~BytesBeforePage() { munmap(memory_, size_); }
  const uint8_t* get() const { return first_; }

 private:
  size_t size_;
  uint8_t *memory_, *first_;
};

struct Convolution {
  ConvolutionProblem p;
  cpu::ConvQuantization q = {};
  std::vector<uint8_t> x;
  std::vector<int8_t> w;
  std::vector<float> w_scale;
  std::vector<int32_t> bias;

  Convolution(const Sizes& s, bool is_signed) {
    p.channels_last = true;
    p.N = s.N, p.groups = s.groups, p.C = s.C / s.groups, p.M = s.M / s.groups;
    p.in = {1, s.H, s.W}, p.kernel = {1, s.KH, s.KW};
    p.stride = {1, s.stride, s.stride}, p.dilation = {1, s.dilation, s.dilation};
    p.pad = {0, s.top, s.left};
    p.out = {1, p.out_of(1, s.bottom), p.out_of(2, s.right)};
    std::mt19937 generator(static_cast<uint32_t>(s.H * 31 + s.W * 7 + s.C + s.M + s.KH));
    std::uniform_int_distribution<int> byte(0, 255);
    x.resize(static_cast<size_t>(s.N * s.H * s.W * s.C));
    for (uint8_t& value : x) value = static_cast<uint8_t>(byte(generator));
    w.resize(static_cast<size_t>(s.M * p.C * p.taps()));
    for (int8_t& value : w) value = static_cast<int8_t>(byte(generator) - 128);
    const float spread = 1e-3f / std::sqrt(static_cast<float>(std::max<int64_t>(p.C * p.taps(), 1)));
    for (int64_t m = 0; m < s.M; ++m) {
      w_scale.push_back(spread * (0.5f + static_cast<float>(byte(generator)) / 255));
      bias.push_back(100 * (byte(generator) - 128));
    }
    q = {is_signed, byte(generator), byte(generator), 0.7f, 0.11f, w_scale.data(), bias.data()};
  }

  int64_t sum(int64_t n, int64_t oy, int64_t ox, int64_t m) const {
    const int64_t group = m / p.M;
    int64_t total = 0;
    for (int64_t ky = 0; ky < p.kernel[1]; ++ky) {
      for (int64_t kx = 0; kx < p.kernel[2]; ++kx) {
        const int64_t y = oy * p.stride[1] + ky * p.dilation[1] - p.pad[1];
        const int64_t at = ox * p.stride[2] + kx * p.dilation[2] - p.pad[2];
        if (y < 0 || at < 0 || y >= p.H() || at >= p.W()) continue;
        for (int64_t c = 0; c < p.C; ++c) {
          const size_t i =
              static_cast<size_t>(((n * p.H() + y) * p.W() + at) * p.x_channels() + group * p.C + c);
          const int value = q.is_signed ? static_cast<int8_t>(x[i]) + 128 : x[i];
          total += static_cast<int64_t>(value - q.x_zero) *
                   w[static_cast<size_t>(((m * p.C + c) * p.kernel[1] + ky) * p.kernel[2] + kx)];
        }
      }
    }
    return total;
  }

  // Y before rounding, in steps of its scale.
  double exact(int64_t sum, int64_t m) const {
    const auto channel = static_cast<size_t>(m);
    const double value = static_cast<double>(sum + bias[channel]) * q.x_scale * w_scale[channel];
    return reference_activation(p.act, value) / q.y_scale + q.y_zero;
  }

  std::vector<uint8_t> run(size_t workers) const {
    std::vector<uint8_t> y(static_cast<size_t>(p.N * p.out_size() * p.y_channels()) + 1, 77);
    ThreadParallel pool(workers);
    HeapWorkspace arena;
    const BytesBeforePage tight(x);
    void* weights = arena.allocate(cpu::quantized_conv_weights<uint8_t>(p));
    cpu::quantized_conv_prepare<uint8_t>(p, w.data(), weights);
    cpu::quantized_conv<uint8_t>(p, q, tight.get(), weights, y.data(), pool,
                                 arena.allocate(cpu::quantized_conv_workspace<uint8_t>(p, q.is_signed)));
    CHECK(y.back() == 77);
    y.pop_back();
    return y;
  }

  void compare() const {
    const std::vector<uint8_t> y = run(1);
    CHECK(y == run(3));
    size_t i = 0, wrong = 0, saturated = 0;
    for (int64_t n = 0; n < p.N; ++n) {
      for (int64_t pixel = 0; pixel < p.out_size(); ++pixel) {
        for (int64_t m = 0; m < p.y_channels(); ++m, ++i) {
          const double wanted = exact(sum(n, pixel / p.OW(), pixel % p.OW(), m), m);
          const double level = std::min(std::max(std::nearbyint(wanted), 0.0), 255.0);
          const int got = q.is_signed ? static_cast<int8_t>(y[i]) + 128 : y[i];
          const bool tied = std::abs(wanted - std::floor(wanted) - 0.5) < 1e-4;
          saturated += level == 0 || level == 255;
          wrong += std::abs(got - level) > (tied ? 1 : 0);
        }
      }
    }
    CHECK(wrong == 0);
    if (y.size() > 1000 && p.act.kind == ActivationKind::kNone) CHECK(saturated < y.size());
  }
};

void compare_both_types(const Sizes& sizes) {
  for (const bool is_signed : {false, true}) {
    CAPTURE(sizes.H);
    CAPTURE(sizes.C);
    CAPTURE(sizes.M);
    CAPTURE(sizes.KH);
    CAPTURE(is_signed);
    Convolution(sizes, is_signed).compare();
  }
}

TEST_CASE("quantized convolution of odd sizes") {
  for (const Sizes& sizes : {Sizes{1, 1, 1, 1, 1, 1, 1, 1},
                             {2, 9, 7, 3, 16, 1, 3, 3, 2, 1, 1, 1, 1, 1},
                             {1, 20, 31, 3, 20, 1, 7, 7, 2, 1, 3, 3, 3, 3},
                             {1, 14, 14, 64, 70, 1, 3, 3, 1, 1, 1, 1, 1, 1},
                             {3, 5, 15, 32, 33, 1, 1, 1},
                             {2, 8, 9, 20, 48, 1, 1, 1, 2},
                             {1, 6, 5, 7, 5, 1, 1, 1, 1, 1, 1, 0, 0, 2},
                             {1, 12, 13, 6, 40, 1, 3, 2, 1, 2, 2, 0, 1, 3},
                             {1, 3, 40, 8, 16, 1, 1, 5, 1, 1, 0, 9, 0, 9},
                             {0, 4, 4, 8, 8, 1, 1, 1},
                             {1, 4, 4, 0, 8, 1, 1, 1}}) {
    compare_both_types(sizes);
  }
}

TEST_CASE("quantized depthwise convolution of odd sizes") {
  for (const Sizes& sizes : {Sizes{1, 9, 11, 96, 96, 96, 3, 3, 1, 1, 1, 1, 1, 1},
                             {2, 12, 13, 37, 37, 37, 3, 3, 2, 1, 0, 0, 1, 1},
                             {1, 10, 15, 130, 130, 130, 5, 5, 1, 1, 2, 2, 2, 2},
                             {1, 15, 15, 64, 64, 64, 5, 5, 2, 1, 2, 2, 2, 2},
                             {1, 8, 9, 20, 20, 20, 7, 1, 1, 1, 3, 0, 3, 0},
                             {1, 13, 14, 3, 3, 3, 3, 3, 1, 2, 2, 2, 2, 2},
                             {1, 2, 2, 5, 5, 5, 3, 3, 1, 1, 4, 4, 4, 4}}) {
    compare_both_types(sizes);
  }
}

// Sums of two products exceed 16 bits, where vpmaddubsw saturates.
TEST_CASE("quantized convolution of the largest bytes") {
  for (const int64_t groups : {1, 40}) {
    for (const int8_t weight : {int8_t{127}, int8_t{-128}}) {
      Convolution conv({1, 5, 6, 40, 40, groups, 3, 3, 1, 1, 1, 1, 1, 1}, false);
      std::fill(conv.w.begin(), conv.w.end(), weight);
      std::fill(conv.x.begin(), conv.x.end(), uint8_t{255});
      conv.q.x_zero = 0, conv.q.y_zero = 128, conv.q.y_scale = groups == 1 ? 8.0f : 1.0f;
      conv.compare();
    }
  }
}

TEST_CASE("quantized convolution of ties and of values beyond the levels") {
  Convolution ties({1, 16, 16, 1, 3, 1, 1, 1}, false);  // results are multiples of half a step of Y
  std::fill(ties.w.begin(), ties.w.end(), int8_t{1});
  std::fill(ties.w_scale.begin(), ties.w_scale.end(), 1.0f);
  std::fill(ties.bias.begin(), ties.bias.end(), 0);
  for (size_t i = 0; i < ties.x.size(); ++i) ties.x[i] = static_cast<uint8_t>(i);
  ties.q.x_zero = 0, ties.q.y_zero = 3, ties.q.x_scale = 0.5f, ties.q.y_scale = 1.0f;
  const std::vector<uint8_t> y = ties.run(1);
  for (size_t i = 0; i < 256; ++i)
    CHECK(y[3 * i] == static_cast<int>(std::nearbyint(static_cast<double>(i) / 2)) + 3);
  for (const float scale : {1e-30f, 1e30f}) {
    Convolution extreme({1, 5, 5, 8, 8, 1, 3, 3}, true);
    extreme.q.y_scale = scale;
    extreme.compare();
  }
}

TEST_CASE("quantized convolution with activations") {
  for (const Activation& act : every_activation()) {
    if (act.kind != ActivationKind::kRelu && act.kind != ActivationKind::kClip) continue;
    for (const bool is_signed : {false, true}) {
      Convolution conv({1, 9, 9, 16, 40, 1, 3, 3, 1, 1, 1, 1, 1, 1}, is_signed);
      conv.p.act = act;
      conv.q.y_scale = 0.004f;
      conv.compare();
    }
  }
}

}  // namespace
}  // namespace graphopt::test
