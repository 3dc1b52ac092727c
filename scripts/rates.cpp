// Prints the multiply-adds per second of one thread in float32. Each argument is a size in bytes; for each it prints
// the bytes per second at which the thread reads a buffer of that size repeatedly. Compile with -O3 -march=native.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr size_t kVectorBytes = 64;
#else
constexpr size_t kVectorBytes = 32;
#endif
using Vec = float __attribute__((vector_size(kVectorBytes)));
constexpr size_t kSums = 12;  // enough independent sums to hide the latency of two multiply-adds per cycle

// Returns the shortest time of several calls, in seconds.
template <class Work>
double seconds(Work work) {
  double least = 1e9;
  for (int i = 0; i < 8; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

// Keeps the compiler from removing the computation of the sums.
void keep(const Vec (&sums)[kSums]) { asm volatile("" : : "m"(sums)); }

double multiply_adds_per_second() {
  constexpr size_t kSteps = 1'000'000;
  const double taken = seconds([] {
    Vec sums[kSums], factor = Vec{} + 0.5f;
    for (size_t i = 0; i < kSums; ++i) sums[i] = Vec{} + static_cast<float>(i);  // equal sums would be merged
    for (size_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
      for (Vec& sum : sums) sum = sum * factor + factor;
      asm volatile("" : "+v"(factor));  // hides the factor's value from the compiler
    }
    keep(sums);
  });
  return kSteps * kSums * kVectorBytes / sizeof(float) / taken;
}

double bytes_per_second(size_t bytes) {
  const size_t blocks = bytes / (kSums * sizeof(Vec)),
               passes = std::max<size_t>((size_t{256} << 20) / bytes, 1);
  const std::vector<Vec> buffer(blocks * kSums, Vec{});
  const double taken = seconds([&] {
    Vec sums[kSums] = {};
    for (size_t pass = 0; pass < passes; ++pass) {
      for (size_t block = 0; block < blocks; ++block) {
#pragma GCC unroll 12
        for (size_t i = 0; i < kSums; ++i) sums[i] += buffer[block * kSums + i];
      }
    }
    keep(sums);
  });
  return static_cast<double>(buffer.size() * sizeof(Vec) * passes) / taken;
}

}  // namespace

int main(int count, char** sizes) {
  std::printf("%g\n", multiply_adds_per_second());
  for (int i = 1; i < count; ++i) std::printf("%g\n", bytes_per_second(std::strtoull(sizes[i], nullptr, 10)));
}
