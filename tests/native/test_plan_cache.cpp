// What a node keeps of its plans.
#include "check.h"
#include "runtime/plan_cache.h"

namespace graphopt::test {
namespace {

using runtime::PlanCache;
using runtime::PlannedCall;

// By the generation, which stands for all that a plan is for.
std::unique_ptr<PlannedCall> take(PlanCache& cache, uint64_t generation) {
  return cache.take([=](const PlannedCall& known) { return known.generation == generation; });
}

void put(PlanCache& cache, uint64_t generation) {
  auto planned = std::make_unique<PlannedCall>();
  planned->generation = generation;
  cache.put(std::move(planned));
}

GRAPHOPT_TEST(plan_cache_keeps_those_that_were_used_last) {
  PlanCache cache;
  CHECK(take(cache, 0) == nullptr);
  for (uint64_t i = 0; i < PlanCache::kMost; ++i) put(cache, i);
  auto first = take(cache, 0);
  CHECK(first != nullptr && take(cache, 0) == nullptr);  // nobody else gets it
  cache.put(std::move(first));
  put(cache, PlanCache::kMost);
  CHECK(take(cache, 1) == nullptr);  // the one that was used the longest time ago
  CHECK(take(cache, 0) != nullptr);
  for (uint64_t i = 2; i <= PlanCache::kMost; ++i) CHECK(take(cache, i) != nullptr);
}

GRAPHOPT_TEST(plan_cache_gives_each_call_to_one_of_many_threads) {
  PlanCache cache;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&cache] {
      for (int i = 0; i < 2000; ++i) {
        auto planned = take(cache, 7);
        if (planned == nullptr) {
          planned = std::make_unique<PlannedCall>();
          planned->generation = 7;
        }
        CHECK(planned->alignment == 0);
        planned->alignment = 1;  // while this thread has it
        std::this_thread::yield();
        planned->alignment = 0;
        cache.put(std::move(planned));
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace graphopt::test
