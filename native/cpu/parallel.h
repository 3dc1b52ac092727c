// Runs CPU kernels on the threads of any pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace graphopt::cpu {

// A borrowed pool: ONNX Runtime's intra-op pool inside a session, a std::thread pool in native tests and benchmarks.
class Parallel {
 public:
  virtual ~Parallel() = default;

  // The maximum number of concurrent workers; kernels have one workspace slot for each.
  virtual size_t workers() const = 0;

  // Calls fn(worker) on the threads of the pool and waits for all calls. Concurrent calls have different workers in [0,
  // workers()). A thread may never start, or may call fn twice. Kernels therefore distribute their work items with
  // atomic counters, and a late worker finds no items.
  template <class F>
  void run(F&& fn) {
    run_workers([](void* user, size_t worker) { (*static_cast<std::remove_reference_t<F>*>(user))(worker); },
                &fn);
  }

 protected:
  virtual void run_workers(void (*fn)(void* user, size_t worker), void* user) = 0;
};

}  // namespace graphopt::cpu
