// libamdhip64 of HIP 7, or, with STAND_IN_HIP5, of HIP 5. The differences, in AMD's sources (HIP's and clr's
// rocm-5.7.0, and clr's rocm-6.2.0):
//   a device's properties have 792 bytes in HIP 5, with the architecture's name at offset 396. From HIP 6 on
//   hipGetDeviceProperties gives these to programs that were built before, and a separate function gives the
//   new ones of 1,472 bytes
//                        HIP include/hip/hip_runtime_api.h; clr hipamd/src/hip_device.cpp:637-650, 789
//   each call, even a successful one, writes the last error of its thread
//                        clr hipamd/src/hip_internal.hpp:164
#include "driver.h"

using namespace stand_in;

const char* const stand_in::kArchitectures = "gfx";
const uint64_t stand_in::kMostItems = UINT32_MAX;
const bool stand_in::kCapturesAsHip = true;
const int stand_in::kTooLarge = 9;
#ifdef STAND_IN_HIP5
const bool stand_in::kEachCallWrites = true;
constexpr int kVersion = 50731921;
#else
const bool stand_in::kEachCallWrites = false;
constexpr int kVersion = 70100123;
#endif

namespace {

// The runtime's description of a product: work-group processors (compute units on gfx9), clocks in kHz,
// memory width in bits.
struct Product {
  const char *arch, *features;
  int multiprocessors, clock, memory_clock, memory_bits;
  bool integrated;
};
constexpr Product kProducts[] = {
    {"gfx90a", ":sramecc+:xnack-", 104, 1700000, 1600000, 4096, false},  // Instinct MI210
    {"gfx942", ":sramecc+:xnack-", 304, 2100000, 1300000, 8192, false},  // Instinct MI300X
    {"gfx1030", "", 40, 2575000, 1000000, 256, false},                   // Radeon RX 6900 XT
    {"gfx1036", "", 1, 2200000, 2400000, 0, true},                       // Ryzen 7000: unknown memory width
    {"gfx1100", "", 48, 2482000, 1249000, 384, false},                   // Radeon RX 7900 XTX
    {"gfx1151", "", 20, 2900000, 1000000, 256, true},                    // Ryzen AI Max+ 395
    {"gfx1152", "", 4, 2900000, 937000, 128, true},                      // Ryzen AI 7 350
    {"gfx1201", "", 32, 2970000, 1258000, 256, false},                   // Radeon RX 9070 XT
};

Product product(const Driver& d, int device) {
  const std::string& arch = d.devices.at(static_cast<size_t>(device));
  for (const Product& p : kProducts) {
    if (arch.substr(0, arch.find('/')) == p.arch) return p;
  }
  return {"", "", 16, 1000000, 1000000, 128, false};
}

int properties_of(int device, char* properties, size_t size, size_t integrated_at, size_t arch_at) {
  return call([&](Driver& d) {
    const std::string& arch = d.devices.at(static_cast<size_t>(device));
    const Product p = product(d, device);
    const int integrated = p.integrated;
    std::memset(properties, 0, size);
    if (integrated_at > 0) std::memcpy(properties + integrated_at, &integrated, sizeof integrated);
    std::strncpy(properties + arch_at, (arch.substr(0, arch.find('/')) + p.features).c_str(), 255);
    return 0;
  });
}

}  // namespace

