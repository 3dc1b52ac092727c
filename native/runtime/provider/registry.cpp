#include "runtime/provider/registry.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "device/libraries/libraries.h"
#include "operators/kernels.h"
#include "runtime/abi/error.h"
#include "runtime/provider/control_flow.h"
#include "runtime/provider/guarded.h"
#include "runtime/provider/memory.h"
#include "runtime/provider/profile.h"
#include "runtime/provider/random.h"
#include "runtime/provider/region.h"
#include "runtime/provider/staging.h"
#include "runtime/run_node.h"

namespace graphopt::provider {
namespace {

using abi::OrtStatus;

// The kernel object that the runtime holds for one node.
struct KernelHandle final : abi::OrtKernelImpl {
  const abi::OrtApi24* api;
  gpu::Device& device;
  std::string what;  // operator and node, for messages
  abi::HostMemory memory;
  std::shared_ptr<Profile> profile;
  std::string op;
  runtime::BoundKernel bound;

  KernelHandle(const abi::OrtApi24* a, gpu::Device& d, std::string text, std::shared_ptr<Profile> of_session)
      : OrtKernelImpl{}, api(a), device(d), what(std::move(text)), memory(a), profile(std::move(of_session)) {
    version = abi::kEpApiRevision;
    Compute = [](OrtKernelImpl* p, abi::OrtKernelContext* context) {
      return static_cast<KernelHandle*>(p)->compute(
          abi::Context(static_cast<KernelHandle*>(p)->api, static_cast<KernelHandle*>(p)->api, context));
    };
    Release = [](OrtKernelImpl* p) {
      auto* handle = static_cast<KernelHandle*>(p);
      try {
        const gpu::OnDevice on(handle->device);  // kernels free device memory
        delete handle;
      } catch (const std::exception&) {
        delete handle;
      }
    };
  }

  OrtStatus* compute(const abi::Context& context) const noexcept {
    try {
      last_failure();  // clears failures of other nodes
      const gpu::OnDevice on(device);
      NodeTimer timer(*profile, bound.node, op, bound.node, context.gpu_stream());
      run_node(bound, context, memory);
      timer.finish();
      return nullptr;
    } catch (...) {
      return failed_run(api, [&] { return what + ", inputs" + runtime::input_shapes(context); });
    }
  }
};

// A copy node that the runtime inserts between providers.
class CopyKernel final : public Kernel {
 public:
  CopyKernel(gpu::Device& device, bool from_host) : device_(device), from_host_(from_host) {
    count_region(from_host ? RegionEvent::kCopyIn : RegionEvent::kCopyOut);
  }

  gpu::Device* device() const override { return &device_; }

  void plan(Call& call) const override {
    const Tensor& x = call.input(0);
    call.set_output(0, x.shape, x.type, from_host_ ? Place::kDevice : Place::kHost);
  }

  bool run(Call& call) const override {
    const Tensor& x = call.inputs[0];
    const size_t bytes = x.bytes();
    if (bytes == 0) return true;
    if (from_host_) {
      staging(device_).upload(call.outputs[0].data, x.data, bytes, call.stream);
    } else {
      device_.copy(call.outputs[0].data, x.data, bytes, call.stream);
      device_.synchronize(call.stream);
    }
    return true;
  }

 private:
  gpu::Device& device_;
  bool from_host_;
};

// Reads the session options for nodes with several implementations.
void read_options(const abi::OrtApi24* api, const abi::OrtKernelInfo* info, runtime::BoundKernel& bound) {
  auto* raw = abi::get<abi::OrtKeyValuePairs*>(api, abi::KernelInfo_GetConfigEntries, info);
  const auto pairs = abi::own<abi::ReleaseKeyValuePairs>(api, raw);
  const char* only = abi::GetKeyValue(api, raw, option_key("implementation").c_str());
  if (only != nullptr) bound.only = std::atoi(only);
  const char* libraries = abi::GetKeyValue(api, raw, option_key("libraries").c_str());
  bound.libraries = std::make_shared<gpu::LibraryChoices>(libraries != nullptr ? libraries : "");
  const char* measured = abi::GetKeyValue(api, raw, option_key("measured").c_str());
  if (measured != nullptr && *measured != '\0') bound.measured = open_measurements(measured);
}

// Returns all kernels of the provider, including the runtime's copy nodes.
Table with_copies(gpu::Device& device) {
  Table table = with_random(with_control_flow(provider_kernels(device)), &device);
  for (const bool from_host : {true, false}) {
    Registration& op = table.emplace_back();
    op.name = from_host ? "MemcpyFromHost" : "MemcpyToHost";
    (from_host ? op.host_inputs : op.host_outputs) = {0};
    op.refuse = [](const Node&) { return std::string("only the runtime creates such nodes"); };
    op.create = [&device, from_host](const Node&) { return std::make_unique<CopyKernel>(device, from_host); };
  }
  return table;
}

}  // namespace

std::shared_ptr<gpu::Measured> open_measurements(const std::string& path) {
  return std::make_shared<gpu::Measured>(path, GRAPHOPT_VERSION);
}

std::string option_key(const char* name) {
  std::string key = std::string("ep.") + kProviderName + "." + name;
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::tolower(c); });
  return key;
}

