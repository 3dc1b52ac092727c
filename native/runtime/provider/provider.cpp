// The plugin execution provider for ONNX Runtime 1.24 and newer: reports devices and claims nodes.
//
// The session must know the operators of the domain com.graphopt (RegisterCustomOps); this file only adds kernels.
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "device/devices.h"
#include "device/libraries/libraries.h"
#include "device/shared_library.h"
#include "operators/kernels.h"
#include "runtime/abi/graph.h"
#include "runtime/abi/session_options.h"
#include "runtime/name_patterns.h"
#include "runtime/provider/claims.h"
#include "runtime/provider/control_flow.h"
#include "runtime/provider/guarded.h"
#include "runtime/provider/memory.h"
#include "runtime/provider/pairing.h"
#include "runtime/provider/partition.h"
#include "runtime/provider/profile.h"
#include "runtime/provider/region.h"
#include "runtime/provider/registry.h"

namespace graphopt::provider {
namespace {

using abi::check;
using abi::GraphNode;
using abi::OrtApi24;
using abi::OrtStatus;

constexpr const char* kNumberKey = "graphopt.device";  // metadata key of a device: its index

// Returns the index of the device that pinned memory belongs to; -1 for other memory.
int pinned_number(const OrtApi24* api, const abi::OrtMemoryInfo* info) {
  const abi::OrtEpApi* ep = abi::GetEpApi(api);
  const abi::OrtMemoryDevice* device = abi::MemoryInfo_GetMemoryDevice(ep, info);
  return is_host_accessible(api, device) ? static_cast<int>(abi::MemoryDevice_GetDeviceId(ep, device)) : -1;
}

// Returns memory without a limit.
std::shared_ptr<SessionMemory> memory_of(Pool& pool) { return std::make_shared<SessionMemory>(pool, 0); }

struct Options {
  size_t memory_limit = 0;   // bytes of a session; 0: no limit
  bool host_memory = false;  // whether an integrated device has its tensors in pinned host memory
  bool regions = true;       // whether nodes run as regions
  RegionOptions region;
  ChoiceOptions choice;
};

// The provider of one session.
struct Provider final : ProfiledEp {
  const OrtApi24* api;
  const Registry& registry;
  const abi::OrtLogger* logger;
  Options options;
  std::shared_ptr<SessionMemory> memory;
  std::shared_ptr<RegionCache> cache;
  // The memory of the runtime's tensors, if it is host memory that an integrated device shares; otherwise null.
  const abi::OrtMemoryInfo* host_memory;
  std::set<std::string> computed_on_host;  // values that regions compute during planning
  bool warned = false;                     // that all nodes run on the CPU

