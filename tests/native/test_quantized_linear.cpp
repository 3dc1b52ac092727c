// QuantizedLinear against integer sums and a definition in double.
#include <array>

#include "operators/matmul/quantized_linear/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

struct Layer {
  QuantizedLinearProblem p;
  bool is_signed = true, has_zero_points = false;
  std::vector<float> x, scales, b;
  std::vector<uint8_t> w, zero_points;

  Layer(int64_t rows, int64_t K, int64_t N, bool is_signed, bool has_zero_points)
      : is_signed(is_signed), has_zero_points(has_zero_points) {
    p.rows = rows;
    p.K = K;
    p.N = N;
    std::mt19937 generator(static_cast<uint32_t>(rows + K + N));
    std::uniform_int_distribution<int> byte(0, 255);
    x = random_tensor<float>(rows * K, 1);
    scales = random_tensor<float>(N, 2, 0.01f);
    b = random_tensor<float>(N, 3);
    w.resize(static_cast<size_t>(K * N));
    for (uint8_t& value : w) value = static_cast<uint8_t>(byte(generator));
    zero_points.assign(static_cast<size_t>(N), is_signed ? 0 : 128);
    if (has_zero_points) {
      for (uint8_t& value : zero_points) value = static_cast<uint8_t>(byte(generator));
    }
  }

  int value_of(uint8_t byte) const { return is_signed ? static_cast<int8_t>(byte) : byte; }

  // Follows ONNX's DynamicQuantizeLinear in float, and sums in 64 bits.
  std::vector<double> expected() const {
    float least = 0, most = 0;
    for (const float v : x) least = std::min(least, v), most = std::max(most, v);
    const float scale = least == most ? 1.0f : (most - least) / 255.0f;
    const float zero = std::nearbyint(std::min(std::max(-least / scale, 0.0f), 255.0f));
    std::vector<double> y;
    for (int64_t i = 0; i < p.rows; ++i) {
      for (int64_t n = 0; n < p.N; ++n) {
        int64_t sum = 0;
        for (int64_t k = 0; k < p.K; ++k) {
          const float value = x[static_cast<size_t>(i * p.K + k)] / scale;
          const float q = std::min(std::max(std::nearbyint(value) + zero, 0.0f), 255.0f) - zero;
          const int centred =
              value_of(w[static_cast<size_t>(k * p.N + n)]) - value_of(zero_points[static_cast<size_t>(n)]);
          sum += static_cast<int64_t>(q) * centred;
        }
        const auto column = static_cast<size_t>(n);
        const double before = static_cast<double>(sum) * scale * scales[column] + b[column];
        y.push_back(reference_activation(p.act, before));
      }
    }
    return y;
  }

  std::vector<float> run(size_t workers) const {
    std::vector<float> y(static_cast<size_t>(p.rows * p.N) + 1, 77.0f);
    ThreadParallel pool(workers);
    HeapWorkspace arena;
    const cpu::WeightBytes bytes = {w.data(), zero_points.data(), is_signed};
    void* weights = arena.allocate(cpu::quantized_linear_weights<float>(p));
    cpu::quantized_linear_prepare<float>(p, bytes, weights);
    cpu::quantized_linear<float>(p, x.data(), weights, bytes, scales.data(), b.data(), y.data(), pool,
                                 arena.allocate(cpu::quantized_linear_workspace<float>(p, workers)));
    CHECK(y.back() == 77.0f);
    y.pop_back();
    return y;
  }

  void compare() const {
    const std::vector<double> wanted = expected();
    const std::vector<float> y = run(1);
    if (!wanted.empty()) CHECK(relative_error(y, wanted) < tolerance<float>());
    CHECK(y == run(3));
  }
};

TEST_CASE("quantized linear of odd sizes") {
  for (const auto& [rows, K, N] : {std::array<int64_t, 3>{1, 1, 1},
                                   {13, 7, 17},
                                   {29, 33, 70},
                                   {31, 64, 32},
                                   {2, 129, 16},
                                   {1, 37, 300},
                                   {300, 31, 3},
                                   {15, 2, 100},
                                   {3, 0, 5},
                                   {0, 3, 5},
                                   {2, 3, 0}}) {
    for (const bool is_signed : {true, false}) {
      for (const bool has_zero_points : {true, false}) {
        CAPTURE(rows);
        CAPTURE(K);
        CAPTURE(N);
        CAPTURE(is_signed);
        CAPTURE(has_zero_points);
        Layer(rows, K, N, is_signed, has_zero_points).compare();
      }
    }
  }
}

