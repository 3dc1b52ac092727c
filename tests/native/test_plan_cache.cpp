// The plans that a node keeps.
#include <atomic>
#include <mutex>

#include "device/libraries/stream_lock.h"
#include "runtime/plan_cache.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using runtime::PlanCache;
using runtime::PlannedCall;

// Finds a plan by its generation, which represents the whole key here.
std::unique_ptr<PlannedCall> take(PlanCache& cache, uint64_t generation) {
  return cache.take([=](const PlannedCall& known) { return known.generation == generation; });
}

void put(PlanCache& cache, uint64_t generation) {
  auto planned = std::make_unique<PlannedCall>();
  planned->generation = generation;
  cache.put(std::move(planned));
}

TEST_CASE("plan cache keeps the most recently used plans") {
  PlanCache cache;
  CHECK(take(cache, 0) == nullptr);
  for (uint64_t i = 0; i < PlanCache::kMaxPlans; ++i) put(cache, i);
  auto first = take(cache, 0);
  CHECK(first != nullptr);
  CHECK(take(cache, 0) == nullptr);  // the plan is in use
  cache.put(std::move(first));
  put(cache, PlanCache::kMaxPlans);
  CHECK(take(cache, 1) == nullptr);  // the least recently used plan
  CHECK(take(cache, 0) != nullptr);
  for (uint64_t i = 2; i <= PlanCache::kMaxPlans; ++i) CHECK(take(cache, i) != nullptr);
}

TEST_CASE("plan cache gives each call to one of many threads") {
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

TEST_CASE("a plan made while a library was in use is made again") {
  gpu::StreamLock lock;
  const uint64_t before = gpu::library_generation();
  lock.lock();
  lock.unlock();
  CHECK(gpu::library_generation() == before);
  lock.lock();
  std::thread([&lock] { CHECK(!lock.try_lock()); }).join();
  CHECK(gpu::library_generation() == before);
  lock.unlock();
  const uint64_t after = gpu::library_generation();
  CHECK(after > before);
  CHECK(lock.try_lock());
  lock.unlock();
  CHECK(gpu::library_generation() == after);
}

// A caller that failed to lock sees a different generation once the lock is free, in any interleaving.
TEST_CASE("a failed lock is followed by a new generation") {
  gpu::StreamLock lock;
  std::atomic<bool> done{false};
  std::thread holder([&] {
    for (int i = 0; i < 20000; ++i) {
      const std::lock_guard<gpu::StreamLock> held(lock);
    }
    done = true;
  });
  uint64_t planned = 0;
  bool turned_away = false;
  while (!done) {
    planned = gpu::library_generation();
    turned_away = !lock.try_lock();
    if (!turned_away) lock.unlock();
  }
  holder.join();
  CHECK((!turned_away || gpu::library_generation() != planned));
}

}  // namespace
}  // namespace graphopt::test