  Provider(const OrtApi24* a, uint32_t revision, const Registry& r, Pool& p, const abi::OrtLogger* l,
           Options o, const abi::OrtMemoryInfo* host)
      : ProfiledEp{},
        api(a),
        registry(r),
        logger(l),
        options(std::move(o)),
        memory(std::make_shared<SessionMemory>(p, options.memory_limit)),
        cache(RegionCache::create(memory)),
        host_memory(host) {
    version = revision;
    profile = std::make_shared<Profile>(api, registry.device());
    GetName = [](const OrtEp*) { return kProviderName; };
    GetCapability = [](OrtEp* p, const abi::OrtGraph* graph, abi::OrtEpGraphSupportInfo* out) {
      auto* self = static_cast<Provider*>(p);
      return guarded(self->api, {kProviderName, ", choice of nodes"}, [&] { self->choose(graph, out); });
    };
    CreateAllocator = [](OrtEp* p, const abi::OrtMemoryInfo* info, abi::OrtAllocatorImpl** out) {
      auto* self = static_cast<Provider*>(p);
      return guarded(self->api, {kProviderName, ", allocator"}, [&] {
        const int pinned = pinned_number(self->api, info);
        *out = new Allocator(self->api, pinned >= 0 ? memory_of(pinned_pool(pinned)) : self->memory, info);
      });
    };
    CreateSyncStreamForDevice = [](OrtEp* p, const abi::OrtMemoryDevice*, abi::OrtSyncStreamImpl** out) {
      auto* self = static_cast<Provider*>(p);
      return guarded(self->api, {kProviderName, ", stream"},
                     [&] { *out = create_stream(self->api, self->memory); });
    };
    Compile = [](OrtEp* p, const abi::OrtGraph** graphs, const abi::OrtNode** nodes, size_t count,
                 abi::OrtNodeComputeInfo** infos, abi::OrtNode**) {
      auto* self = static_cast<Provider*>(p);
      return guarded(self->api, {kProviderName, ", session"}, [&] {
        for (size_t i = 0; i < count; ++i) {
          infos[i] = new Region(self->registry, graphs[i], nodes[i], self->computed_on_host, self->memory,
                                self->cache, self->profile, self->options.region);
        }
      });
    };
    ReleaseNodeComputeInfos = [](OrtEp*, abi::OrtNodeComputeInfo** infos, size_t count) {
      for (size_t i = 0; i < count; ++i) delete static_cast<Region*>(infos[i]);
    };
    GetKernelRegistry = [](OrtEp* p, const abi::OrtKernelRegistry** out) -> OrtStatus* {
      *out = static_cast<Provider*>(p)->registry.raw();
      return nullptr;
    };
    IsConcurrentRunSupported = [](OrtEp*, bool* out) -> OrtStatus* {
      *out = true;
      return nullptr;
    };
    CreateProfiler = [](OrtEp* p, abi::OrtEpProfilerImpl** out) {
      auto* self = static_cast<Provider*>(p);
      return guarded(self->api, {kProviderName, ", profile"},
                     [&] { *out = create_profiler(self->api, self->registry.device(), self->profile); });
    };
    GetDefaultMemoryDevice = [](const OrtEp* p, const abi::OrtMemoryDevice** out) -> OrtStatus* {
      const auto* self = static_cast<const Provider*>(p);
      *out = self->host_memory != nullptr
                 ? abi::MemoryInfo_GetMemoryDevice(abi::GetEpApi(self->api), self->host_memory)
                 : nullptr;
      return nullptr;
    };
  }

  void log(abi::LogSeverity severity, const std::string& text) const {
    check(api,
          abi::Logger_LogMessage(api, logger, severity, text.c_str(), __FILE__, __LINE__, "GetCapability"));
  }

  void choose(const abi::OrtGraph* graph, abi::OrtEpGraphSupportInfo* out) {
    const std::vector<GraphNode> nodes = abi::graph_nodes(api, graph, kProviderName);
    std::vector<const NodeInGraph*> in_graph;
    for (const GraphNode& node : nodes) in_graph.push_back(&node);
    Body body = {abi::parent_operator(api, graph), abi::output_names(api, graph)};
    for (const GraphNode& node : nodes) body.assigned.push_back(node.is_assigned_here());
    std::vector<std::string> refusals = provider::choose(registry.claims(), in_graph, body, options.choice);
    if (body.parent.empty()) warn_if_all_on_cpu(refusals);
    std::vector<bool> in_region(nodes.size());
    if (options.regions && !is_moved_later(body.parent)) {
      const Regions regions = choose_regions(registry.claims(), in_graph, body, refusals);
      add_regions(nodes, regions, out, in_region);
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (in_region[i] || body.assigned[i]) continue;
      if (refusals[i].empty()) {
        check(api, abi::EpGraphSupportInfo_AddSingleNode(abi::GetEpApi(api), out, nodes[i].raw()));
      } else {
        log(abi::LogSeverity::kInfo, std::string(kProviderName) + " leaves node '" + nodes[i].name + "' (" +
                                         nodes[i].op + ") to the CPU: " + refusals[i]);
      }
    }
  }

