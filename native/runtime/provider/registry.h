// The runtime's registry of the provider's kernels.
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

// The session's configuration holds the provider's options under such keys.
std::string option_key(const char* name);

// What the option `measured` names.
std::shared_ptr<gpu::Measured> open_measured(const std::string& path);

// Which implementations the operators have that have several, as JSON: by operator, in order of preference.
std::string describe_implementations(gpu::Device& device);

// For one device. Must outlive the sessions that use it.
class Registry {
 public:
  Registry(const abi::OrtApi24* api, gpu::Device& device);
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  const abi::OrtKernelRegistry* raw() const { return registry_.get(); }
  const abi::OrtApi24* api() const { return api_; }
  gpu::Device& device() const { return device_; }

  const Claims& claims() const { return claims_; }
  // Null when there is no kernel for it.
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
