// Profiler ranges and synchronous execution of nodes.
#pragma once

#include <string>

#include "device/device.h"

namespace graphopt::gpu {

// Returns whether the host waits for the work of each node: GRAPHOPT_SYNC=1, read once.
bool synchronous();

// Encloses the enqueuing of one node's work in a roctx range with the node's name, if ROCm's marker library
// is installed. A profiler then shows the kernels under their node.
class NodeScope {
 public:
  NodeScope(Device& device, const std::string& name);
  ~NodeScope();
  NodeScope(const NodeScope&) = delete;
  NodeScope& operator=(const NodeScope&) = delete;

  // Must be called after the work is enqueued. If synchronous(), it waits for the work: a late error of the
  // device is then attributed to this node, not to a later one.
  void finish(void* stream);

 private:
  Device& device_;
  bool marked_;
};

}  // namespace graphopt::gpu
