// Registers the provider's kernels with the runtime.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "operators/measured.h"
#include "operators/table.h"
#include "runtime/abi/ort_ep.h"
#include "runtime/provider/claims.h"

namespace graphopt::provider {

constexpr const char* kProviderName = "GraphoptExecutionProvider";

// Returns the key of a provider option in the session's configuration.
std::string option_key(const char* name);

// Opens the file that the option `measured` names.
std::shared_ptr<gpu::Measured> open_measurements(const std::string& path);

// Returns JSON: for each operator with several implementations their names, in order of preference.
std::string describe_implementations(gpu::Device& device);

// The kernels of the provider for one device. Must outlive the sessions that use it.
class Registry {
 public:
  Registry(const abi::OrtApi24* api, gpu::Device& device);
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  const abi::OrtKernelRegistry* raw() const { return registry_.get(); }
  const abi::OrtApi24* api() const { return api_; }
  gpu::Device& device() const { return device_; }

  const Claims& claims() const { return claims_; }
  // Returns null if there is no kernel for the node's operator. The kernel may still refuse the node (Claims::refuse).
  const Registration* registration(const NodeInGraph& node) const { return claims_.find(node); }

 private:
  struct Entry {
    const Registry* registry = nullptr;
    const Registration* op = nullptr;
  };

  struct Release {
    const abi::OrtApi24* api;
    void operator()(abi::OrtKernelRegistry* registry) const;
  };

  void add(const Registration& op);
  static abi::OrtStatus* create_kernel(void* state, const abi::OrtKernelInfo* info, abi::OrtKernelImpl** out);

  const abi::OrtApi24* api_;
  gpu::Device& device_;
  std::unique_ptr<abi::OrtKernelRegistry, Release> registry_;
  Claims claims_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace graphopt::provider