  // Warns once if the whole model is left to the CPU although the caller chose this provider.
  void warn_if_all_on_cpu(const std::vector<std::string>& refusals) {
    const bool all = std::none_of(refusals.begin(), refusals.end(), [](const auto& r) { return r.empty(); });
    if (!all || refusals.empty() || warned) return;
    warned = true;
    log(abi::LogSeverity::kWarning,
        "all nodes run on the CPU: " + refusals[0] +
            ". The provider option min_nodes=1 places them on the device if it has kernels");
  }

  // Returns true if the graph belongs to a node that the runtime later replaces by its function body, such as
  // SequenceMap. If nodes are compiled in such a graph, the runtime moves them to a graph that does not import
  // com.graphopt. The model then does not load (onnxruntime 1.31.1). The runtime reports only the direct
  // parent (Node_GetGraph returns null for the parent). An If inside SequenceMap's body is therefore treated
  // like any other If, because the subgraphs of an If can be whole models.
  static bool is_moved_later(const std::string& parent) {
    return !parent.empty() && !is_control_flow("", parent);
  }

  void add_regions(const std::vector<GraphNode>& nodes, const Regions& regions,
                   abi::OrtEpGraphSupportInfo* out, std::vector<bool>& in_region) {
    for (const std::vector<size_t>& region : regions.members) {
      std::vector<const abi::OrtNode*> raw;
      for (const size_t i : region) {
        raw.push_back(nodes[i].raw());
        in_region[i] = true;
        if (regions.computed_on_host[i]) computed_on_host.insert(nodes[i].output_names()[0]);
      }
      const abi::OrtNodeFusionOptions fusion = {abi::kEpApiRevision, true};
      check(api,
            abi::EpGraphSupportInfo_AddNodesToFuse(abi::GetEpApi(api), out, raw.data(), raw.size(), &fusion));
    }
  }
};

struct Factory final : abi::OrtEpFactory {
  const OrtApi24* api;
  const uint32_t revision;  // the newest one that both the runtime and this library have
  std::mutex mutex;
  std::map<int, std::unique_ptr<Registry>> registries;
  std::map<int, abi::OrtMemoryInfo*> memory, pinned;

