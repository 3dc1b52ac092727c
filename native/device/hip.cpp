// AMD GPUs with libamdhip64, version 5 and newer.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "device/driver.h"

namespace graphopt::gpu {
namespace {

struct Hip : DriverFunctions {
  static constexpr Backend kBackend = Backend::kHip;
  static constexpr int kOutOfMemory = 2;

  int (*set_device_)(int);
  int (*copy_)(void*, const void*, size_t, int, void*);
  int (*get_properties)(void*, int);
  int (*get_last_error)();
  const char* (*error_string)(int);
  int (*graph_instantiate_)(void**, void*, void**, char*, size_t);  // null in old drivers

  size_t arch_offset;  // in the device properties

  Hip() {
    LibrarySearch search;
    search.names = names();
    search.what = "the HIP runtime (libamdhip64)";
    search.installed_first = !hip_runtime_of_onnxruntime().empty();
    library = find_library(search);
    const auto find = [this](const char* name, auto& function) { resolve(library.handle, name, function); };
    find("hipModuleLoadData", module_load);
    find("hipModuleGetFunction", get_function);
    find("hipModuleLaunchKernel", launch);
    find("hipStreamSynchronize", synchronize);
    find("hipMalloc", malloc_);
    find("hipFree", free_);
    find("hipGetDeviceCount", get_device_count);
    find("hipGetDevice", get_device);
    find("hipSetDevice", set_device_);
    find("hipDeviceGetAttribute", get_attribute);
    find("hipMemcpyAsync", copy_);
    find("hipStreamCreateWithFlags", stream_create);
    find("hipStreamDestroy", stream_destroy);
    find("hipStreamWaitEvent", stream_wait_event);
    find("hipEventCreateWithFlags", event_create);
    find("hipEventDestroy", event_destroy);
    find("hipEventRecord", event_record);
    find("hipEventSynchronize", event_synchronize);
    find("hipEventQuery", event_query);
    find("hipEventElapsedTime", event_elapsed);
    find("hipHostMalloc", malloc_pinned);
    find("hipDeviceGetName", get_name);
    find("hipRuntimeGetVersion", get_version);
    find("hipDeviceGetPCIBusId", get_bus_id);
    find("hipDeviceTotalMem", get_memory);
    find("hipGetLastError", get_last_error);
    find("hipGetErrorString", error_string);
    const auto find_optional = [this](const char* name, auto& function) {
      resolve_optional(library.handle, name, function);
    };
    find_optional("hipMemGetInfo", memory_info);
    find_optional("hipStreamBeginCapture", capture_begin);
    find_optional("hipStreamEndCapture", capture_end);
    find_optional("hipStreamIsCapturing", capture_state);
    find_optional("hipThreadExchangeStreamCaptureMode", capture_mode);
    find_optional("hipGraphInstantiate", graph_instantiate_);
    find_optional("hipGraphLaunch", graph_launch);
    find_optional("hipGraphDestroy", graph_destroy);
    find_optional("hipGraphExecDestroy", graph_exec_destroy);
    // HIP 6 extended the struct of device properties and renamed the function that fills it in.
    constexpr size_t kArchSinceSix = 1160, kArchBefore = 396;
    const bool grown = dlsym(library.handle, "hipGetDevicePropertiesR0600") != nullptr;
    find(grown ? "hipGetDevicePropertiesR0600" : "hipGetDeviceProperties", get_properties);
    arch_offset = grown ? kArchSinceSix : kArchBefore;
  }

  // The runtime that ONNX Runtime's own provider needs comes first: a process must not load two HIP runtimes.
  static std::vector<std::string> names() {
    std::vector<std::string> all = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                    "libamdhip64.so"};
    const std::string needed = hip_runtime_of_onnxruntime();
    if (!needed.empty()) {
      all.erase(std::remove(all.begin(), all.end(), needed), all.end());
      all.insert(all.begin(), needed);
    }
    return all;
  }

  bool has_graphs() const { return has_common_graphs() && graph_instantiate_ != nullptr; }
  int graph_instantiate(void** ready, void* captured) const {
    return graph_instantiate_(ready, captured, nullptr, nullptr, 0);
  }

  // From HIP 7 on, an error remains the last error of the thread until a call reads it. Other code would take it
  // for its own error, so every error of our calls is cleared.
  void clear_error() const noexcept { get_last_error(); }

  void* enter(int number) const {
    int before = 0;
    check(get_device(&before), "hipGetDevice");
    if (before != number) check(set_device_(number), "hipSetDevice");
    return reinterpret_cast<void*>(static_cast<intptr_t>(before));
  }
  void leave(void* before) const noexcept {
    const auto number = static_cast<int>(reinterpret_cast<intptr_t>(before));
    int now = 0;
    if (get_device(&now) != 0 || (now != number && set_device_(number) != 0)) clear_error();
  }

