// AMD GPUs through libamdhip64, any version from 5 on.
#include "gpu/driver.h"

namespace graphopt::gpu {
namespace {

struct Hip {
  using Module = void*;
  using Function = void*;
  static constexpr Backend kBackend = Backend::kHip;
  static constexpr int kOutOfMemory = 2;

  int (*module_load)(Module*, const void*);
  int (*get_function)(Function*, Module, const char*);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                void**);
  int (*synchronize)(void*);
  int (*malloc_)(void**, size_t);
  int (*free_)(void*);
  int (*get_device_count)(int*);
  int (*get_device)(int*);
  int (*set_device_)(int);
  int (*get_attribute)(int*, int, int);
  int (*synchronize_device)();
  int (*copy_)(void*, const void*, size_t, int, void*);
  int (*stream_create)(void**, unsigned);
  int (*stream_destroy)(void*);
  int (*stream_wait_event)(void*, void*, unsigned);
  int (*event_create)(void**, unsigned);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void*);
  int (*event_synchronize)(void*);
  int (*module_unload)(Module);
  int (*get_name)(char*, int, int);
  int (*get_version)(int*);
  const char* (*error_string)(int);

  Hip() {
    void* library =
        open_runtime({"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"},
                     "the HIP runtime (libamdhip64)");
    resolve(library, "hipModuleLoadData", module_load);
    resolve(library, "hipModuleGetFunction", get_function);
    resolve(library, "hipModuleLaunchKernel", launch);
    resolve(library, "hipStreamSynchronize", synchronize);
    resolve(library, "hipMalloc", malloc_);
    resolve(library, "hipFree", free_);
    resolve(library, "hipGetDeviceCount", get_device_count);
    resolve(library, "hipGetDevice", get_device);
    resolve(library, "hipSetDevice", set_device_);
    resolve(library, "hipDeviceGetAttribute", get_attribute);
    resolve(library, "hipDeviceSynchronize", synchronize_device);
    resolve(library, "hipMemcpyAsync", copy_);
    resolve(library, "hipStreamCreateWithFlags", stream_create);
    resolve(library, "hipStreamDestroy", stream_destroy);
    resolve(library, "hipStreamWaitEvent", stream_wait_event);
    resolve(library, "hipEventCreateWithFlags", event_create);
    resolve(library, "hipEventDestroy", event_destroy);
    resolve(library, "hipEventRecord", event_record);
    resolve(library, "hipEventSynchronize", event_synchronize);
    resolve(library, "hipModuleUnload", module_unload);
    resolve(library, "hipDeviceGetName", get_name);
    resolve(library, "hipRuntimeGetVersion", get_version);
    resolve(library, "hipGetErrorString", error_string);
    // The runtime may be installed without a GPU, or without its driver.
    if (count() == 0) throw NoRuntime("no AMD GPU");
  }

  int count() const {
    int n = 0;
    return get_device_count(&n) == 0 ? n : 0;
  }

  void set_device(int number) const { check(set_device_(number), "hipSetDevice"); }
  int copy(void* to, const void* from, size_t bytes, void* stream) const {
    constexpr int kDefault = 4;  // the direction follows from the addresses
    return copy_(to, from, bytes, kDefault, stream);
  }

  void check(int status, const char* what) const {
    if (status != 0) {
      throw std::runtime_error(std::string(what) + ": HIP error " + std::to_string(status) + ", " +
                               error_string(status));
    }
  }

  // hipDeviceAttribute_t as it has been since HIP 5.0.
  int attribute(int which) const {
    int device = 0, value = 0;
    check(get_device(&device), "hipGetDevice");
    check(get_attribute(&value, which, device), "hipDeviceGetAttribute");
    return value;
  }

  // The name of the architecture is only in a struct whose layout depends on the version; but a code object
  // loads on its own architecture alone, or, where the runtime knows generic targets, on a family: what is
  // made for one architecture first.
  std::string architecture() const {
    for (const bool generic : {false, true}) {
      std::string tried;
      for (const CodeObject& object : code_objects()) {
        const std::string arch = object.arch;
        if (arch.rfind("gfx", 0) != 0 || arch == tried) continue;
        if ((arch.find("generic") != std::string::npos) != generic) continue;
        tried = arch;
        Module module{};
        if (module_load(&module, object.data) == 0) {
          module_unload(module);
          return arch;
        }
      }
    }
    throw std::runtime_error("this library has device code for " + architectures("gfx") +
                             ", and this GPU is none of them");
  }

  std::string version() const {
    int v = 0;  // 10,000,000 major + 100,000 minor + patch
    check(get_version(&v), "hipRuntimeGetVersion");
    return "HIP " + std::to_string(v / 10000000) + "." + std::to_string(v / 100000 % 100) + "." +
           std::to_string(v % 100000);
  }

  DeviceFacts facts() const {
    constexpr int kClockRate = 5, kMemoryBusWidth = 59, kMemoryClockRate = 60, kMultiprocessors = 63;
    DeviceFacts f = typical_facts(architecture());
    f.compute_units = attribute(kMultiprocessors);
    f.clock_hz = 1e3 * attribute(kClockRate);
    f.bytes_per_second = 2.0 * 1e3 * attribute(kMemoryClockRate) * attribute(kMemoryBusWidth) / 8;
    return f;
  }

  void prepare(Function) const {}
};

}  // namespace

std::unique_ptr<Device> open_hip(int number) { return std::make_unique<DriverDevice<Hip>>(Hip(), number); }

Present find_hip() { return find_devices<Hip>(); }

}  // namespace graphopt::gpu
