// Which nodes the provider takes, and the runtime's registry of their kernels.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "operators/table.h"
#include "runtime/abi/graph.h"

namespace graphopt::provider {

constexpr const char* kProviderName = "GraphoptExecutionProvider";

// The session's configuration holds the provider's options under such keys.
std::string option_key(const char* name);

// Which implementations the operators have that have several, as JSON: by operator, in order of preference.
std::string describe_implementations(gpu::Device& device);

// For one device. Must outlive the sessions that use it.
class Registry {
 public:
  Registry(const abi::OrtApi24* api, gpu::Device& device);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  const abi::OrtKernelRegistry* raw() const { return registry_; }
  const abi::OrtApi24* api() const { return api_; }
  gpu::Device& device() const { return device_; }

  // Why the provider has no kernel for a node; empty when it has one.
  std::string refuse(const abi::GraphNode& node) const;
  // Null when there is no kernel for it.
  const Registration* registration(const abi::GraphNode& node) const;
  // Whether the node reads input i, or writes output i, in host memory.
  bool host_input(const abi::GraphNode& node, size_t i) const;
  bool host_output(const abi::GraphNode& node, size_t i) const;

 private:
  struct Entry {
    const Registry* registry = nullptr;
    Registration op;
  };

  void add(Registration op);
  void add_memcpy(const char* name, bool from_host);
  const Entry* find(const abi::GraphNode& node) const;
  static abi::OrtStatus* create_kernel(void* state, const abi::OrtKernelInfo* info, abi::OrtKernelImpl** out);

  const abi::OrtApi24* api_;
  gpu::Device& device_;
  abi::OrtKernelRegistry* registry_ = nullptr;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Entry>> entries_;  // by domain and name
};

}  // namespace graphopt::provider