  int copy(void* to, const void* from, size_t bytes, void* stream) const {
    constexpr int kDefault = 4;  // the direction is deduced from the addresses
    return copy_(to, from, bytes, kDefault, stream);
  }

  void check(int status, const char* what) const {
    if (status == 0) return;
    clear_error();
    throw DriverError(
        status, std::string(what) + ": HIP error " + std::to_string(status) + ", " + error_string(status));
  }

  // Returns 10,000,000 major + 100,000 minor + patch.
  int version() const {
    int v = 0;
    check(get_version(&v), "hipRuntimeGetVersion");
    return v;
  }

  // Returns whether the runtime counts a work-group processor as one multiprocessor, not as its two compute
  // units. This is the value of clr's flag GPU_ENABLE_WGP_MODE, which is true by default
  // (rocclr/utils/flags.hpp; Flag::setValue parses it).
  static bool counts_wgps() {
    const char* flag = std::getenv("GPU_ENABLE_WGP_MODE");
    return flag == nullptr || std::strcmp(flag, "true") == 0 || std::atoi(flag) != 0;
  }

  DeviceFacts facts(int number) const {
    // hipDeviceAttribute_t since HIP 5.0.
    constexpr int kClockRate = 5, kIntegrated = 16, kMemoryBusWidth = 59, kMemoryClockRate = 60,
                  kMultiprocessors = 63;
    const auto attribute = [&](int which) {
      int value = 0;
      check(get_attribute(&value, which, number), "hipDeviceGetAttribute");
      return value;
    };
    alignas(16) char properties[4096] = {};
    check(get_properties(properties, number), "hipGetDeviceProperties");
    const std::string full(properties + arch_offset, strnlen(properties + arch_offset, 256));
    const std::string arch = full.substr(0, full.find(':'));  // without features such as :sramecc+
    DeviceFacts f;
    f.arch = arch;
    const int multiprocessors = attribute(kMultiprocessors);
    if (const Architecture* known = find_architecture(arch)) {
      f = make_facts(arch, multiprocessors * (counts_wgps() ? known->units_per_multiprocessor : 1),
                     1e3 * attribute(kClockRate), 1e3 * attribute(kMemoryClockRate),
                     attribute(kMemoryBusWidth));
    }
    f.multiprocessors = multiprocessors;
    f.features = full.substr(arch.size());
    char text[256] = {};
    check(get_name(text, sizeof text - 1, number), "hipDeviceGetName");
    f.name = text;
    char bus[64] = {};
    check(get_bus_id(bus, sizeof bus - 1, number), "hipDeviceGetPCIBusId");
    f.bus_id = bus;
    check(get_memory(&f.memory, number), "hipDeviceTotalMem");
    f.integrated = attribute(kIntegrated) != 0;
    const int v = version();
    f.driver = "HIP " + std::to_string(v / 10000000) + "." + std::to_string(v / 100000 % 100) + "." +
               std::to_string(v % 100000);
    return f;
  }

  // ROCm 7.2.0 to 7.2.3, which are HIP 7.2.53210 to 7.2.53213, corrupt results at random (clr issue 279).
  // Replays of graphs gave stale values from about 200 nodes on (hip issue 3887). Graphs are therefore
  // limited to fewer nodes, and their results are compared with the results of single launches. Up to ROCm
  // 7.0.1 a captured hipExtModuleLaunchKernel skips the last work-groups of its grid if these have fewer
  // work-items than the others (clr issue 179).
  GraphRules graph_rules() const {
    const int v = version();
    return {v < 70200000 || v > 70253213, 150, true, v >= 70100000};
  }

  // Returns the prefix of the names of AMD's architectures.
  static const char* prefix() { return "gfx"; }

  int count_devices(int* count) const {
    const int status = get_device_count(count);
    if (status != 0) clear_error();
    return status;
  }

  // Returns whether the runtime loads code objects of generic targets, as ROCm 6.4 and newer do.
  bool loads_generic_code() const { return version() >= 60400000; }

  // The runtime has one error for all reasons; amd_system.h finds the reason.
  Diagnosis explain_no_devices(int status) const {
    return {"no_device", std::string("the runtime shows no AMD GPU (") + error_string(status) + ")", ""};
  }

  void prepare(Function) const {}
};

// Loads the runtime at the first call. If it is not found, the next call searches again.
Hip& hip() {
  static auto& instance = *new Hip;
  return instance;
}

}  // namespace

DetectedDriver find_hip() { return find_devices(hip); }

std::unique_ptr<Device> open_hip(int number, const DeviceFacts& facts) {
  return std::make_unique<DriverDevice<Hip>>(hip(), number, facts);
}

SharedLibrary hip_library() { return hip().library; }

int current_hip() {
  int number = 0;
  hip().check(hip().get_device(&number), "hipGetDevice");
  return number;
}

}  // namespace graphopt::gpu
