#include "ep/registry.h"

#include <algorithm>

#include "abi/error.h"
#include "ep/memory.h"
#include "gpu/node_scope.h"
#include "kernels.h"
#include "runtime/run_node.h"

namespace graphopt::ep {
namespace {

using abi::GraphNode;
using abi::OrtStatus;

// What the runtime holds for one node.
struct KernelHandle final : abi::OrtKernelImpl {
  const abi::OrtApi24* api;
  gpu::Device& device;
  std::string what;  // operator and node
  std::string name;  // of the node
  abi::HostMemory memory;
  runtime::BoundKernel ours;
  std::unique_ptr<OpKernel> standard;

  KernelHandle(const abi::OrtApi24* a, gpu::Device& d, std::string text, std::string node)
      : OrtKernelImpl{}, api(a), device(d), what(std::move(text)), name(std::move(node)), memory(a) {
    version = abi::kEpApiRevision;
    Compute = [](OrtKernelImpl* p, abi::OrtKernelContext* context) {
      return static_cast<KernelHandle*>(p)->compute(context);
    };
    Release = [](OrtKernelImpl* p) {
      auto* handle = static_cast<KernelHandle*>(p);
      try {
        handle->device.make_current();  // kernels free device memory
      } catch (const std::exception&) {
      }
      delete handle;
    };
  }

  OrtStatus* compute(abi::OrtKernelContext* context) const noexcept {
    try {
      last_failure();  // forgets those of other nodes
      device.make_current();
      if (ours.kernel != nullptr) {
        run_node(ours, abi::Context(api, context), memory);
      } else {
        Execution e(api, context, device);
        gpu::NodeScope scope(device, name);
        standard->run(e);
        scope.finish(e.stream());
      }
      return nullptr;
    } catch (...) {
      return status(context);
    }
  }

  OrtStatus* status(abi::OrtKernelContext* context) const noexcept {
    try {
      std::string where = what + ", inputs";
      try {
        const Execution e(api, context, device);
        for (size_t i = 0; i < e.input_count(); ++i) {
          where += e.has_input(i)
                       ? std::string(" ") + element_type_name(e.input(i).type) + e.input(i).shape.text()
                       : " -";
        }
      } catch (const std::exception&) {
        where += " ?";  // the failure that is being reported matters more
      }
      // The runtime hides why there is no memory.
      const std::string reason = last_failure();
      if (!reason.empty()) {
        return abi::CreateStatus(api, abi::ErrorCode::kFail, (where + ": " + reason).c_str());
      }
      return abi::current_exception_status(api, where + ": ");
    } catch (...) {
      return abi::current_exception_status(api, {});
    }
  }
};

// Nodes that the runtime puts between us and other providers.
class CopyKernel final : public OpKernel {
 public:
  explicit CopyKernel(bool from_host) : from_host_(from_host) {}
  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
    const int64_t bytes = x.shape.elements() * bytes_of(x.type);
    e.copy(e.output(0, x.shape), x.data, bytes);
    if (!from_host_) e.device().synchronize(e.stream());
  }

 private:
  bool from_host_;
};

}  // namespace

Registry::Registry(const abi::OrtApi24* api, gpu::Device& device) : api_(api), device_(device) {
  abi::check(api, abi::CreateKernelRegistry(abi::GetEpApi(api), &registry_));
  add_memcpy("MemcpyFromHost", true);
  add_memcpy("MemcpyToHost", false);
  for (Operator& op : standard_operators()) add({this, std::move(op), std::nullopt});
  device.make_current();
  for (Registration& r : gpu_kernels(kProviderName, device)) {
    Operator op;
    op.name = r.name;
    op.domain = kDomain;
    op.reuse = r.reuse;
    add({this, std::move(op), std::move(r)});
  }
}

Registry::~Registry() { abi::ReleaseKernelRegistry(abi::GetEpApi(api_), registry_); }

void Registry::add_memcpy(const char* name, bool from_host) {
  Operator op;
  op.name = name;
  (from_host ? op.host_inputs : op.host_outputs) = {0};
  op.refuse = [](const GraphNode&) { return std::string("only the runtime makes such nodes"); };
  op.create = [from_host](const Attributes&) { return std::make_unique<CopyKernel>(from_host); };
  add({this, std::move(op), std::nullopt});
}

