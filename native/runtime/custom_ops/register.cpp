// The library's entry point for custom operators: registers the CPU kernels of the domain `com.graphopt` and, for ONNX
// Runtime 1.22 and older, the GPU kernels for its ROCm provider. Our provider has another entry point
// (runtime/provider/provider.cpp).
//
// Environment variables, read at each registration:
//   GRAPHOPT_DISABLE  comma-separated op names, a final * matches any ending; these ops are not registered
//                     and our provider does not claim them: their function bodies run instead
//   GRAPHOPT_LOG=1    one line on stderr for the first registration with the same settings, and for each kernel
//                     that is created
//
// Entries of the session's configuration, set before the registration:
//   graphopt.operators  comma-separated op names that the model contains; only these are registered. In every
//                       session the runtime builds a schema for each type of each op: 45 ms for all ops.
//   graphopt.strassen   0: Linear does not use Strassen's algorithm, so the rounding of a row does not depend
//                       on other rows
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "cpu/isa.h"
#include "device/devices.h"
#include "device/libraries/libraries.h"
#include "device/report.h"
#include "device/shared_library.h"
#include "operators/kernels.h"
#include "operators/matmul/linear/op.h"
#include "runtime/abi/session_options.h"
#include "runtime/custom_ops/custom_op.h"
#include "runtime/name_patterns.h"

namespace graphopt {
namespace {

// Read at each registration, unlike log_enabled(), which reads the variable once.
bool logs_kernels() {
  const char* value = std::getenv("GRAPHOPT_LOG");
  return value != nullptr && std::string(value) == "1";
}

void log_kernels(Table& table) {
  for (Registration& op : table) {
    const char* device = !op.device.empty() ? op.device.c_str() : cpu::isa_name(cpu::isa());
    op.create = [create = std::move(op.create), name = op.name, device](const Node& node) {
      auto kernel = create(node);
      std::fprintf(stderr, "graphopt: %s %s node '%s' on %s\n", name.c_str(), element_type_name(node.type()),
                   node.name.c_str(), device);
      return kernel;
    };
  }
}

// A pattern without a match is most likely a misspelt name, and must not be ignored.
void disable(Table& table, const std::string& list) {
  const std::vector<std::string> patterns = split_patterns(list);
  for (const std::string& pattern : patterns) {
    if (std::none_of(table.begin(), table.end(),
                     [&](const Registration& op) { return matches(pattern, op.name); })) {
      throw Error("GRAPHOPT_DISABLE: no op is called '" + pattern + "'");
    }
  }
  const auto is_disabled = [&](const Registration& op) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return matches(pattern, op.name); });
  };
  table.erase(std::remove_if(table.begin(), table.end(), is_disabled), table.end());
}

// Keeps only the listed ops. Unknown names are ops of a newer version of this library; the model contains function
// bodies for them.
void keep_only(Table& table, const std::string& list) {
  const std::vector<std::string> names = split_patterns(list);
  const std::set<std::string> wanted(names.begin(), names.end());
  table.erase(std::remove_if(table.begin(), table.end(),
                             [&](const Registration& op) { return wanted.count(op.name) == 0; }),
              table.end());
}

// Returns whether the table already has a kernel of this op for the CPU provider. With GRAPHOPT_HOST_KERNELS,
// GPU kernels run on the CPU provider and replace the CPU kernels.
bool has_cpu_kernel(const Table& table, const Registration& op) {
  return std::any_of(table.begin(), table.end(), [&](const Registration& other) {
    return other.provider == nullptr && other.name == op.name;
  });
}

// The last ONNX Runtime with a ROCm provider is 1.22; newer ones use this library's provider.
bool has_rocm_provider(const abi::OrtApiBase* runtime) {
  const auto version = abi::version_of(runtime);
  return version != std::pair(0, 0) && version < std::pair(1, 23);
}

// Returns the GPU kernels that are registered as custom operators. If there are none, the GPU's driver is not
// opened: opening it takes longer than many sessions, and many sessions use no GPU.
Table registered_gpu_kernels(const abi::OrtApiBase* runtime) {
  return gpu::host_kernels() != nullptr || has_rocm_provider(runtime) ? rocm_kernels() : Table();
}