TEST_CASE("quantized linear of more rows than are packed at a time") {
  Layer(1500, 700, 40, true, true).compare();
}

// Sums of two products exceed 16 bits, where vpmaddubsw saturates.
TEST_CASE("quantized linear of the largest bytes") {
  for (const uint8_t byte : {uint8_t{127}, uint8_t{128}}) {
    Layer layer(5, 66, 35, true, false);
    std::fill(layer.w.begin(), layer.w.end(), byte);
    std::fill(layer.x.begin(), layer.x.end(), 1.0f);
    layer.compare();
  }
}

// With AVX2 and without VNNI, sums of four products are added in 16 bits if they fit: below 129 times 255.
TEST_CASE("quantized linear of weights near the limit of 16 bits") {
  for (const int period : {1, 2, 4, 8, 32, 1000}) {
    for (const auto& [large, other] : {std::array<int, 2>{-128, 0},
                                       {-127, -1},
                                       {-128, -1},
                                       {127, 1},
                                       {127, 2},
                                       {127, 127},
                                       {-128, -128},
                                       {-128, 127},
                                       {64, 64},
                                       {43, 43},
                                       {-43, -43}}) {
      for (const auto& [rows, K, N] :
           {std::array<int64_t, 3>{1, 8, 1}, {7, 67, 33}, {2, 130, 19}, {6, 45, 16}, {19, 4, 40}}) {
        CAPTURE(period);
        CAPTURE(large);
        CAPTURE(other);
        CAPTURE(rows);
        for (const bool is_signed : {true, false}) {
          Layer layer(rows, K, N, is_signed, false);
          // In every `period` words of four indices k: `large` at one index, and `other` at the three others.
          for (int64_t k = 0; k < K; ++k) {
            for (int64_t n = 0; n < N; ++n) {
              const int64_t word = k / 4 + n;
              int value = word % period != 0 ? 0 : (k + word) % 4 == 0 ? large : other;
              if (period > 8 && word % period == 1 && k % 4 == 0) value = 3;
              layer.w[static_cast<size_t>(k * N + n)] = static_cast<uint8_t>(value + (is_signed ? 0 : 128));
            }
          }
          layer.compare();
          std::fill(layer.x.begin(), layer.x.end(), 1.0f);  // quantized to 255
          layer.compare();
        }
      }
    }
  }
}

TEST_CASE("quantized linear of trained weights with one scale") {
  for (const float deviation : {5.0f, 20.0f, 27.0f, 40.0f}) {
    for (const auto& [rows, K, N] : {std::array<int64_t, 3>{1, 515, 70}, {16, 256, 50}, {23, 129, 35}}) {
      CAPTURE(deviation);
      CAPTURE(rows);
      Layer layer(rows, K, N, true, true);
      std::mt19937 generator(7);
      std::normal_distribution<float> normal(0.0f, deviation);
      for (uint8_t& value : layer.w) {
        value = static_cast<uint8_t>(static_cast<int8_t>(std::clamp(normal(generator), -127.0f, 127.0f)));
      }
      layer.compare();
    }
  }
}

TEST_CASE("quantized linear of constant, large, small and tied values") {
  for (const float value : {0.0f, -3.0f, 1e34f, 1e-40f}) {
    Layer layer(4, 50, 20, true, true);
    std::fill(layer.x.begin(), layer.x.end(), value);
    layer.compare();
  }
  Layer ties(6, 511, 18, false, true);  // multiples of half a step between 0 and 255
  for (size_t i = 0; i < ties.x.size(); ++i) ties.x[i] = static_cast<float>(i % 511) / 2;
  ties.compare();
  Layer near_ties(16, 1022, 4, true, false);
  for (size_t i = 0; i < near_ties.x.size(); ++i) {
    const float scale = static_cast<float>(i / 1022 + 1) * 0.37f;
    near_ties.x[i] = std::nextafter((static_cast<float>(i % 255) + 0.5f) * scale, i % 2 == 0 ? 0.0f : 1e9f);
  }
  near_ties.compare();
}

TEST_CASE("quantized linear with activations") {
  for (const Activation& act : every_activation()) {
    Layer layer(17, 40, 37, true, true);
    layer.p.act = act;
    layer.compare();
  }
}

}  // namespace
}  // namespace graphopt::test
