// What is done around the work of one node, for profilers and for finding faults.
#pragma once

#include <string>

#include "device/device.h"

namespace graphopt::gpu {

// GRAPHOPT_SYNC=1, read once: each node's work is waited for.
bool synchronous();

// Encloses the enqueuing of one node's work. Its name is a roctx range, where ROCm's marker library is there:
// a profiler then shows kernels under the nodes that launched them.
class NodeScope {
 public:
  NodeScope(Device& device, const std::string& name);
  ~NodeScope();
  NodeScope(const NodeScope&) = delete;
  NodeScope& operator=(const NodeScope&) = delete;

  // Call it when the work is enqueued. With GRAPHOPT_SYNC=1, read once, it waits for the work: an error that
  // the device reports late is then that of this node, not of a later one.
  void finish(void* stream);

 private:
  Device& device_;
  bool marked_;
};

}  // namespace graphopt::gpu
