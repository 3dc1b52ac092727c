// WinogradConv against a direct convolution in double.
#include "operators/conv/winograd/cpu.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using cpu::ConvAlgorithm;

constexpr ConvAlgorithm kAlgorithms[] = {ConvAlgorithm::kDirect, ConvAlgorithm::kF2x2, ConvAlgorithm::kF4x4,
                                         ConvAlgorithm::kF4x4Rows};

std::string text(const ConvolutionProblem& p, ConvAlgorithm algorithm, double error) {
  const auto n = [](int64_t v) { return std::to_string(v) + " "; };
  return "algorithm " + n(static_cast<int>(algorithm)) + "N " + n(p.N) + "C " + n(p.C) + "H " + n(p.H()) +
         "W " + n(p.W()) + "M " + n(p.M) + "pads " + n(p.pad[1]) + n(p.pad[2]) + "Y " + n(p.OH()) +
         n(p.OW()) + "residual " + n(p.has_residual) + "act " + n(static_cast<int>(p.act.kind)) + "error " +
         std::to_string(error * 1e6) + "e-6";
}

template <class T>
struct Case {
  ConvolutionProblem p;
  std::vector<T> x, w, bias, residual;

  explicit Case(const ConvolutionProblem& problem, float scale = 1.0f)
      : p(problem),
        x(random_tensor<T>(p.N * p.C * p.H() * p.W(), 1, scale)),
        w(random_tensor<T>(p.M * p.C * 9, 2, 1.0f / std::sqrt(static_cast<float>(9 * p.C)))),
        bias(random_tensor<T>(p.M, 3, scale)),
        residual(random_tensor<T>(p.has_residual ? p.N * p.M * p.OH() * p.OW() : 0, 4, scale)) {}

  // Row by row, which compilers vectorize: the references take most of the time of these tests.
  std::vector<double> reference() const {
    const auto wide = [](const std::vector<T>& from) {
      std::vector<double> to;
      to.reserve(from.size());
      for (const T value : from) to.push_back(static_cast<float>(value));
      return to;
    };
    const std::vector<double> image = wide(x), filters = wide(w), first = wide(bias), added = wide(residual);
    std::vector<double> y(static_cast<size_t>(p.N * p.M * p.OH() * p.OW()));
    for (int64_t n = 0; n < p.N; ++n) {
      for (int64_t m = 0; m < p.M; ++m) {
        double* plane = y.data() + (n * p.M + m) * p.OH() * p.OW();
        std::fill_n(plane, p.OH() * p.OW(), first[static_cast<size_t>(m)]);
        for (int64_t c = 0; c < p.C; ++c) {
          const double* from = image.data() + (n * p.C + c) * p.H() * p.W();
          for (int64_t tap = 0; tap < 9; ++tap) {
            const double weight = filters[static_cast<size_t>((m * p.C + c) * 9 + tap)];
            const int64_t down = tap / 3 - p.pad[1], right = tap % 3 - p.pad[2];
            const int64_t begin = std::max<int64_t>(0, -right), end = std::min(p.OW(), p.W() - right);
            for (int64_t oh = std::max<int64_t>(0, -down); oh < std::min(p.OH(), p.H() - down); ++oh) {
              double* row = plane + oh * p.OW();
              const double* source = from + (oh + down) * p.W();
              for (int64_t ow = begin; ow < end; ++ow) row[ow] += weight * source[ow + right];
            }
          }
        }
      }
    }
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = reference_activation(p.act, p.has_residual ? y[i] + added[i] : y[i]);
    }
    return y;
  }

  std::vector<T> run(ConvAlgorithm algorithm, size_t workers) const {
    // The weights are prepared for an unknown shape, as in a model with dynamic dimensions.
    ConvolutionProblem unknown = p;
    unknown.N = unknown.in[1] = unknown.in[2] = 0;
    HeapWorkspace heap;
    void* weights = heap.allocate(cpu::winograd_conv_weights<T>(unknown, algorithm));
    cpu::winograd_conv_prepare(unknown, algorithm, w.data(), weights);
    ThreadParallel parallel(workers);
    const size_t n = static_cast<size_t>(p.N * p.M * p.OH() * p.OW());
    std::vector<T> y(n + 64, static_cast<T>(-77.0f));
    cpu::winograd_conv<T>(p, algorithm, x.data(), weights, bias.data(),
                          p.has_residual ? residual.data() : nullptr, nullptr, y.data(), parallel,
                          heap.allocate(cpu::winograd_conv_workspace<T>(p, algorithm, workers)));
    for (size_t i = n; i < y.size(); ++i)
      CHECK_MESSAGE(static_cast<float>(y[i]) == -77.0f, text(p, algorithm, 0));
    y.resize(n);
    return y;
  }
};

bool has_large_tiles(ConvAlgorithm algorithm) {
  return algorithm == ConvAlgorithm::kF4x4 || algorithm == ConvAlgorithm::kF4x4Rows;
}

template <class T>
double limit(ConvAlgorithm algorithm) {
  if (has_large_tiles(algorithm)) return 4e-5;
  return std::is_same_v<T, float> ? 1e-5 : 2e-3;
}