void Registry::add(Entry given) {
  auto owner = std::make_unique<Entry>(std::move(given));
  Entry& entry = *owner;
  const Operator& op = entry.op;
  if (!entries_.emplace(std::pair(op.domain, op.name), std::move(owner)).second) {
    throw Error("two kernels for " + op.name);
  }
  const abi::OrtEpApi* ep = abi::GetEpApi(api_);
  abi::OrtKernelDefBuilder* builder = nullptr;
  abi::OrtKernelDef* def = nullptr;
  abi::check(api_, abi::CreateKernelDefBuilder(ep, &builder));
  try {
    abi::check(api_, abi::KernelDefBuilder_SetOperatorType(ep, builder, op.name.c_str()));
    abi::check(api_, abi::KernelDefBuilder_SetDomain(ep, builder, op.domain.c_str()));
    abi::check(api_, abi::KernelDefBuilder_SetSinceVersion(ep, builder, op.first, op.last));
    abi::check(api_, abi::KernelDefBuilder_SetExecutionProvider(ep, builder, kProviderName));
    for (const size_t i : op.host_inputs) {
      abi::check(api_, abi::KernelDefBuilder_SetInputMemType(ep, builder, i, abi::MemoryType::kCpuInput));
    }
    for (const size_t i : op.host_outputs) {
      abi::check(api_, abi::KernelDefBuilder_SetOutputMemType(ep, builder, i, abi::MemoryType::kCpuOutput));
    }
    const int zero = 0;
    if (op.reuse == Reuse::kAlias) {
      abi::check(api_, abi::KernelDefBuilder_AddInputOutputAliases(ep, builder, &zero, &zero, 1));
    } else if (op.reuse == Reuse::kInplace) {
      abi::check(api_, abi::KernelDefBuilder_AddInputOutputMutableAliases(ep, builder, &zero, &zero, 1));
    }
    abi::check(api_, abi::KernelDefBuilder_Build(ep, builder, &def));
    abi::check(api_, abi::KernelRegistry_AddKernel(ep, registry_, def, create_kernel, &entry));
  } catch (...) {
    if (def != nullptr) abi::ReleaseKernelDef(ep, def);
    abi::ReleaseKernelDefBuilder(ep, builder);
    throw;
  }
  abi::ReleaseKernelDef(ep, def);
  abi::ReleaseKernelDefBuilder(ep, builder);
}

const Registry::Entry* Registry::find(const GraphNode& node) const {
  const auto found = entries_.find({node.domain(), node.op()});
  return found != entries_.end() ? found->second.get() : nullptr;
}

std::string Registry::refuse(const GraphNode& node) const {
  const Entry* entry = find(node);
  if (entry == nullptr) return "no kernel for this operator";
  const Operator& op = entry->op;
  if (node.since_version() < op.first || node.since_version() > op.last) {
    return "version " + std::to_string(node.since_version()) + " of the operator is not known";
  }
  if (entry->ours) {
    const ElementType type = node.inputs().front().type;
    const auto& types = entry->ours->types;
    const bool known = std::find(types.begin(), types.end(), type) != types.end();
    return known ? "" : std::string("no kernel for ") + element_type_name(type);
  }
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const abi::Edge& e = node.inputs()[i];
    if (e.name.empty()) continue;
    if (bytes_of(e.type) == 0) return "an input's type is not known";
    for (const size_t host : op.host_inputs) {
      // The runtime makes no copy for one of two inputs of a node, and hands device memory to all that read
      // the value, its own nodes on the CPU among them.
      if (host != i && node.has_input(host) && node.inputs()[host].name == e.name && !host_input(node, i)) {
        return "an input is read on the host and on the device";
      }
    }
  }
  return op.refuse(node);
}

bool Registry::host_input(const GraphNode& node, size_t i) const {
  const Entry* entry = find(node);
  if (entry == nullptr) return false;
  const auto& host = entry->op.host_inputs;
  return std::find(host.begin(), host.end(), i) != host.end();
}

bool Registry::host_output(const GraphNode& node, size_t i) const {
  const Entry* entry = find(node);
  if (entry == nullptr) return false;
  const auto& host = entry->op.host_outputs;
  return std::find(host.begin(), host.end(), i) != host.end();
}

OrtStatus* Registry::create_kernel(void* state, const abi::OrtKernelInfo* info, abi::OrtKernelImpl** out) {
  const Entry& entry = *static_cast<const Entry*>(state);
  const abi::OrtApi24* api = entry.registry->api_;
  std::string what = entry.op.name;
  try {
    gpu::Device& device = entry.registry->device_;
    device.make_current();
    const abi::NodeInfo node(api, info);
    what += std::string(" (") + element_type_name(node.type()) + ") node '" + node.name + "'";
    auto handle = std::make_unique<KernelHandle>(api, device, what, node.name);
    if (entry.ours) {
      handle->ours.node = node.name;
      handle->ours.inputs = entry.ours->inputs.size();
      handle->ours.outputs = entry.ours->outputs;
      handle->ours.kernel = entry.ours->create(node);
    } else {
      handle->standard = entry.op.create(node);
    }
    *out = handle.release();
    return nullptr;
  } catch (...) {
    return abi::current_exception_status(api, what + ": ");
  }
}

}  // namespace graphopt::ep