  Factory(const OrtApi24* a, uint32_t common_revision) : OrtEpFactory{}, api(a), revision(common_revision) {
    version = abi::kEpApiRevision;
    GetName = [](const OrtEpFactory*) { return kProviderName; };
    GetVendor = [](const OrtEpFactory*) { return "graphopt"; };
    GetVersion = [](const OrtEpFactory*) { return GRAPHOPT_VERSION; };
    GetVendorId = [](const OrtEpFactory*) -> uint32_t {
      return gpu::device_count() > 0 ? vendor_id(gpu::backend(0)) : 0;
    };
    GetSupportedDevices = [](OrtEpFactory* p, const abi::OrtHardwareDevice* const* devices, size_t count,
                             abi::OrtEpDevice** out, size_t max_count, size_t* found) {
      auto* self = static_cast<Factory*>(p);
      return guarded(self->api, {kProviderName, ", search for devices"},
                     [&] { *found = self->find_devices(devices, count, out, max_count); });
    };
    CreateEp = [](OrtEpFactory* p, const abi::OrtHardwareDevice* const*,
                  const abi::OrtKeyValuePairs* const* metadata, size_t count,
                  const abi::OrtSessionOptions* options, const abi::OrtLogger* logger, abi::OrtEp** out) {
      auto* self = static_cast<Factory*>(p);
      return guarded(self->api, {kProviderName, ", session"}, [&] {
        if (count != 1) throw Error("a session must have exactly one device");
        const char* number = abi::GetKeyValue(self->api, metadata[0], kNumberKey);
        const int device = number != nullptr ? std::atoi(number) : 0;
        const Registry& of = self->registry(device);
        const gpu::OnDevice on(of.device());  // throws for a device that has failed
        const Options read = self->read(options, of.device().graph_rules());
        // With a limit, inputs and outputs must be in the memory that the limit counts.
        const bool shares = of.device().facts().integrated && read.host_memory && read.memory_limit == 0;
        *out = new Provider(self->api, self->revision, of, pool(device), logger, read,
                            shares ? self->pinned[device] : nullptr);
      });
    };
    ReleaseEp = [](OrtEpFactory*, abi::OrtEp* ep) { delete static_cast<Provider*>(ep); };
    CreateAllocator = [](OrtEpFactory* p, const abi::OrtMemoryInfo* info, const abi::OrtKeyValuePairs*,
                         abi::OrtAllocatorImpl** out) {
      auto* self = static_cast<Factory*>(p);
      return guarded(self->api, {kProviderName, ", allocator"}, [&] {
        const int pinned = pinned_number(self->api, info);
        Pool& from = pinned >= 0 ? pinned_pool(pinned) : pool(self->number(info));
        *out = new Allocator(self->api, memory_of(from), info);
      });
    };
    ReleaseAllocator = [](OrtEpFactory*, abi::OrtAllocatorImpl* a) { delete static_cast<Allocator*>(a); };
    CreateDataTransfer = [](OrtEpFactory* p, abi::OrtDataTransferImpl** out) {
      auto* self = static_cast<Factory*>(p);
      return guarded(self->api, {kProviderName, ", copies"}, [&] { *out = create_data_transfer(self->api); });
    };
    IsStreamAware = [](const OrtEpFactory*) { return true; };
    CreateSyncStreamForDevice = [](OrtEpFactory* p, const abi::OrtMemoryDevice* device,
                                   const abi::OrtKeyValuePairs*, abi::OrtSyncStreamImpl** out) {
      auto* self = static_cast<Factory*>(p);
      return guarded(self->api, {kProviderName, ", stream"}, [&] {
        const auto n = static_cast<int>(abi::MemoryDevice_GetDeviceId(abi::GetEpApi(self->api), device));
        *out = create_stream(self->api, memory_of(pool(n)));
      });
    };
  }

  ~Factory() {
    for (const auto* infos : {&memory, &pinned}) {
      for (const auto& [number, info] : *infos) abi::ReleaseMemoryInfo(api, info);
    }
  }

  int number(const abi::OrtMemoryInfo* info) const {
    const abi::OrtEpApi* ep = abi::GetEpApi(api);
    return static_cast<int>(abi::MemoryDevice_GetDeviceId(ep, abi::MemoryInfo_GetMemoryDevice(ep, info)));
  }

  const Registry& registry(int device) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& slot = registries[device];
    if (slot == nullptr) slot = std::make_unique<Registry>(api, gpu::device(device));
    return *slot;
  }

  // Writes the devices to `out` and returns their number. The runtime's list may lack GPUs (in a container
  // without /sys/class/drm); these are attached to its CPU.
  size_t find_devices(const abi::OrtHardwareDevice* const* devices, size_t count, abi::OrtEpDevice** out,
                      size_t max_count) {
    std::vector<const abi::OrtHardwareDevice*> gpus;
    std::vector<Hardware> hardware;
    const abi::OrtHardwareDevice* cpu = nullptr;
    for (size_t i = 0; i < count; ++i) {
      const abi::HardwareType type = abi::HardwareDevice_Type(api, devices[i]);
      if (type == abi::HardwareType::kCpu && cpu == nullptr) cpu = devices[i];
      if (type != abi::HardwareType::kGpu) continue;
      gpus.push_back(devices[i]);
      hardware.push_back({abi::HardwareDevice_VendorId(api, devices[i]), bus_id(devices[i])});
    }
    const std::vector<int> numbers = gpu::provider_devices();
    std::vector<Hardware> ours;
    ours.reserve(numbers.size());
    for (const int n : numbers) ours.push_back({vendor_id(gpu::backend(n)), gpu::usable_device(n)->bus_id});
    const std::vector<int> pairs = pair_devices(ours, hardware);
    size_t found = 0;
    for (size_t i = 0; i < numbers.size() && found < max_count; ++i) {
      const auto* on = pairs[i] >= 0 ? gpus[static_cast<size_t>(pairs[i])] : cpu;
      if (on != nullptr)
        out[found++] = make_device(on, numbers[i], ours[i].vendor, *gpu::usable_device(numbers[i]));
    }
    return found;
  }

