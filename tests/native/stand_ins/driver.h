// A GPU driver over host memory and kernels compiled for the CPU, which fails on command: what hip.cpp and
// cuda.cpp give the names of libamdhip64 and libcuda to.
//
// Environment, read once:
//   STAND_IN_KERNELS  the library with the kernels
//   STAND_IN_DEVICES  the architecture of each device, separated by commas; none when it is not set. A driver
//                     has those of its own kind (kArchitectures). After a slash the generic target whose code
//                     runs there too, if the driver knows generic targets.
//
// It checks what a real driver can't be relied on to notice: handles that are not alive, memory that is freed
// twice, work on a stream of another device than the current one. All of these give kInvalidHandle.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

namespace stand_in {

// The same numbers in HIP and CUDA.
constexpr int kOutOfMemory = 2, kNoDevice = 100, kNoBinaryForGpu = 209, kInvalidHandle = 400, kNotFound = 500;

// What HIP does about a wrong address on the device.
constexpr int kAbort = -1;

using Launch = int (*)(const char*, const uint32_t*, const uint32_t*, uint32_t, void**, int, uint32_t);

// What names of architectures begin with: hip.cpp or cuda.cpp says.
extern const char* const kArchitectures;

struct Driver {
  std::mutex mutex;
  std::vector<std::string> devices;
  Launch launch = nullptr;
  std::map<void*, int> streams, events, modules;  // by handle: its device
  std::map<void*, size_t> memory;                 // bytes
  size_t in_use = 0, most = SIZE_MAX;
  long until_failure = -1;  // calls that still succeed; -1: all
  int failure = 0;

  Driver() {
    if (const char* list = std::getenv("STAND_IN_DEVICES")) {
      std::istringstream stream(list);
      for (std::string arch; std::getline(stream, arch, ',');) {
        if (arch.rfind(kArchitectures, 0) == 0) devices.push_back(arch);
      }
    }
    if (const char* path = std::getenv("STAND_IN_KERNELS")) {
      if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
        launch = reinterpret_cast<Launch>(dlsym(library, "graphopt_host_launch"));
      }
    }
  }
};

inline Driver& driver() {
  static auto& d = *new Driver;
  return d;
}

inline thread_local int current = 0;

// Every entry point: `work` under the lock, unless the test has made the driver fail.
template <class Work>
int call(Work&& work) {
  Driver& d = driver();
  const std::lock_guard<std::mutex> lock(d.mutex);
  if (d.until_failure == 0 && d.failure == kAbort) std::abort();
  if (d.until_failure == 0) return d.failure;
  if (d.until_failure > 0) --d.until_failure;
  return work(d);
}

inline int create(std::map<void*, int>& handles, void** handle) {
  *handle = std::malloc(1);
  handles[*handle] = current;
  return 0;
}

inline int destroy(std::map<void*, int>& handles, void* handle) {
  if (handles.erase(handle) == 0) return kInvalidHandle;
  std::free(handle);
  return 0;
}

// The default stream is of every device.
inline bool usable(const Driver& d, void* stream) {
  const auto found = d.streams.find(stream);
  return stream == nullptr || (found != d.streams.end() && found->second == current);
}

inline int allocate(void** memory, size_t bytes) {
  return call([&](Driver& d) {
    if (bytes > d.most - d.in_use) return kOutOfMemory;
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    d.memory[*memory] = bytes;
    d.in_use += bytes;
    return 0;
  });
}

inline int release(void* memory) {
  return call([&](Driver& d) {
    const auto found = d.memory.find(memory);
    if (found == d.memory.end()) return memory == nullptr ? 0 : kInvalidHandle;
    d.in_use -= found->second;
    d.memory.erase(found);
    std::free(memory);
    return 0;
  });
}

inline int count(int* n) {
  return call([&](Driver& d) {
    *n = static_cast<int>(d.devices.size());
    return *n == 0 ? kNoDevice : 0;
  });
}

inline int name(char* text, int size, int device) {
  return call([&](Driver& d) {
    const std::string& arch = d.devices.at(static_cast<size_t>(device));
    const std::string given = "Stand-in " + arch.substr(0, arch.find('/'));
    std::strncpy(text, given.c_str(), static_cast<size_t>(size));
    return 0;
  });
}

// "Device code" is the name of the architecture that it is for.
inline int load(void** module, const void* code) {
  return call([&](Driver& d) {
    const std::string &runs = d.devices.at(static_cast<size_t>(current)),
                      arch = static_cast<const char*>(code);
    if (runs.substr(0, runs.find('/')) != arch && runs.substr(runs.find('/') + 1) != arch)
      return kNoBinaryForGpu;
    return create(d.modules, module);
  });
}

// A function is the kernel's name.
inline int find(void** function, void* module, const char* kernel) {
  return call([&](Driver& d) {
    if (d.modules.count(module) == 0) return kInvalidHandle;
    *function = strdup(kernel);
    return d.launch == nullptr ? kNotFound : 0;
  });
}

inline int run(void* function, const uint32_t (&grid)[3], const uint32_t (&block)[3], uint32_t lds,
               void* stream, void** args) {
  return call([&](Driver& d) {
    if (!usable(d, stream)) return kInvalidHandle;
    return d.launch(static_cast<const char*>(function), grid, block, lds, args, 0, 0) == 0 ? 0 : kNotFound;
  });
}

// Work is done when it is enqueued.
inline int wait(void* stream) {
  return call([&](Driver& d) { return usable(d, stream) ? 0 : kInvalidHandle; });
}

inline int copy(void* to, const void* from, size_t bytes, void* stream) {
  return call([&](Driver& d) {
    if (!usable(d, stream)) return kInvalidHandle;
    std::memcpy(to, from, bytes);
    return 0;
  });
}

inline int event(void* handle, void* stream) {
  return call(
      [&](Driver& d) { return d.events.count(handle) > 0 && usable(d, stream) ? 0 : kInvalidHandle; });
}

}  // namespace stand_in

// After so many more calls every one fails with this status, or the process ends (kAbort); -1 calls: none
// does.
STAND_IN_EXPORT void stand_in_fail(long calls, int status) {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  stand_in::driver().until_failure = calls;
  stand_in::driver().failure = status;
}

// Device memory that is left, together with what is in use.
STAND_IN_EXPORT void stand_in_memory(size_t bytes) {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  stand_in::driver().most = bytes;
}

// What is alive: bytes, streams, events.
STAND_IN_EXPORT void stand_in_alive(size_t (&counts)[3]) {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  counts[0] = stand_in::driver().in_use;
  counts[1] = stand_in::driver().streams.size();
  counts[2] = stand_in::driver().events.size();
}
