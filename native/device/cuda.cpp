// NVIDIA GPUs with the CUDA driver (libcuda), to test and measure the kernels on machines without an AMD GPU.
#include "device/driver.h"

namespace graphopt::gpu {
namespace {

struct Cuda : DriverFunctions {
  static constexpr Backend kBackend = Backend::kCuda;
  static constexpr int kOutOfMemory = 2;

  int (*init)(unsigned);
  int (*set_function_attribute)(Function, int, int);
  int (*get_function_attribute)(int*, int, Function);
  int (*error_string)(int, const char**);
  int (*device_get)(int*, int);
  int (*retain_context)(void**, int);
  int (*set_context)(void*);
  int (*copy_)(void*, const void*, size_t, void*);
  int (*get_context)(void**);
  int (*graph_instantiate_)(void**, void*, unsigned long long);  // null in old drivers

  std::mutex mutex;
  std::map<int, void*> contexts;  // primary contexts (shared with the runtime API) by device number

  Cuda() {
    LibrarySearch search;
    search.names = {"libcuda.so.1"};
    search.what = "the CUDA driver (libcuda)";
    library = find_library(search);
    resolve(library.handle, "cuCtxGetCurrent", get_context);
    resolve(library.handle, "cuDeviceGetPCIBusId", get_bus_id);
    resolve(library.handle, "cuDeviceTotalMem_v2", get_memory);
    resolve(library.handle, "cuInit", init);
    resolve(library.handle, "cuGetErrorString", error_string);
    resolve(library.handle, "cuModuleLoadData", module_load);
    resolve(library.handle, "cuModuleGetFunction", get_function);
    resolve(library.handle, "cuLaunchKernel", launch);
    resolve(library.handle, "cuStreamSynchronize", synchronize);
    resolve(library.handle, "cuMemAlloc_v2", malloc_);
    resolve(library.handle, "cuMemFree_v2", free_);
    resolve(library.handle, "cuCtxGetDevice", get_device);
    resolve(library.handle, "cuDeviceGetAttribute", get_attribute);
    resolve(library.handle, "cuFuncSetAttribute", set_function_attribute);
    resolve(library.handle, "cuFuncGetAttribute", get_function_attribute);
    resolve(library.handle, "cuDeviceGetCount", get_device_count);
    resolve(library.handle, "cuDeviceGet", device_get);
    resolve(library.handle, "cuDeviceGetName", get_name);
    resolve(library.handle, "cuDriverGetVersion", get_version);
    resolve(library.handle, "cuDevicePrimaryCtxRetain", retain_context);
    resolve(library.handle, "cuCtxSetCurrent", set_context);
    resolve(library.handle, "cuMemcpyAsync", copy_);
    resolve(library.handle, "cuStreamCreate", stream_create);
    resolve(library.handle, "cuStreamDestroy_v2", stream_destroy);
    resolve(library.handle, "cuStreamWaitEvent", stream_wait_event);
    resolve(library.handle, "cuEventCreate", event_create);
    resolve(library.handle, "cuEventDestroy_v2", event_destroy);
    resolve(library.handle, "cuEventRecord", event_record);
    resolve(library.handle, "cuEventSynchronize", event_synchronize);
    resolve(library.handle, "cuEventQuery", event_query);
    resolve(library.handle, "cuEventElapsedTime", event_elapsed);
    resolve(library.handle, "cuMemHostAlloc", malloc_pinned);
    resolve_optional(library.handle, "cuMemGetInfo_v2", memory_info);
    resolve_optional(library.handle, "cuStreamBeginCapture_v2", capture_begin);
    resolve_optional(library.handle, "cuStreamEndCapture", capture_end);
    resolve_optional(library.handle, "cuStreamIsCapturing", capture_state);
    resolve_optional(library.handle, "cuThreadExchangeStreamCaptureMode", capture_mode);
    resolve_optional(library.handle, "cuGraphInstantiateWithFlags", graph_instantiate_);
    resolve_optional(library.handle, "cuGraphLaunch", graph_launch);
    resolve_optional(library.handle, "cuGraphDestroy", graph_destroy);
    resolve_optional(library.handle, "cuGraphExecDestroy", graph_exec_destroy);
  }

  bool has_graphs() const { return has_common_graphs() && graph_instantiate_ != nullptr; }
  int graph_instantiate(void** ready, void* captured) const { return graph_instantiate_(ready, captured, 0); }

