// Enqueues work of the stand-in libraries: on a captured stream it becomes part of the graph. They find the
// driver's stand-in in the process, where it was loaded first.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace stand_in {

// Returns 0 if the work is executed or enqueued. It may access the memory that contains these addresses. With
// STAND_IN_CAPTURE=refuses in the environment a library cannot be captured, and ends the capture.
inline int enqueue(void* stream, const char* what, const std::vector<const void*>& addresses,
                   const std::function<int()>& work) {
  using Enqueue = int(void*, const char*, const std::vector<const void*>&, const std::function<int()>&, bool);
  static Enqueue* enqueue = [] {
    const char* path = std::getenv("STAND_IN_DRIVER");
    void* driver = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    return reinterpret_cast<Enqueue*>(driver != nullptr ? dlsym(driver, "stand_in_enqueue") : nullptr);
  }();
  const char* how = std::getenv("STAND_IN_CAPTURE");
  const bool refuses = how != nullptr && std::string(how) == "refuses";
  return enqueue != nullptr ? enqueue(stream, what, addresses, work, refuses) : work();
}

}  // namespace stand_in