// Owns everything that a domain refers to. Never freed: sessions and session options refer to it, and the runtime does
// not report when it destroys them.
struct Registry {
  Table table;
  std::vector<std::unique_ptr<runtime::CustomOp>> ops;
  abi::OrtCustomOpDomain* domain = nullptr;

  Registry(const abi::OrtApiBase* base, const abi::OrtApi* api, const std::string& disabled,
           const std::optional<std::string>& wanted, bool strassen, bool log) {
    table = registered_gpu_kernels(base);
    for (Registration& op : cpu_kernels()) {
      if (!has_cpu_kernel(table, op)) table.push_back(std::move(op));
    }
    if (!strassen) disable_strassen(table);
    disable(table, disabled);
    if (wanted) keep_only(table, *wanted);
    if (log) log_kernels(table);
    // Older runtimes are not queried, because a runtime prints a line if it lacks the revision.
    const auto* api24 = abi::version_of(base) >= std::pair(1, 24)
                            ? static_cast<const abi::OrtApi24*>(base->get_api(abi::kEpApiRevision))
                            : nullptr;
    for (const Registration& op : table) {
      for (const ElementType type : op.types)
        ops.push_back(std::make_unique<runtime::CustomOp>(api, api24, op, type));
    }
    if (log) {
      std::fprintf(stderr, "graphopt: %zu kernels registered%s%s; on the CPU: %s\n", ops.size(),
                   disabled.empty() ? "" : ", without ", disabled.c_str(), cpu::isa_choice().c_str());
    }
    domain = runtime::make_domain(api, kDomain, ops);
  }
};

// Returns the domain for this runtime and these settings. It is cached, because registrations repeat.
abi::OrtCustomOpDomain* domain_for(const abi::OrtApiBase* base, const abi::OrtApi* api,
                                   const std::optional<std::string>& wanted, bool strassen) {
  using Setting = std::tuple<const abi::OrtApi*, std::string, std::optional<std::string>, bool, bool>;
  static std::mutex mutex;
  static auto& registries = *new std::map<Setting, std::unique_ptr<Registry>>;
  const char* variable = std::getenv("GRAPHOPT_DISABLE");
  const std::string disabled = variable != nullptr ? variable : "";
  const bool log = logs_kernels();
  const std::lock_guard<std::mutex> lock(mutex);
  auto& registry = registries[{api, disabled, wanted, strassen, log}];
  if (registry == nullptr) registry = std::make_unique<Registry>(base, api, disabled, wanted, strassen, log);
  return registry->domain;
}

}  // namespace
}  // namespace graphopt

extern "C" __attribute__((visibility("default"))) graphopt::abi::OrtStatus* RegisterCustomOps(
    graphopt::abi::OrtSessionOptions* options, const graphopt::abi::OrtApiBase* base) {
  using namespace graphopt;
  gpu::set_onnxruntime(reinterpret_cast<const void*>(base->get_api));
  const abi::OrtApi* api = base->get_api(abi::kApiRevision);
  if (api == nullptr) return abi::too_old_status(base, "graphopt", "1.18");
  try {
    const auto wanted = abi::config_entry(api, options, "graphopt.operators");
    const std::string strassen = abi::config_entry(api, options, "graphopt.strassen").value_or("1");
    if (strassen != "0" && strassen != "1") {
      throw Error("session configuration graphopt.strassen must be 0 or 1, got '" + strassen + "'");
    }
    abi::check(api, abi::AddCustomOpDomain(api, options, domain_for(base, api, wanted, strassen == "1")));
    return nullptr;
  } catch (...) {
    return abi::current_exception_status(api, {"graphopt"});
  }
}

// Returns the devices found on this machine as JSON (device/report.h), or null on failure. The text is valid until the
// calling thread's next call.
extern "C" __attribute__((visibility("default"))) const char* GraphoptDescribeDevices() {
  thread_local std::string text;
  try {
    text = graphopt::gpu::describe_devices();
    return text.c_str();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "graphopt: %s\n", e.what());
    return nullptr;
  }
}

// Waits until the vendor's libraries have loaded or built all kernels that convolutions requested. Returns
// the number of convolutions that became ready since the last call.
extern "C" __attribute__((visibility("default"))) size_t GraphoptFinishLoading() {
  return graphopt::gpu::finish_loading();
}