  void clear_error() const noexcept {}  // the driver API has no last error

  void* enter(int number) {
    void *before = nullptr, *context = nullptr;
    check(get_context(&before), "cuCtxGetCurrent");
    {
      const std::lock_guard<std::mutex> lock(mutex);
      void*& primary = contexts[number];
      if (primary == nullptr) check(retain_context(&primary, handle(number)), "cuDevicePrimaryCtxRetain");
      context = primary;
    }
    if (before != context) check(set_context(context), "cuCtxSetCurrent");
    return before;
  }
  void leave(void* before) const noexcept {
    void* now = nullptr;
    if (get_context(&now) == 0 && now != before) set_context(before);
  }

  int copy(void* to, const void* from, size_t bytes, void* stream) const {
    return copy_(to, from, bytes, stream);
  }

  void check(int status, const char* what) const {
    if (status == 0) return;
    const char* text = "unknown";
    error_string(status, &text);
    throw DriverError(status, std::string(what) + ": CUDA error " + std::to_string(status) + ", " + text);
  }

  int handle(int number) const {
    int device = 0;
    check(device_get(&device, number), "cuDeviceGet");
    return device;
  }
  int attribute(int which, int device) const {
    int value = 0;
    check(get_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  }

  DeviceFacts facts(int number) const {
    constexpr int kClockRate = 13, kMultiprocessors = 16, kIntegrated = 18, kMemoryClockRate = 36,
                  kMemoryBusWidth = 37, kL2CacheSize = 38, kMajor = 75, kMinor = 76;
    const int device = handle(number);
    DeviceFacts f;
    f.arch = "sm_" + std::to_string(attribute(kMajor, device)) + std::to_string(attribute(kMinor, device));
    if (find_architecture(f.arch) != nullptr) {
      f = make_facts(f.arch, attribute(kMultiprocessors, device), 1e3 * attribute(kClockRate, device),
                     1e3 * attribute(kMemoryClockRate, device), attribute(kMemoryBusWidth, device));
      f.l2_bytes = attribute(kL2CacheSize, device);
    }
    char name[256] = {}, bus[64] = {};
    check(get_name(name, sizeof name - 1, device), "cuDeviceGetName");
    check(get_bus_id(bus, sizeof bus - 1, device), "cuDeviceGetPCIBusId");
    check(get_memory(&f.memory, device), "cuDeviceTotalMem");
    f.name = name;
    f.bus_id = bus;
    f.integrated = attribute(kIntegrated, device) != 0;
    f.driver = version();
    return f;
  }

  std::string version() const {
    int v = 0;  // 1000 major + 10 minor
    check(get_version(&v), "cuDriverGetVersion");
    return "CUDA " + std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
  }

  static GraphRules graph_rules() { return {}; }

  // Returns the prefix of the names of NVIDIA's architectures.
  static const char* prefix() { return "sm_"; }

  int count_devices(int* count) const {
    const int status = init(0);
    return status != 0 ? status : get_device_count(count);
  }

  Diagnosis explain_no_devices(int status) const {
    const char* text = "no device";
    if (status != 0) error_string(status, &text);
    return {"no_device", std::string("the driver shows no NVIDIA GPU (") + text + ")"};
  }

  // Each code object for NVIDIA is for one architecture; the build has no generic ones.
  bool loads_generic_code() const { return false; }

  // Raises the kernel's limit of dynamic shared memory from the default of 48 KiB to the maximum of the device.
  void prepare(Function f) const {
    constexpr int kSharedSize = 1, kMaxDynamicShared = 8, kMaxSharedPerBlockOptin = 97;
    int fixed = 0;
    check(get_function_attribute(&fixed, kSharedSize, f), "cuFuncGetAttribute");
    int device = 0;
    check(get_device(&device), "cuCtxGetDevice");
    check(set_function_attribute(f, kMaxDynamicShared, attribute(kMaxSharedPerBlockOptin, device) - fixed),
          "cuFuncSetAttribute");
  }
};

Cuda& cuda() {
  static auto& instance = *new Cuda;
  return instance;
}

}  // namespace

DetectedDriver find_cuda() { return find_devices(cuda); }

std::unique_ptr<Device> open_cuda(int number, const DeviceFacts& facts) {
  return std::make_unique<DriverDevice<Cuda>>(cuda(), number, facts);
}

}  // namespace graphopt::gpu