std::string describe_implementations(gpu::Device& device) {
  std::string text;
  for (const Registration& op : provider_kernels(device)) {
    const std::vector<std::string>& names = op.implementations.names;
    if (names.size() < 2) continue;
    text += (text.empty() ? "\"" : ", \"") + op.name + "\": [";
    for (size_t i = 0; i < names.size(); ++i) {
      text += (i > 0 ? ", \"" : "\"") + names[i] + "\"";
    }
    text += "]";
  }
  return "{" + text + "}";
}

Registry::Registry(const abi::OrtApi24* api, gpu::Device& device)
    : api_(api), device_(device), registry_(nullptr, Release{api}), claims_(with_copies(device)) {
  abi::OrtKernelRegistry* raw = nullptr;
  abi::check(api, abi::CreateKernelRegistry(abi::GetEpApi(api), &raw));
  registry_.reset(raw);
  const gpu::OnDevice on(device);
  for (const Registration& op : claims_.table()) add(op);
}

void Registry::Release::operator()(abi::OrtKernelRegistry* registry) const {
  abi::ReleaseKernelRegistry(abi::GetEpApi(api), registry);
}

void Registry::add(const Registration& op) {
  Entry& entry = *entries_.emplace_back(std::make_unique<Entry>(Entry{this, &op}));
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
    abi::check(api_, abi::KernelRegistry_AddKernel(ep, registry_.get(), def, create_kernel, &entry));
  } catch (...) {
    if (def != nullptr) abi::ReleaseKernelDef(ep, def);
    abi::ReleaseKernelDefBuilder(ep, builder);
    throw;
  }
  abi::ReleaseKernelDef(ep, def);
  abi::ReleaseKernelDefBuilder(ep, builder);
}

OrtStatus* Registry::create_kernel(void* state, const abi::OrtKernelInfo* info, abi::OrtKernelImpl** out) {
  const Entry& entry = *static_cast<const Entry*>(state);
  const abi::OrtApi24* api = entry.registry->api_;
  std::string what = entry.op->name;
  try {
    gpu::Device& device = entry.registry->device_;
    const gpu::OnDevice on(device);
    abi::NodeInfo node(api, info, entry.op->name);
    abi::check(api, abi::KernelInfo_GetOperatorSinceVersion(api, info, &node.version));
    what += std::string(" (") + element_type_name(node.type()) + ") node '" + node.name + "'";
    if (entry.op->create == nullptr) {
      *out = create_control_flow(api, info, device, entry.op->name);
      return nullptr;
    }
    const abi::OrtEp* ep = nullptr;
    abi::check(api, abi::KernelInfo_GetEp(abi::GetEpApi(api), info, &ep));
    auto handle =
        std::make_unique<KernelHandle>(api, device, what, static_cast<const ProfiledEp*>(ep)->profile);
    handle->op = entry.op->name;
    handle->bound = {entry.op->create(node), node.name, node.inputs.size(), node.outputs.size(),
                     entry.op->host_inputs};
    handle->bound.kernel->prepare(node);
    if (entry.op->implementations.names.size() > 1) read_options(api, info, handle->bound);
    for (const auto& load : entry.op->implementations.loads) load(device, handle->bound.libraries.get());
    *out = handle.release();
    return nullptr;
  } catch (...) {
    return abi::current_exception_status(api, {what});
  }
}

}  // namespace graphopt::provider
