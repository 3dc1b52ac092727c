#include "driver.h"

using namespace stand_in;

const char* const stand_in::kArchitectures = "sm_";
const uint64_t stand_in::kMostItems = UINT64_MAX;
const bool stand_in::kEachCallWrites = false;
const bool stand_in::kCapturesAsHip = false;
const int stand_in::kTooLarge = 1;

namespace {
// Primary contexts: the address identifies the device.
char contexts[64];
thread_local bool has_context = false;
}  // namespace

STAND_IN_EXPORT int cuInit(unsigned) {
  return call([&](Driver&) { return 0; });
}
STAND_IN_EXPORT int cuGetErrorString(int, const char** text) {
  return *text = "the stand-in was told to fail", 0;
}
STAND_IN_EXPORT int cuDeviceGetCount(int* n) { return count(n); }
STAND_IN_EXPORT int cuDeviceGet(int* device, int number) {
  return call([&](Driver&) { return *device = number, 0; });
}
STAND_IN_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  return call([&](Driver&) { return *context = &contexts[device], 0; });
}
STAND_IN_EXPORT int cuCtxSetCurrent(void* context) {
  return call([&](Driver&) {
    has_context = context != nullptr;
    current = has_context ? static_cast<int>(static_cast<char*>(context) - contexts) : 0;
    return 0;
  });
}
STAND_IN_EXPORT int cuCtxGetCurrent(void** context) {
  return call([&](Driver&) { return *context = has_context ? &contexts[current] : nullptr, 0; });
}
STAND_IN_EXPORT int cuDeviceGetPCIBusId(char* text, int size, int device) {
  return bus_id(text, size, device);
}
STAND_IN_EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) { return total_memory(bytes); }
STAND_IN_EXPORT int cuCtxGetDevice(int* device) {
  return call([&](Driver&) { return *device = current, has_context ? 0 : kNoDevice; });
}
STAND_IN_EXPORT int cuDeviceGetName(char* text, int size, int device) { return name(text, size, device); }
STAND_IN_EXPORT int cuDriverGetVersion(int* version) {
  return call([&](Driver&) { return *version = 13010, 0; });
}
STAND_IN_EXPORT int cuDeviceGetAttribute(int* value, int which, int device) {
  return call([&](Driver& d) {
    constexpr int kMajor = 75, kMinor = 76;
    const std::string version = d.devices.at(static_cast<size_t>(device)).substr(3);  // after "sm_"
    *value = which == kMajor ? version[0] - '0' : which == kMinor ? version[1] - '0' : 64;
    return 0;
  });
}
STAND_IN_EXPORT int cuModuleLoadData(void** module, const void* code) { return load(module, code); }
STAND_IN_EXPORT int cuModuleGetFunction(void** function, void* module, const char* kernel) {
  return find(function, module, kernel);
}
STAND_IN_EXPORT int cuFuncGetAttribute(int* value, int, void*) {
  return call([&](Driver&) { return *value = 0, 0; });
}
STAND_IN_EXPORT int cuFuncSetAttribute(void*, int, int) {
  return call([&](Driver&) { return 0; });
}
STAND_IN_EXPORT int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx,
                                   unsigned by, unsigned bz, unsigned lds, void* stream, void** args,
                                   void**) {
  if (x > INT32_MAX) return call([](Driver&) { return kTooLarge; });
  return run(function, {x, y, z}, {bx, by, bz}, lds, stream, args);
}
STAND_IN_EXPORT int cuMemAlloc_v2(void** memory, size_t bytes) { return allocate(memory, bytes); }
STAND_IN_EXPORT int cuMemFree_v2(void* memory) { return release(memory); }
STAND_IN_EXPORT int cuMemcpyAsync(void* to, const void* from, size_t bytes, void* stream) {
  return copy(to, from, bytes, stream);
}
STAND_IN_EXPORT int cuCtxSynchronize() { return wait_for_device(); }
STAND_IN_EXPORT int cuStreamSynchronize(void* stream) { return wait(stream); }
STAND_IN_EXPORT int cuStreamCreate(void** stream, unsigned) {
  return call([&](Driver& d) { return create(d.streams, stream); });
}
STAND_IN_EXPORT int cuStreamDestroy_v2(void* stream) { return destroy_stream(stream); }
STAND_IN_EXPORT int cuStreamWaitEvent(void* stream, void* handle, unsigned) {
  return wait_for_event(handle, stream);
}
STAND_IN_EXPORT int cuEventCreate(void** handle, unsigned flags) { return create_event(handle, flags); }
STAND_IN_EXPORT int cuEventDestroy_v2(void* handle) { return destroy_event(handle); }
STAND_IN_EXPORT int cuEventRecord(void* handle, void* stream) { return record(handle, stream); }
STAND_IN_EXPORT int cuEventQuery(void* handle) { return wait_for_event(handle, nullptr, true); }
STAND_IN_EXPORT int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  return time_between(milliseconds, begin, end);
}
STAND_IN_EXPORT int cuMemHostAlloc(void** memory, size_t bytes, unsigned) { return pin(memory, bytes); }
STAND_IN_EXPORT int cuStreamBeginCapture_v2(void* stream, int how) { return begin_recording(stream, how); }
STAND_IN_EXPORT int cuThreadExchangeStreamCaptureMode(int* how) { return exchange_mode(how); }
STAND_IN_EXPORT int cuStreamEndCapture(void* stream, void** graph) { return end_recording(stream, graph); }
STAND_IN_EXPORT int cuStreamIsCapturing(void* stream, int* state) { return recording_state(stream, state); }
STAND_IN_EXPORT int cuGraphInstantiateWithFlags(void** ready, void* graph, unsigned long long) {
  return make_ready(ready, graph);
}
STAND_IN_EXPORT int cuGraphLaunch(void* ready, void* stream) { return launch_graph(ready, stream); }
STAND_IN_EXPORT int cuGraphDestroy(void* graph) { return destroy_graph(graph); }
STAND_IN_EXPORT int cuGraphExecDestroy(void* ready) { return destroy_graph(ready); }
STAND_IN_EXPORT int cuEventSynchronize(void* handle) { return wait_for_event(handle, nullptr); }