template <class T>
void check_case(const ConvolutionProblem& p, size_t workers, float scale = 1.0f) {
  const Case<T> c(p, scale);
  const std::vector<double> expected = c.reference();
  for (ConvAlgorithm algorithm : kAlgorithms) {
    if (!std::is_same_v<T, float> && has_large_tiles(algorithm)) continue;
    const double error = relative_error(c.run(algorithm, workers), expected);
    CHECK_MESSAGE(error < limit<T>(algorithm), text(p, algorithm, error));
  }
}

template <class T>
void check_shapes() {
  const std::vector<int64_t> same = {1, 1, 1, 1};
  for (int64_t c : {1, 3, 7, 16, 17, 40}) {
    for (int64_t m : {1, 5, 16, 33, 64}) check_case<T>(convolution_3x3(1, c, 9, 11, m, same), 2);
  }
  for (int64_t h : {1, 2, 3, 4, 5, 13}) {
    for (int64_t w : {1, 2, 3, 6, 7, 16, 17, 63, 70}) check_case<T>(convolution_3x3(2, 5, h, w, 6, same), 1);
  }
  for (const std::vector<int64_t>& pads :
       {std::vector<int64_t>{0, 0, 0, 0}, {2, 0, 1, 3}, {0, 5, 7, 0}, {20, 1, 0, 33}}) {
    check_case<T>(convolution_3x3(3, 4, 6, 5, 18, pads), 2);
    check_case<T>(convolution_3x3(1, 20, 3, 3, 3, pads), 1);
  }
  check_case<T>(convolution_3x3(2, 130, 7, 7, 100, same), 3);
  check_case<T>(convolution_3x3(1, 48, 30, 34, 48, same), 4);
  // Output larger than the cache, in rows of whole cache lines and in others; the second also with a shared
  // input.
  check_case<T>(convolution_3x3(1, 4, 131, 224, 21, same), 2);
  check_case<T>(convolution_3x3(2, 9, 90, 99, 34, same), 1);
  check_case<T>(convolution_3x3(1, 200, 48, 64, 180, same), 3);
}

}  // namespace

TEST_CASE("winograd shapes float") { check_shapes<float>(); }
TEST_CASE("winograd shapes half") { check_shapes<half>(); }

TEST_CASE("winograd epilogue") {
  for (const Activation& act : every_activation()) {
    for (bool residual : {false, true}) {
      ConvolutionProblem p = convolution_3x3(2, 6, 7, 21, 19, {1, 1, 1, 1});
      p.act = act;
      p.has_residual = residual;
      check_case<float>(p, 2);
      check_case<half>(p, 2);
    }
  }
}

// Blocks of tiles that begin and end inside a row of the image: their rows of pixels are not whole vectors,
// and the epilogue of one row must not affect the next.
TEST_CASE("winograd epilogue of partial rows") {
  for (const Activation& act : every_activation()) {
    for (ConvolutionProblem p :
         {convolution_3x3(1, 3, 64, 64, 4, {1, 1, 1, 1}), convolution_3x3(1, 5, 40, 61, 17, {1, 0, 1, 2})}) {
      p.act = act;
      for (bool residual : {false, true}) {
        p.has_residual = residual;
        check_case<float>(p, 1);
        check_case<float>(p, 2);
      }
    }
  }
}

TEST_CASE("winograd large values and zeros") {
  ConvolutionProblem p = convolution_3x3(1, 12, 10, 10, 12, {1, 1, 1, 1});
  check_case<float>(p, 1, 1e15f);
  check_case<float>(p, 1, 1e-15f);
  check_case<half>(p, 1, 1000.0f);
  check_case<float>(p, 1, 0.0f);
}

TEST_CASE("winograd is the same with any number of threads") {
  // Few tiles and many channels share their input; many tiles get separate blocks.
  for (const ConvolutionProblem& p :
       {convolution_3x3(1, 300, 9, 9, 200, {1, 1, 1, 1}), convolution_3x3(2, 20, 60, 60, 40, {1, 1, 1, 1})}) {
    const Case<float> c(p);
    for (ConvAlgorithm algorithm : kAlgorithms) {
      const std::vector<float> one = c.run(algorithm, 1);
      for (size_t workers : {2, 5}) CHECK_MESSAGE(c.run(algorithm, workers) == one, text(p, algorithm, 0));
    }
  }
}

TEST_CASE("winograd empty") {
  for (const ConvolutionProblem& p :
       {convolution_3x3(0, 3, 8, 8, 4, {1, 1, 1, 1}), convolution_3x3(1, 3, 8, 8, 0, {1, 1, 1, 1}),
        convolution_3x3(1, 3, 2, 8, 4, {0, 1, 0, 1}), convolution_3x3(1, 3, 8, 0, 4, {1, 1, 1, 1})}) {
    for (ConvAlgorithm algorithm : kAlgorithms) CHECK(Case<float>(p).run(algorithm, 2).empty());
  }
}

// No input channels: an empty sum, plus the bias.
TEST_CASE("winograd no channels") { check_case<float>(convolution_3x3(1, 0, 5, 5, 4, {1, 1, 1, 1}), 1); }

}  // namespace graphopt::test
