// NVIDIA GPUs through the CUDA driver (libcuda): how the kernels are tested and measured where there is no
// AMD GPU.
#include "gpu/driver.h"

namespace graphopt::gpu {
namespace {

struct Cuda {
  using Module = void*;
  using Function = void*;
  using Pointer = unsigned long long;

  int (*module_load)(Module*, const void*);
  int (*get_function)(Function*, Module, const char*);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                void**);
  int (*synchronize)(void*);
  int (*malloc_)(Pointer*, size_t);
  int (*free_)(Pointer);
  int (*get_device)(int*);
  int (*get_attribute)(int*, int, int);
  int (*set_function_attribute)(Function, int, int);
  int (*get_function_attribute)(int*, int, Function);
  int (*error_string)(int, const char**);

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
    check(init(0), "cuInit");
    // The runtime API makes a device's primary context current; without one, that of device 0 is taken.
    int device = 0;
    if (get_device(&device) != 0) {
      int (*get)(int*, int);
      int (*retain)(void**, int);
      int (*set_current)(void*);
      resolve(library, "cuDeviceGet", get);
      resolve(library, "cuDevicePrimaryCtxRetain", retain);
      resolve(library, "cuCtxSetCurrent", set_current);
      void* context = nullptr;
      check(get(&device, 0), "cuDeviceGet");
      check(retain(&context, device), "cuDevicePrimaryCtxRetain");
      check(set_current(context), "cuCtxSetCurrent");
    }
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
    DeviceFacts f =
        typical_facts("sm_" + std::to_string(attribute(kMajor)) + std::to_string(attribute(kMinor)));
    f.compute_units = attribute(kMultiprocessors);
    f.clock_hz = 1e3 * attribute(kClockRate);
    f.bytes_per_second = 2.0 * 1e3 * attribute(kMemoryClockRate) * attribute(kMemoryBusWidth) / 8;
    f.l2_bytes = attribute(kL2CacheSize);
    return f;
  }

  // More than 48 KiB of shared memory must be asked for.
  void prepare(Function f) const {
    constexpr int kSharedSize = 1, kMaxDynamicShared = 8, kMaxSharedPerBlockOptin = 97;
    int fixed = 0;
    check(get_function_attribute(&fixed, kSharedSize, f), "cuFuncGetAttribute");
    check(set_function_attribute(f, kMaxDynamicShared, attribute(kMaxSharedPerBlockOptin) - fixed),
          "cuFuncSetAttribute");
  }

  void* allocate(size_t bytes) const {
    Pointer memory = 0;
    check(malloc_(&memory, bytes), "cuMemAlloc");
    return reinterpret_cast<void*>(memory);
  }
  void free(void* memory) const noexcept { free_(reinterpret_cast<Pointer>(memory)); }
};

}  // namespace

std::unique_ptr<Device> open_cuda() { return std::make_unique<DriverDevice<Cuda>>(Cuda()); }

}  // namespace graphopt::gpu
