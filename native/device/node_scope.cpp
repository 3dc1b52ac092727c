#include "device/node_scope.h"

#include <cstdlib>

#include "device/driver.h"

namespace graphopt::gpu {
namespace {

// The marker library of ROCm 6.2 and newer, or its predecessor.
struct Markers {
  int (*push)(const char*) = nullptr;
  int (*pop)() = nullptr;

  Markers() {
    try {
      LibrarySearch search;
      search.names = {"librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0", "libroctx64.so.4",
                      "libroctx64.so.1"};
      search.what = "roctx";
      void* library = find_library(search).handle;
      resolve(library, "roctxRangePushA", push);
      resolve(library, "roctxRangePop", pop);
    } catch (const std::exception&) {  // not installed
      push = nullptr;
    }
  }
};

// Loads the library at the first call. Returns null on NVIDIA, or if the library is not installed.
const Markers* markers(const Device& device) {
  if (device.backend() == Backend::kCuda) return nullptr;
  static const auto& found = *new Markers;
  return found.push != nullptr ? &found : nullptr;
}

}  // namespace

bool synchronous() {
  static const char* const value = std::getenv("GRAPHOPT_SYNC");
  static const bool on = value != nullptr && std::string(value) == "1";
  return on;
}

NodeScope::NodeScope(Device& device, const std::string& name) : device_(device) {
  const Markers* m = markers(device);
  marked_ = m != nullptr;
  if (marked_) m->push(name.c_str());
}

NodeScope::~NodeScope() {
  if (marked_) markers(device_)->pop();
}

void NodeScope::finish(void* stream) {
  if (synchronous()) device_.synchronize(stream);
}

}  // namespace graphopt::gpu
