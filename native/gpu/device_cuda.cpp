// NVIDIA GPUs through the CUDA driver (libcuda): how the kernels are tested and measured where there is no
// AMD GPU.
#include "gpu/driver.h"

namespace graphopt::gpu {
namespace {

struct Cuda {
  using Module = void*;
  using Function = void*;
  static constexpr Backend kBackend = Backend::kCuda;
  static constexpr int kOutOfMemory = 2;

  int (*module_load)(Module*, const void*);
  int (*get_function)(Function*, Module, const char*);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                void**);
  int (*synchronize)(void*);
  // A CUdeviceptr is an integer as wide as a pointer.
  int (*malloc_)(void**, size_t);
  int (*free_)(void*);
  int (*get_device)(int*);
  int (*get_attribute)(int*, int, int);
  int (*set_function_attribute)(Function, int, int);
  int (*get_function_attribute)(int*, int, Function);
  int (*error_string)(int, const char**);
  int (*get_device_count)(int*);
  int (*device_get)(int*, int);
  int (*get_name)(char*, int, int);
  int (*get_version)(int*);
  int (*retain_context)(void**, int);
  int (*set_context)(void*);
  int (*synchronize_device)();
  int (*copy_)(void*, const void*, size_t, void*);
  int (*stream_create)(void**, unsigned);
  int (*stream_destroy)(void*);
  int (*stream_wait_event)(void*, void*, unsigned);
  int (*event_create)(void**, unsigned);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void*);
  int (*event_synchronize)(void*);
  void* context = nullptr;  // the primary one of the device, which the runtime API uses too

  Cuda() {
    void* library = open_runtime({"libcuda.so.1"}, "the CUDA driver (libcuda)");
    int (*init)(unsigned);
    resolve(library, "cuInit", init);
    resolve(library, "cuGetErrorString", error_string);
    resolve(library, "cuModuleLoadData", module_load);
    resolve(library, "cuModuleGetFunction", get_function);
    resolve(library, "cuLaunchKernel", launch);
    resolve(library, "cuStreamSynchronize", synchronize);
    resolve(library, "cuMemAlloc_v2", malloc_);
    resolve(library, "cuMemFree_v2", free_);
    resolve(library, "cuCtxGetDevice", get_device);
    resolve(library, "cuDeviceGetAttribute", get_attribute);
    resolve(library, "cuFuncSetAttribute", set_function_attribute);
    resolve(library, "cuFuncGetAttribute", get_function_attribute);
    resolve(library, "cuDeviceGetCount", get_device_count);
    resolve(library, "cuDeviceGet", device_get);
    resolve(library, "cuDeviceGetName", get_name);
    resolve(library, "cuDriverGetVersion", get_version);
    resolve(library, "cuDevicePrimaryCtxRetain", retain_context);
    resolve(library, "cuCtxSetCurrent", set_context);
    resolve(library, "cuCtxSynchronize", synchronize_device);
    resolve(library, "cuMemcpyAsync", copy_);
    resolve(library, "cuStreamCreate", stream_create);
    resolve(library, "cuStreamDestroy_v2", stream_destroy);
    resolve(library, "cuStreamWaitEvent", stream_wait_event);
    resolve(library, "cuEventCreate", event_create);
    resolve(library, "cuEventDestroy_v2", event_destroy);
    resolve(library, "cuEventRecord", event_record);
    resolve(library, "cuEventSynchronize", event_synchronize);
    if (init(0) != 0 || count() == 0) throw NoRuntime("no NVIDIA GPU");
  }

  int count() const {
    int n = 0;
    return get_device_count(&n) == 0 ? n : 0;
  }

  void set_device(int number) {
    if (context == nullptr) {
      int device = 0;
      check(device_get(&device, number), "cuDeviceGet");
      check(retain_context(&context, device), "cuDevicePrimaryCtxRetain");
    }
    check(set_context(context), "cuCtxSetCurrent");
  }

  int copy(void* to, const void* from, size_t bytes, void* stream) const {
    return copy_(to, from, bytes, stream);
  }

  void check(int status, const char* what) const {
    if (status == 0) return;
    const char* text = "unknown";
    error_string(status, &text);
    throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(status) + ", " + text);
  }

  int attribute(int which) const {
    int device = 0, value = 0;
    check(get_device(&device), "cuCtxGetDevice");
    check(get_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  }

  DeviceFacts facts() const {
    constexpr int kClockRate = 13, kMultiprocessors = 16, kMemoryClockRate = 36, kMemoryBusWidth = 37,
                  kL2CacheSize = 38, kMajor = 75, kMinor = 76;
    const std::string arch = "sm_" + std::to_string(attribute(kMajor)) + std::to_string(attribute(kMinor));
    const std::string known = architectures("sm_");
    if ((" " + known + " ").find(" " + arch + " ") == std::string::npos) {
      throw std::runtime_error("this library has device code for " + known + ", and this GPU is " + arch);
    }
    DeviceFacts f = typical_facts(arch);
    f.compute_units = attribute(kMultiprocessors);
    f.clock_hz = 1e3 * attribute(kClockRate);
    f.bytes_per_second = 2.0 * 1e3 * attribute(kMemoryClockRate) * attribute(kMemoryBusWidth) / 8;
    f.l2_bytes = attribute(kL2CacheSize);
    return f;
  }

  std::string version() const {
    int v = 0;  // 1000 major + 10 minor
    check(get_version(&v), "cuDriverGetVersion");
    return "CUDA " + std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
  }

  // More than 48 KiB of shared memory must be asked for.
  void prepare(Function f) const {
    constexpr int kSharedSize = 1, kMaxDynamicShared = 8, kMaxSharedPerBlockOptin = 97;
    int fixed = 0;
    check(get_function_attribute(&fixed, kSharedSize, f), "cuFuncGetAttribute");
    check(set_function_attribute(f, kMaxDynamicShared, attribute(kMaxSharedPerBlockOptin) - fixed),
          "cuFuncSetAttribute");
  }
};

}  // namespace

std::unique_ptr<Device> open_cuda(int number) { return std::make_unique<DriverDevice<Cuda>>(Cuda(), number); }

Present find_cuda() { return find_devices<Cuda>(); }

}  // namespace graphopt::gpu
