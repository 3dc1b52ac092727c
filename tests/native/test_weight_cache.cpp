#include <atomic>
#include <cstring>

#include "cpu/weight_cache.h"
#include "testing.h"

namespace graphopt::test {
namespace {

// "Transforms" weights to their first element.
std::shared_ptr<const void> get(cpu::WeightCache& cache, const std::string& layout,
                                const std::vector<float>& w, std::atomic<int>& made) {
  return cache.get(layout, w.data(), w.size() * sizeof(float), sizeof(float), [&](void* prepared) {
    ++made;
    CHECK(reinterpret_cast<uintptr_t>(prepared) % 64 == 0);
    *static_cast<float*>(prepared) = w[0];
  });
}

TEST_CASE("weight cache compares content and frees") {
  cpu::WeightCache cache;
  std::atomic<int> made{0};
  std::vector<float> w(1001, 1.0f);
  auto first = get(cache, "4 by 7", w, made);
  {
    const std::vector<float> copy = w;
    CHECK((get(cache, "4 by 7", copy, made) == first));
  }
  CHECK((get(cache, "4 by 8", w, made) != first));  // another transform
  const std::vector<float> before = w;
  w[1000] = 2.0f;  // the same address, other contents
  const auto second = get(cache, "4 by 7", w, made);
  CHECK((second != first));
  CHECK((get(cache, "4 by 7", before, made) == first));
  CHECK(cache.size() == 2);
  const std::weak_ptr<const void> watch = first;
  first.reset();
  CHECK(watch.expired());
  CHECK(cache.size() == 1);
  made = 0;
  CHECK(*static_cast<const float*>(get(cache, "4 by 7", before, made).get()) == 1.0f);
  CHECK(made == 1);
}

// Two changed words can have the same FNV-1a hash as the original ones: the second change cancels the first.
TEST_CASE("weight cache tells weights of one hash apart") {
  constexpr uint64_t kPrime = 1099511628211ull;
  cpu::WeightCache cache;
  const std::string layout = "1";
  const uint64_t begin = cpu::hash_of(layout, nullptr, 0);
  const std::vector<uint64_t> w = {1, 2, 3};
  std::vector<uint64_t> other = {5, 0, 3};
  other[1] = ((begin ^ w[0]) * kPrime) ^ w[1] ^ ((begin ^ other[0]) * kPrime);
  const size_t bytes = w.size() * sizeof(uint64_t);
  CHECK(cpu::hash_of(layout, w.data(), bytes) == cpu::hash_of(layout, other.data(), bytes));
  const auto get = [&](const std::vector<uint64_t>& weights) {
    return cache.get(layout, weights.data(), bytes, bytes,
                     [&](void* prepared) { std::memcpy(prepared, weights.data(), bytes); });
  };
  const auto first = get(w), second = get(other);
  CHECK((first != second));
  CHECK(std::memcmp(first.get(), w.data(), bytes) == 0);
  CHECK(std::memcmp(second.get(), other.data(), bytes) == 0);
  CHECK((get(w) == first));
  CHECK((get(other) == second));
  CHECK(cache.size() == 2);
}

TEST_CASE("weight cache shares among many threads") {
  cpu::WeightCache cache;
  std::atomic<int> made{0};
  const std::vector<float> w(50000, 3.0f);
  std::vector<std::shared_ptr<const void>> results(8);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = get(cache, "1", w, made); });
  for (std::thread& t : threads) t.join();
  for (const auto& result : results) CHECK((result == results[0]));
}

}  // namespace
}  // namespace graphopt::test