  // Returns the bus ID of a device. Older runtimes report only the number of its DRM card.
  std::string bus_id(const abi::OrtHardwareDevice* device) const {
    const abi::OrtKeyValuePairs* metadata = abi::HardwareDevice_Metadata(api, device);
    if (metadata == nullptr) return {};
    if (const char* bus = abi::GetKeyValue(api, metadata, "pci_bus_id")) return bus;
    const char* card = abi::GetKeyValue(api, metadata, "card_idx");
    return card != nullptr ? bus_id_of_card(card) : std::string();
  }

  abi::OrtEpDevice* make_device(const abi::OrtHardwareDevice* hardware, int n, uint32_t vendor,
                                const gpu::DeviceFacts& facts) {
    const abi::OrtEpApi* ep = abi::GetEpApi(api);
    const auto memory_info = [&](const char* name, abi::DeviceMemoryType type, abi::OrtMemoryInfo*& info) {
      if (info == nullptr) {
        info = abi::get<abi::OrtMemoryInfo*>(api, abi::CreateMemoryInfo_V2, name, abi::MemoryDeviceType::kGpu,
                                             vendor, n, type, 0, abi::AllocatorType::kDevice);
      }
      return info;
    };
    abi::OrtKeyValuePairs* metadata = nullptr;
    abi::CreateKeyValuePairs(api, &metadata);
    const auto set_metadata = [&](const char* key, const std::string& value) {
      abi::AddKeyValuePair(api, metadata, key, value.c_str());
    };
    set_metadata(kNumberKey, std::to_string(n));
    set_metadata("graphopt.arch", facts.arch);
    set_metadata("graphopt.name", facts.name);
    set_metadata("graphopt.driver", facts.driver);
    set_metadata("graphopt.wave", std::to_string(facts.wave));
    set_metadata("graphopt.code", facts.code);
    set_metadata("graphopt.bus_id", facts.bus_id);
    set_metadata("graphopt.integrated", facts.integrated ? "1" : "0");
    abi::OrtEpDevice* raw = nullptr;
    abi::OrtStatus* status = abi::CreateEpDevice(ep, this, hardware, metadata, nullptr, &raw);
    abi::ReleaseKeyValuePairs(api, metadata);
    check(api, status);
    auto device = abi::own<abi::ReleaseEpDevice>(ep, raw);
    const auto* own_memory = memory_info("Graphopt", abi::DeviceMemoryType::kDefault, memory[n]);
    check(api, abi::EpDevice_AddAllocatorInfo(ep, raw, own_memory));
    // Pinned host memory for tensors of callers, and of sessions on integrated devices.
    const auto* host = memory_info("GraphoptPinned", abi::DeviceMemoryType::kHostAccessible, pinned[n]);
    check(api, abi::EpDevice_AddAllocatorInfo(ep, raw, host));
    return device.release();
  }

