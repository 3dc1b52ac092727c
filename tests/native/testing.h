// Shared by the tests of native/ in addition to doctest: threads, scratch memory, random tensors, references
// in double.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "blocks/half.h"
#include "cpu/parallel.h"
#include "operators/activation.h"

namespace graphopt::test {

// A pool of real threads, which makes data races visible.
class ThreadParallel final : public cpu::Parallel {
 public:
  explicit ThreadParallel(size_t workers) : workers_(workers) {}
  size_t workers() const override { return workers_; }

 protected:
  void run_workers(void (*fn)(void* user, size_t worker), void* user) override {
    std::vector<std::thread> threads;
    for (size_t worker = 1; worker < workers_; ++worker) threads.emplace_back(fn, user, worker);
    fn(user, 0);
    for (std::thread& t : threads) t.join();
  }

 private:
  size_t workers_;
};

// Every block is filled with NaN, which reveals kernels that read uninitialized scratch memory. It is
// followed by more NaN words, which reveal writes beyond the declared size.
class HeapWorkspace {
 public:
  HeapWorkspace() = default;
  HeapWorkspace(const HeapWorkspace&) = delete;
  HeapWorkspace& operator=(const HeapWorkspace&) = delete;
  ~HeapWorkspace() {
    for (const Block& block : blocks_) {
      const uint32_t* guard = block.memory.get() + block.words;
      CHECK(std::all_of(guard, guard + kGuard, [](uint32_t word) { return word == kNaN; }));
    }
  }

  void* allocate(size_t bytes) {
    const size_t words = (bytes + 63) / 64 * 16;
    auto* memory = static_cast<uint32_t*>(std::aligned_alloc(64, (words + kGuard) * sizeof(uint32_t)));
    if (memory == nullptr) throw std::bad_alloc();
    std::fill_n(memory, words + kGuard, kNaN);
    blocks_.push_back({{memory, std::free}, words});
    return memory;
  }

 private:
  static constexpr uint32_t kNaN = 0x7fc00000u;
  static constexpr size_t kGuard = 1024;  // words
  struct Block {
    std::unique_ptr<uint32_t, void (*)(void*)> memory;
    size_t words;
  };
  std::vector<Block> blocks_;
};

// Rounds to bfloat16: eight significant bits, ties to even.
inline double rounded(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, exponent - 8);
  return std::nearbyint(x / unit) * unit;
}

// Draws signed values of about unit size, rounded to T.
template <class T>
std::vector<T> random_tensor(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& v : values) v = static_cast<T>(normal(generator));
  return values;
}

double reference_activation(const Activation& act, double x);

// Each activation, with non-default parameters.
std::vector<Activation> every_activation();

// Returns the largest |got - expected| / (|expected| + the root mean square of all expected values); infinite
// for NaN.
template <class T>
double relative_error(const std::vector<T>& got, const std::vector<double>& expected) {
  double squares = 0;
  for (double e : expected) squares += e * e;
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(static_cast<float>(got[i])) - expected[i]);
    if (std::isnan(error)) return std::numeric_limits<double>::infinity();
    if (error > 0) worst = std::max(worst, error / (std::abs(expected[i]) + rms));
  }
  return worst;
}

// The error of one rounding to T and of a few float sums.
template <class T>
constexpr double tolerance() {
  return std::is_same_v<T, float> ? 1e-5 : 1e-3;
}

}  // namespace graphopt::test
