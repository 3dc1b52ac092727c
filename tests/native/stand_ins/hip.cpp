#include "driver.h"

using namespace stand_in;

const char* const stand_in::kArchitectures = "gfx";

STAND_IN_EXPORT int hipGetDeviceCount(int* n) { return count(n); }
STAND_IN_EXPORT int hipGetDevice(int* device) {
  return call([&](Driver&) { return *device = current, 0; });
}
STAND_IN_EXPORT int hipSetDevice(int device) {
  return call([&](Driver&) { return current = device, 0; });
}
STAND_IN_EXPORT int hipDeviceGetName(char* text, int size, int device) { return name(text, size, device); }
STAND_IN_EXPORT int hipRuntimeGetVersion(int* version) {
  return call([&](Driver&) { return *version = 70100123, 0; });
}
STAND_IN_EXPORT int hipDeviceGetAttribute(int* value, int, int) {
  return call([&](Driver&) { return *value = 64, 0; });
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
STAND_IN_EXPORT int hipMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return copy(to, from, bytes, stream);
}
STAND_IN_EXPORT int hipDeviceSynchronize() { return wait(nullptr); }
STAND_IN_EXPORT int hipStreamSynchronize(void* stream) { return wait(stream); }
STAND_IN_EXPORT int hipStreamCreateWithFlags(void** stream, unsigned) {
  return call([&](Driver& d) { return create(d.streams, stream); });
}
STAND_IN_EXPORT int hipStreamDestroy(void* stream) {
  return call([&](Driver& d) { return destroy(d.streams, stream); });
}
STAND_IN_EXPORT int hipStreamWaitEvent(void* stream, void* handle, unsigned) { return event(handle, stream); }
STAND_IN_EXPORT int hipEventCreateWithFlags(void** handle, unsigned) {
  return call([&](Driver& d) { return create(d.events, handle); });
}
STAND_IN_EXPORT int hipEventDestroy(void* handle) {
  return call([&](Driver& d) { return destroy(d.events, handle); });
}
STAND_IN_EXPORT int hipEventRecord(void* handle, void* stream) { return event(handle, stream); }
STAND_IN_EXPORT int hipEventSynchronize(void* handle) { return event(handle, nullptr); }
