// Threads, their numbers, and loops on a pool of threads.
#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cpu/parallel_for.h"
#include "runtime/workers.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using runtime::SessionParallel;
using runtime::Workers;

// Returns the result of f on a new thread.
template <class F>
size_t on_a_thread(const F& f) {
  size_t result = 0;
  std::thread([&] { result = f(); }).join();
  return result;
}

void end_first_loops(Workers& workers) {
  for (int i = 0; i < 100; ++i) workers.end_loop();
}

TEST_CASE("the number of workers is the number of threads seen") {
  Workers workers(3, 2);
  CHECK(workers.count() == 2);
  CHECK(workers.number(true) == 0);
  CHECK(workers.count() == 2);
  end_first_loops(workers);
  CHECK(workers.count() == 1);
  CHECK(workers.tasks(1) == 2);
  on_a_thread([&] {
    CHECK(workers.number(false) == 1);
    CHECK(workers.count() == 2);
    CHECK(on_a_thread([&] { return workers.number(false); }) == 2);
    return workers.number(false);
  });
  CHECK(workers.count() == 3);
  CHECK(workers.tasks(3) == 3);
}

TEST_CASE("threads beyond the maximum have no number") {
  Workers workers(2, 2);
  on_a_thread([&] {
    CHECK(workers.number(false) == 1);
    CHECK(on_a_thread([&] { return workers.number(false); }) == 2);
    return workers.number(false);
  });
  CHECK(workers.count() == 2);
  CHECK(workers.tasks(2) == 2);
}

TEST_CASE("threads have distinct numbers, the same in every node if possible") {
  Workers first(8, 1), second(8, 1), third(8, 1);
  on_a_thread([&] {
    CHECK(first.number(false) == 1);
    on_a_thread([&] {
      CHECK(first.number(false) == 2);
      CHECK(second.number(false) == 2);
      on_a_thread([&] {
        CHECK(first.number(false) == 3);
        return on_a_thread([&] {
          CHECK(first.number(false) == 4);
          CHECK(third.number(false) == 4);
          return third.number(false);
        });
      });
      return first.number(false);
    });
    return first.number(false);
  });
  end_first_loops(first);
  end_first_loops(second);
  CHECK(first.count() == 5);
  CHECK(second.count() == 3);
}

TEST_CASE("a thread with another number in one node keeps its number in other nodes") {
  Workers first(8, 1), second(8, 1), third(2, 1);
  on_a_thread([&] {
    CHECK(first.number(false) == 1);
    return on_a_thread([&] {
      CHECK(first.number(false) == 2);
      CHECK(second.number(false) == 2);
      CHECK(third.number(false) == 1);
      CHECK(second.number(false) == 2);
      return first.number(false);
    });
  });
}

// Runs tasks on new threads and on this one, and waits for all.
void side_by_side(void (*task)(void*, size_t), size_t total, void* user) {
  std::vector<std::thread> threads;
  for (size_t i = 1; i < total; ++i) threads.emplace_back(task, user, i);
  task(user, 0);
  for (std::thread& thread : threads) thread.join();
}

// Asserts that every item of a loop is executed once, whichever thread runs the tasks.
void check_loop(Workers& workers, const SessionParallel::Pool& pool) {
  std::vector<std::atomic<int>> times(1000);
  SessionParallel parallel(workers, pool);
  cpu::parallel_for(parallel, 1000, [&](int64_t item, size_t worker) {
    CHECK(worker < parallel.workers());
    ++times[static_cast<size_t>(item)];
  });
  CHECK(std::all_of(times.begin(), times.end(), [](const std::atomic<int>& n) { return n == 1; }));
}

TEST_CASE("no item of a loop is lost when threads without a number take all tasks") {
  Workers workers;
  end_first_loops(workers);
  for (int round = 0; round < 4; ++round) {
    check_loop(workers, [](void (*task)(void*, size_t), size_t total, void* user) {
      for (size_t i = 0; i < total; ++i) std::thread(task, user, i).join();
    });
  }
}

TEST_CASE("a loop by one thread and a loop by all threads") {
  Workers workers;
  for (int round = 0; round < 20; ++round) {
    check_loop(workers, [](void (*task)(void*, size_t), size_t total, void* user) {
      for (size_t i = 0; i < total; ++i) task(user, i);
    });
    check_loop(workers, side_by_side);
  }
}

TEST_CASE("an item finds all items of the loops before its own done") {
  // Fewer items than threads, many, and none.
  constexpr int64_t kItems[] = {3, 1, 100, 0, 1, 11, 2};
  constexpr size_t kLoops = std::size(kItems);
  for (int round = 0; round < 50; ++round) {
    Workers workers(4, 4);
    SessionParallel parallel(workers, side_by_side);
    std::array<std::atomic<int64_t>, kLoops> done = {};
    std::atomic<int64_t> early = 0;
    std::vector<cpu::Loop> loops;
    for (size_t i = 0; i < kLoops; ++i) {
      loops.push_back({kItems[i], [&, i](int64_t item, size_t worker) {
                         CHECK(worker < parallel.workers());
                         for (size_t before = 0; before < i; ++before) {
                           if (done[before].load() != kItems[before]) ++early;
                         }
                         if (item % 10 == 0) std::this_thread::yield();
                         ++done[i];
                       }});
    }
    cpu::parallel_loops(parallel, loops);
    CHECK(early == 0);
    for (size_t i = 0; i < kLoops; ++i) CHECK(done[i] == kItems[i]);
  }
}

TEST_CASE("loops end when an item throws, and when one thread does everything") {
  Workers workers(4, 4);
  std::atomic<int> last = 0;
  const auto fails = [](int64_t item, size_t) {
    if (item == 5) throw std::runtime_error("of item 5");
  };
  const auto counts = [&](int64_t, size_t) { ++last; };
  SessionParallel parallel(workers, side_by_side);
  CHECK_THROWS_AS(cpu::parallel_loops(parallel, {{20, fails}, {20, counts}}), std::runtime_error);
  SessionParallel alone(workers, [](void (*task)(void*, size_t), size_t total, void* user) {
    for (size_t i = 0; i < total; ++i) task(user, i);
  });
  last = 0;
  cpu::parallel_loops(alone, {{20, counts}, {20, counts}});
  CHECK(last == 40);
}

TEST_CASE("an exception of a task reaches the caller of the loop") {
  Workers workers;
  SessionParallel parallel(workers, [](void (*task)(void*, size_t), size_t total, void* user) {
    for (size_t i = 0; i < total; ++i) std::thread(task, user, i).join();
  });
  const auto fails = [](int64_t item, size_t) {
    if (item == 99) throw std::runtime_error("of item 99");
  };
  CHECK_THROWS_AS(cpu::parallel_for(parallel, 100, fails), std::runtime_error);
}

}  // namespace
}  // namespace graphopt::test
