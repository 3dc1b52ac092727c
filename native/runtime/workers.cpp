#include "runtime/workers.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace graphopt::runtime {
namespace {

// Number of loops after which the thread count is trusted. Sleeping threads may miss a short loop.
constexpr size_t kCountingLoops = 8;

size_t processor_count() {
  static const auto count = static_cast<size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)));
  return count;
}

// Returns the number of processors in this thread's affinity, which a container or a user may have restricted.
size_t processors_of_this_thread() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return processor_count();
  return std::clamp<size_t>(static_cast<size_t>(CPU_COUNT(&set)), 1, processor_count());
}

}  // namespace

Workers::Workers() : Workers(processor_count(), processors_of_this_thread()) {}

Workers::Workers(size_t max_threads, size_t first_workers)
    : max_threads_(max_threads),
      first_workers_(first_workers),
      owners_(std::make_unique<std::atomic<const void*>[]>(max_threads)) {}

size_t Workers::count() const {
  const size_t assigned = assigned_.load(std::memory_order_relaxed);
  return loops_.load(std::memory_order_relaxed) < kCountingLoops ? std::max(first_workers_, assigned)
                                                                 : assigned;
}

size_t Workers::tasks(size_t count) const { return std::min(2 * count, std::max(count, max_threads_)); }

bool Workers::take(size_t number, const void* thread) {
  const void* nobody = nullptr;
  return owners_[number].compare_exchange_strong(nobody, thread, std::memory_order_relaxed);
}

size_t Workers::number(bool runs_node) {
  // The number that this thread had last, in this node or in another. A stable number keeps the data of the
  // thread's items in its caches.
  thread_local size_t last = 1;
  if (runs_node) return 0;
  const auto is_mine = [&](size_t number) {
    return owners_[number].load(std::memory_order_relaxed) == &last;
  };
  if (last < max_threads_ && is_mine(last)) return last;
  size_t found = 1;
  while (found < max_threads_ && !is_mine(found)) ++found;
  if (found == max_threads_ && last < max_threads_ && take(last, &last)) found = last;
  for (size_t number = 1; found == max_threads_ && number < max_threads_; ++number) {
    if (take(number, &last)) found = number;
  }
  if (found == max_threads_) return max_threads_;
  last = found;
  size_t before = assigned_.load(std::memory_order_relaxed);
  while (before <= found && !assigned_.compare_exchange_weak(before, found + 1, std::memory_order_relaxed)) {
  }
  return found;
}

void Workers::end_loop() {
  const size_t loops = loops_.load(std::memory_order_relaxed);
  if (loops < kCountingLoops) loops_.store(loops + 1, std::memory_order_relaxed);
}

SessionParallel::SessionParallel(Workers& workers, Pool pool)
    : workers_(workers), pool_(std::move(pool)), count_(workers.count()) {}

void SessionParallel::run_workers(void (*fn)(void* user, size_t worker), void* user) {
  // No exception may leave a task: the pool belongs to the runtime.
  struct Loop {
    void (*fn)(void*, size_t);
    void* user;
    Workers& workers;
    size_t count;
    std::thread::id runs_node;
    std::mutex mutex;
    std::exception_ptr failure;
  } loop{fn, user, workers_, count_, std::this_thread::get_id(), {}, nullptr};
  pool_(
      [](void* raw, size_t) {
        Loop& l = *static_cast<Loop*>(raw);
        // A thread numbered beyond the loop's workers does no work in it.
        const size_t worker = l.workers.number(std::this_thread::get_id() == l.runs_node);
        if (worker >= l.count) return;
        try {
          l.fn(l.user, worker);
        } catch (...) {
          const std::lock_guard<std::mutex> lock(l.mutex);
          if (!l.failure) l.failure = std::current_exception();
        }
      },
      workers_.tasks(count_), &loop);
  workers_.end_loop();
  if (loop.failure) std::rethrow_exception(loop.failure);
  // Threads beyond the workers may have taken all tasks: this thread does the remaining work.
  fn(user, 0);
}

}  // namespace graphopt::runtime
