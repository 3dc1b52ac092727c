// How CPU kernels run on many threads without knowing whose threads they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace graphopt::cpu {

// A borrowed pool: ONNX Runtime's intra-op pool inside a session, a std::thread pool in native tests and
// benches.
class Parallel {
 public:
  virtual ~Parallel() = default;

  // An upper bound on tasks that run at the same time; kernels keep one workspace slot a lane.
  virtual size_t lanes() const = 0;

  // Calls fn(lane) on the threads of the pool, each of which has a lane of [0, lanes()) of its own; returns when all
  // are done. A thread may never come, or call it twice: kernels hand out their work items among lanes with atomic
  // counters, so a lane that starts late finds none.
  template <class F>
  void run(F&& fn) {
    run_lanes([](void* user, size_t lane) { (*static_cast<std::remove_reference_t<F>*>(user))(lane); }, &fn);
  }

 protected:
  virtual void run_lanes(void (*fn)(void* user, size_t lane), void* user) = 0;
};

}  // namespace graphopt::cpu