  Options read(const abi::OrtSessionOptions* session, const gpu::GraphRules& graphs) const {
    Options options;
    read(session, "memory_limit", options.memory_limit);
    size_t host_memory = 0;
    read(session, "host_memory", host_memory);
    options.host_memory = host_memory != 0;
    read(session, "min_nodes", options.choice.min_nodes);
    size_t regions = 1, capture = graphs.by_default ? 1 : 0, implementation = 0;
    options.region.graph_nodes = graphs.max_nodes;
    options.region.verify_graphs = graphs.verified;
    read(session, "regions", regions);
    read(session, "capture", capture);
    read(session, "graph_nodes", options.region.graph_nodes);
    options.regions = regions != 0 && abi::config_entry(api, session, "ep.context_enable") != "1";
    options.region.capture = capture != 0;
    if (!text(session, "implementation").empty()) {
      read(session, "implementation", implementation, INT_MAX);
      options.region.implementation = static_cast<int>(implementation);
    }
    if (!text(session, "channels_last").empty()) {
      size_t channels_last = 0;
      read(session, "channels_last", channels_last);
      options.region.channels_last = channels_last != 0;
    }
    options.region.libraries = std::make_shared<gpu::LibraryChoices>(text(session, "libraries"));
    const std::string measured = text(session, "measured");
    if (!measured.empty()) options.region.measured = open_measurements(measured);
    options.choice.disabled = split_patterns(text(session, "disable"));
    for (std::string& pattern : disabled_everywhere()) options.choice.disabled.push_back(std::move(pattern));
    return options;
  }

  void read(const abi::OrtSessionOptions* session, const char* name, size_t& value,
            size_t max_value = SIZE_MAX) const {
    const std::string option = text(session, name);
    if (option.empty()) return;
    const char* end = option.data() + option.size();
    const auto [parsed, error] = std::from_chars(option.data(), end, value);
    if (error != std::errc() || parsed != end || value > max_value) {
      throw Error(std::string("option ") + name + " must be a number from 0 to " + std::to_string(max_value) +
                  ", not '" + option + "'");
    }
  }

  // Returns the text of an option; empty if it is not set.
  std::string text(const abi::OrtSessionOptions* session, const char* name) const {
    return abi::config_entry(api, session, option_key(name)).value_or("");
  }
};

}  // namespace
}  // namespace graphopt::provider

extern "C" __attribute__((visibility("default"))) graphopt::abi::OrtStatus* CreateEpFactories(
    const char*, const graphopt::abi::OrtApiBase* base, const graphopt::abi::OrtLogger*,
    graphopt::abi::OrtEpFactory** factories, size_t max_count, size_t* count) {
  using namespace graphopt;
  *count = 0;
  gpu::set_onnxruntime(reinterpret_cast<const void*>(base->get_api));
  const auto* api = static_cast<const abi::OrtApi24*>(base->get_api(abi::kEpApiRevision));
  if (api == nullptr) return abi::too_old_status(base, provider::kProviderName, "1.24");
  try {
    if (max_count == 0) throw Error("the caller has no slot for a provider");
    const auto [major, minor] = abi::version_of(base);
    const bool newer = major > 1 || minor >= static_cast<int>(abi::kNewestEpApiRevision);
    const uint32_t revision = newer ? abi::kNewestEpApiRevision : static_cast<uint32_t>(minor);
    factories[0] = new provider::Factory(api, std::max(revision, abi::kEpApiRevision));
    *count = 1;
    return nullptr;
  } catch (...) {
    return abi::current_exception_status(api, {"graphopt"});
  }
}

extern "C" __attribute__((visibility("default"))) graphopt::abi::OrtStatus* ReleaseEpFactory(
    graphopt::abi::OrtEpFactory* factory) {
  delete static_cast<graphopt::provider::Factory*>(factory);
  return nullptr;
}

namespace {

// Returns the text of `describe`, valid until the calling thread's next call of the same function; null if it throws.
template <class Describe>
const char* described(const Describe& describe) {
  thread_local std::string text;
  try {
    text = describe();
    return text.c_str();
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace

// Returns the implementations for a device as JSON (region.h); null if there is no device with this number.
extern "C" __attribute__((visibility("default"))) const char* GraphoptImplementations(int device) {
  return described(
      [&] { return graphopt::provider::describe_implementations(graphopt::gpu::device(device)); });
}

extern "C" __attribute__((visibility("default"))) const char* GraphoptMemory() {
  return described([] { return graphopt::provider::describe_memory(); });
}

extern "C" __attribute__((visibility("default"))) const char* GraphoptRegions() {
  return described([] { return graphopt::provider::describe_regions(); });
}