STAND_IN_EXPORT int hipGetLastError() {
  const int error = driver().devices.empty() ? kNoDevice : last_error;
  last_error = driver().devices.empty() ? kNoDevice : 0;
  return error;
}
STAND_IN_EXPORT int hipPeekAtLastError() { return last_error; }
STAND_IN_EXPORT int hipGetDeviceProperties(char* properties, int device) {
  return properties_of(device, properties, 792, 0, 396);
}
#ifndef STAND_IN_HIP5
STAND_IN_EXPORT int hipGetDevicePropertiesR0600(char* properties, int device) {
  return properties_of(device, properties, 1472, 396, 1160);
}
#endif
STAND_IN_EXPORT int hipDeviceGetPCIBusId(char* text, int size, int device) {
  return bus_id(text, size, device);
}
STAND_IN_EXPORT int hipDeviceTotalMem(size_t* bytes, int) { return total_memory(bytes); }
STAND_IN_EXPORT int hipGetDeviceCount(int* n) { return count(n); }
STAND_IN_EXPORT int hipGetDevice(int* device) {
  return call([&](Driver&) { return *device = current, 0; });
}
STAND_IN_EXPORT int hipSetDevice(int device) {
  return call([&](Driver&) { return current = device, 0; });
}
STAND_IN_EXPORT int hipDeviceGetName(char* text, int size, int device) { return name(text, size, device); }
STAND_IN_EXPORT int hipRuntimeGetVersion(int* version) {
  return call([&](Driver&) {
    const char* version_text = std::getenv("STAND_IN_HIP_VERSION");
    return *version = version_text != nullptr ? std::atoi(version_text) : kVersion, 0;
  });
}
STAND_IN_EXPORT int hipDeviceGetAttribute(int* value, int which, int device) {
  return call([&](Driver& d) {
    Product p = product(d, device);
    // clr rocclr/device/rocm/rocdevice.cpp:1190, rocsettings.cpp:177, utils/flags.cpp:162
    const char* pairs = std::getenv("GPU_ENABLE_WGP_MODE");
    if (pairs != nullptr && std::strcmp(pairs, "true") != 0 && std::atoi(pairs) == 0 &&
        std::strncmp(p.arch, "gfx9", 4) != 0)
      p.multiprocessors *= 2;
    const std::map<int, int> known = {
        {5, p.clock}, {16, p.integrated}, {59, p.memory_bits}, {60, p.memory_clock}, {63, p.multiprocessors}};
    const auto found = known.find(which);
    if (found == known.end()) return 1;
    return *value = found->second, 0;
  });
}
STAND_IN_EXPORT const char* hipGetErrorString(int) { return "the stand-in was told to fail"; }
STAND_IN_EXPORT int hipModuleLoadData(void** module, const void* code) { return load(module, code); }
STAND_IN_EXPORT int hipModuleUnload(void* module) {
  return call([&](Driver& d) { return destroy(d.modules, module); });
}
STAND_IN_EXPORT int hipModuleGetFunction(void** function, void* module, const char* kernel) {
  return find(function, module, kernel);
}
STAND_IN_EXPORT int hipModuleLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx,
                                          unsigned by, unsigned bz, unsigned lds, void* stream, void** args,
                                          void**) {
  return run(function, {x, y, z}, {bx, by, bz}, lds, stream, args);
}
STAND_IN_EXPORT int hipMalloc(void** memory, size_t bytes) { return allocate(memory, bytes); }
STAND_IN_EXPORT int hipFree(void* memory) { return release(memory); }
STAND_IN_EXPORT int hipMemset(void* memory, int value, size_t bytes) {
  return call([&](Driver& d) {
    if (d.invalidate_all()) return kUnsupportedInCapture;
    if (const int status = d.finish()) return status;
    return d.access("a memset", {memory}, [&] { return std::memset(memory, value, bytes), 0; });
  });
}
STAND_IN_EXPORT int hipMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return copy(to, from, bytes, stream);
}
STAND_IN_EXPORT int hipDeviceSynchronize() { return wait_for_device(); }
STAND_IN_EXPORT int hipStreamSynchronize(void* stream) { return wait(stream); }
STAND_IN_EXPORT int hipStreamQuery(void* stream) { return wait(stream); }
STAND_IN_EXPORT int hipStreamCreateWithFlags(void** stream, unsigned) {
  return call([&](Driver& d) { return create(d.streams, stream); });
}
STAND_IN_EXPORT int hipStreamDestroy(void* stream) { return destroy_stream(stream); }
STAND_IN_EXPORT int hipStreamWaitEvent(void* stream, void* handle, unsigned) {
  return wait_for_event(handle, stream);
}
STAND_IN_EXPORT int hipEventCreateWithFlags(void** handle, unsigned flags) {
  return create_event(handle, flags);
}
STAND_IN_EXPORT int hipEventDestroy(void* handle) { return destroy_event(handle); }
STAND_IN_EXPORT int hipEventRecord(void* handle, void* stream) { return record(handle, stream); }
STAND_IN_EXPORT int hipEventQuery(void* handle) { return wait_for_event(handle, nullptr, true); }
STAND_IN_EXPORT int hipEventElapsedTime(float* milliseconds, void* begin, void* end) {
  return time_between(milliseconds, begin, end);
}
STAND_IN_EXPORT int hipHostMalloc(void** memory, size_t bytes, unsigned) { return pin(memory, bytes); }
STAND_IN_EXPORT int hipHostFree(void* memory) { return unpin(memory); }
STAND_IN_EXPORT int hipStreamBeginCapture(void* stream, int how) { return begin_recording(stream, how); }
STAND_IN_EXPORT int hipThreadExchangeStreamCaptureMode(int* how) { return exchange_mode(how); }
STAND_IN_EXPORT int hipStreamEndCapture(void* stream, void** graph) { return end_recording(stream, graph); }
STAND_IN_EXPORT int hipStreamIsCapturing(void* stream, int* state) { return recording_state(stream, state); }
STAND_IN_EXPORT int hipGraphInstantiate(void** ready, void* graph, void**, char*, size_t) {
  return make_ready(ready, graph);
}
STAND_IN_EXPORT int hipGraphLaunch(void* ready, void* stream) { return launch_graph(ready, stream); }
STAND_IN_EXPORT int hipGraphDestroy(void* graph) { return destroy_graph(graph); }
STAND_IN_EXPORT int hipGraphExecDestroy(void* ready) { return destroy_graph(ready); }
STAND_IN_EXPORT int hipEventSynchronize(void* handle) { return wait_for_event(handle, nullptr); }
