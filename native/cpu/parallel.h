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
  virtual size_t lanes() const = 0;

  // Calls fn(worker) on the threads of the pool and waits for all calls. Concurrent calls have different workers in [0,
  // lanes()). A thread may never start, or may call fn twice. Kernels therefore distribute their work items with atomic
  // counters, and a late worker finds no items.
  template <class F>
  void run(F&& fn) {
    run_lanes([](void* user, size_t lane) { (*static_cast<std::remove_reference_t<F>*>(user))(lane); }, &fn);
  }

 protected:
  virtual void run_lanes(void (*fn)(void* user, size_t lane), void* user) = 0;
};

}  // namespace graphopt::cpu
