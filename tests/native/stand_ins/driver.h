// A GPU driver over host memory and kernels compiled for the CPU, which can fail on command. hip.cpp and
// cuda.cpp add the names of libamdhip64 and libcuda.
//
// Environment variables, read once:
//   STAND_IN_KERNELS     the library with the kernels for waves of 32
//   STAND_IN_KERNELS_64  the library with the kernels for waves of 64, for gfx9 devices
//   STAND_IN_DEVICES     the architecture of each device, separated by commas; no devices if unset. A driver
//                        has the devices of its kind (kArchitectures). After an architecture may follow a
//                        slash and the generic target of code that also runs there, if the driver knows
//                        generic targets.
//   STAND_IN_HIP_VERSION the result of hipRuntimeGetVersion, by default 7.1
//   STAND_IN_REPLAY      a fault of graphs that some ROCm versions have (clr issue 279, hip issue 3887):
//                        "drops" loses the last node; "remembers" makes every launch of a graph repeat the
//                        results of the first one
//   STAND_IN_LATE        work on a stream is executed only when a call waits for it; a wait for an event
//                        executes the work before the event; each query of an event executes one piece of
//                        work. The default stream does not wait for our streams, which are created that way.
//                        Without the variable work is executed when it is enqueued.
//
// The stand-in detects errors that a real driver may miss: destroyed handles, memory that is freed twice, and
// work on, or destruction of, a stream or an event of a device that is not current. All of these give
// kInvalidHandle. Memory is guarded (device/emulator/guarded_memory.h): after an invalid access every call
// gives kIllegalAddress, and stderr names the accessed address.
//
// It reproduces this behaviour of ROCm, with the place in AMD's sources (clr: github.com/ROCm/clr at
// rocm-6.2.0; systems: projects/clr of github.com/ROCm/rocm-systems at 03f43035, ROCm 7):
//   a thread keeps an error except hipErrorNotReady until hipGetLastError, even if later calls succeed
//                        systems hipamd/src/hip_internal:179 (HIP_UPDATE_ERROR_STATE), hip_error:31;
//                        before ROCm 7 each call wrote it: clr hipamd/src/hip_internal:164
//   a missing device is error 100 for any cause, from the count and then from every other call, permanently
//                        clr hipamd/src/hip_device:391, hip_internal:158-162; ROCr's error, out of
//                        resources, is not a failure there: rocclr/device/rocm/rocdevice.cpp:432-440
//   a copy from unpinned memory is synchronous
//                        clr hipamd/src/hip_memory:532-551
//   device code of another architecture is error 209
//                        clr hipamd/src/hip_code_object:598
//   a kernel missing in a module is error 500
//                        clr hipamd/src/hip_module:85
//   a launch of more than 2^32 - 1 work-items along x is error 9
//                        clr hipamd/src/hip_module:446-453 (CUDA: 2^31 - 1 work-groups, error 1)
//   the number of multiprocessors is that of work-group processors on gfx10 and later, unless
//   GPU_ENABLE_WGP_MODE is 0
//                        clr rocclr/device/rocm/rocdevice.cpp:1196, hipamd/src/hip_device:676
//   the memory's clock and width are reported by the kernel driver
//                        clr hipamd/src/hip_device:671-672, rocclr/device/rocm/rocdevice.cpp:1254
//   the architecture's name is followed by its features
//                        clr hipamd/src/hip_device:706
//   while a stream is captured, its thread may neither allocate nor wait; in global mode no other thread may
//   either. Such a call fails and ends the capture, and work enqueued on the stream then fails until the
//   capture is ended. A thread in relaxed mode may make all of these calls
//                        clr hipamd/src/hip_internal:122 (CHECK_STREAM_CAPTURE_SUPPORTED),
//                        hip_graph:980
//   a stream with a failed capture refuses work and waits until another capture of it, possibly an empty
//   one, succeeds
//                        clr hipamd/src/hip_graph (hipStreamEndCapture_common, which resets the state only
//                        after a success), hip_internal (STREAM_CAPTURE), hip_stream
//                        (StreamCaptureOngoing); rocm-systems issue 6509; fixed in 7.14
//   work on the null stream ends every capture of the process and fails
//                        clr hipamd/src/hip_internal (STREAM_CAPTURE, CHECK_STREAM_CAPTURING)
//   an event last recorded on a stream that is being captured cannot be queried: the query ends the capture.
//   Another stream cannot wait for it either
//                        clr hipamd/src/hip_event (hipEventSynchronize, ihipEventQuery), hip_stream
//                        (hipStreamWaitEvent_common); up to ROCm 7.2.0
//   a wait for the device ends every capture of the process, in every mode and thread
//                        clr hipamd/src/hip_internal (CHECK_SUPPORTED_DURING_CAPTURE), hip_device_runtime
//                        (hipDeviceSynchronize); rocm-systems issue 11698; CUDA: the programming guide,
//                        "Prohibited and Unhandled Operations" of stream capture
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/emulator/guarded_memory.h"

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

namespace stand_in {

// The same values in HIP and CUDA.
enum CaptureMode : int { kGlobal, kThreadLocal, kRelaxed };
constexpr int kUnsupportedInCapture = 900, kInvalidatedCapture = 901, kIsolatedCapture = 905,
              kCapturedEvent = 907, kWrongThread = 908;
constexpr int kOutOfMemory = 2, kNoDevice = 100, kNoBinaryForGpu = 209, kInvalidHandle = 400, kNotFound = 500,
              kNotReady = 600, kIllegalAddress = 700;

// Makes the process abort, as HIP does after an access to a wrong address on the device.
constexpr int kAbort = -1;

using Parameters = int (*)(const char*, const size_t**);
using Launch = int (*)(const char*, const uint32_t*, const uint32_t*, uint32_t, void**, int, uint32_t);

// Defined by hip.cpp or cuda.cpp: the prefix of architecture names, the maximum number of work-items of a
// launch along x, and the error of a larger launch.
extern const char* const kArchitectures;
extern const uint64_t kMostItems;
extern const int kTooLarge;
// Whether a successful call clears the last error.
extern const bool kEachCallWrites;
// Whether captures follow the rules that only HIP has.
extern const bool kCapturesAsHip;

// The capture mode of the calling thread (hipThreadExchangeStreamCaptureMode).
inline thread_local int mode = kGlobal;

struct Driver;
using Work = std::function<int(Driver&)>;
struct Recording {
  std::thread::id thread;
  int mode = kThreadLocal;
  std::vector<Work> work;
  bool valid = true;
  bool ended = false;  // without success
};
struct Graph {
  // The contents of each memory block after the first launch, for STAND_IN_REPLAY=remembers.
  struct Memory {
    bool known = false;
    std::map<void*, std::vector<char>> blocks;
  };
  std::vector<Work> work;
  int device = 0;
  std::shared_ptr<Memory> first = std::make_shared<Memory>();
};

struct Driver {
  std::mutex mutex;
  std::map<void*, Recording> recordings;  // by stream
  const bool is_late = std::getenv("STAND_IN_LATE") != nullptr;
  const std::string replay = std::getenv("STAND_IN_REPLAY") != nullptr ? std::getenv("STAND_IN_REPLAY") : "";
  size_t most_nodes = 0;  // the largest number of nodes of a graph so far
  struct Queue {
    std::deque<Work> todo;
    uint64_t given = 0, done = 0;  // pieces of work
  };
  struct Event {
    void* stream = nullptr;
    uint64_t given = 0;  // pieces of work enqueued before it
    uint64_t time = 0;   // milliseconds
  };
  std::map<void*, Queue> late;      // by stream
  std::map<void*, Event> recorded;  // by event
  uint64_t time = 0;                // in milliseconds: each piece of work outside a capture takes one
  std::map<void*, Graph> graphs;    // captured, and executable ones
  Parameters parameters = nullptr;
  std::vector<std::string> devices;
  Launch launch = nullptr, launch_64 = nullptr;
  std::map<void*, int> streams, events, modules;  // by handle: its device
  std::set<void*> untimed;                        // events that keep no time
  graphopt::gpu::GuardedMemory guarded{PROT_READ | PROT_WRITE};
  std::map<void*, size_t> memory, pinned;  // bytes
  long waits = 0;                          // copies on a stream that the caller had to wait for
  size_t copied = 0;                       // bytes of all copies
  size_t in_use = 0, most = SIZE_MAX;
  long until_failure = -1;  // number of calls that still succeed; -1: all
  int failure = 0;
  long failures = 0;  // number of calls that have returned an error

  Driver() {
    if (const char* list = std::getenv("STAND_IN_DEVICES")) {
      std::istringstream stream(list);
      for (std::string arch; std::getline(stream, arch, ',');) {
        if (arch.rfind(kArchitectures, 0) == 0) devices.push_back(arch);
      }
    }
    launch = kernels("STAND_IN_KERNELS");
    parameters = parameters_of("STAND_IN_KERNELS");
    launch_64 = kernels("STAND_IN_KERNELS_64");
  }

  // Prints an invalid access, and makes every later call fail.
  int fault(const std::string& what) {
    if (what.empty()) return 0;
    std::fprintf(stderr, "stand-in: %s\n", what.c_str());
    until_failure = 0;
    return failure = kIllegalAddress;
  }

  // Runs work with access to the blocks that hold these addresses.
  template <class Do>
  int access(const char* what, const std::vector<const void*>& addresses, const Do& work) {
    try {
      const graphopt::gpu::GuardedMemory::Access access(guarded, what, addresses);
      return work();
    } catch (const std::exception& e) {
      return fault(e.what());
    }
  }

  // Executes the work of the stream, up to the piece with this number.
  int finish(void* stream, uint64_t until = UINT64_MAX) {
    const auto found = late.find(stream);
    if (found == late.end()) return 0;
    Queue& queue = found->second;
    while (!queue.todo.empty() && queue.done < until) {
      const Work work = std::move(queue.todo.front());
      queue.todo.pop_front();
      ++queue.done;
      if (const int status = work(*this)) return status;
    }
    return 0;
  }
  int finish() {
    for (const auto& [stream, device] : streams) {
      if (const int status = finish(stream)) return status;
    }
    return 0;
  }

  // Invalidates the captures that `which` selects; returns whether there were any.
  template <class Which>
  bool invalidate(const Which& which) {
    bool any = false;
    for (auto& [stream, recording] : recordings) {
      if (recording.ended || !which(recording)) continue;
      recording.valid = false;
      any = true;
    }
    return any;
  }
  bool invalidate_all() {
    return invalidate([](const Recording&) { return true; });
  }

  // Ends the captures that a call of this thread disturbs by the rules of capture modes.
  bool disturbs_recording() {
    if (mode == kRelaxed) return false;
    return invalidate([](const Recording& r) {
      return r.mode != kRelaxed &&
             (r.thread == std::this_thread::get_id() || (r.mode == kGlobal && mode == kGlobal));
    });
  }

  static Launch kernels(const char* variable) {
    const char* path = std::getenv(variable);
    void* library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library == nullptr) return nullptr;
    return reinterpret_cast<Launch>(dlsym(library, "graphopt_host_launch"));
  }
  static Parameters parameters_of(const char* variable) {
    const char* path = std::getenv(variable);
    void* library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library == nullptr) return nullptr;
    return reinterpret_cast<Parameters>(dlsym(library, "graphopt_host_parameters"));
  }
};

inline Driver& driver() {
  static auto& d = *new Driver;
  return d;
}

inline thread_local int current = 0;

// The last error of this thread. CUDA's driver API has none.
inline thread_local int last_error = 0;

// Runs every entry point: `work` under the lock, unless the test has made the driver fail.
template <class Do>
int call(Do&& work) {
  Driver& d = driver();
  const std::lock_guard<std::mutex> lock(d.mutex);
  if (d.until_failure == 0 && d.failure == kAbort) std::abort();
  int status = d.failure;
  if (d.until_failure == 0) {
    d.recordings.clear();  // a lost device captures nothing
  } else {
    if (d.until_failure > 0) --d.until_failure;
    status = d.devices.empty() ? kNoDevice : work(d);
  }
  if (status == kNotReady) return status;  // this status is not kept
  if (status != 0) ++d.failures;
  if (status != 0 || kEachCallWrites) last_error = status;
  return status;
}

inline int create(std::map<void*, int>& handles, void** handle) {
  *handle = std::malloc(1);
  handles[*handle] = current;
  return 0;
}

inline int destroy(std::map<void*, int>& handles, void* handle) {
  const auto found = handles.find(handle);
  if (found == handles.end() || found->second != current) return kInvalidHandle;
  handles.erase(found);
  std::free(handle);
  return 0;
}

// Whether the stream refuses waits because of a capture; the attempt ends the capture.
inline bool is_captured(Driver& d, void* stream) {
  const auto found = d.recordings.find(stream);
  if (found == d.recordings.end()) return false;
  found->second.valid = false;
  return true;
}

// The default stream exists on every device.
inline bool usable(const Driver& d, void* stream) {
  const auto found = d.streams.find(stream);
  return stream == nullptr || (found != d.streams.end() && found->second == current);
}

inline int allocate(void** memory, size_t bytes) {
  return call([&](Driver& d) {
    if (d.disturbs_recording()) return kUnsupportedInCapture;
    if (bytes > d.most - d.in_use) return kOutOfMemory;
    *memory = d.guarded.allocate(bytes);
    if (*memory == nullptr) return kOutOfMemory;
    d.memory[*memory] = bytes;
    d.in_use += bytes;
    return 0;
  });
}

inline int release(void* memory) {
  return call([&](Driver& d) {
    if (d.disturbs_recording()) return kUnsupportedInCapture;
    const auto found = d.memory.find(memory);
    if (found == d.memory.end()) return memory == nullptr ? 0 : kInvalidHandle;
    if (const int status = d.finish()) return status;
    d.in_use -= found->second;
    d.memory.erase(found);
    return d.fault(d.guarded.free(memory));
  });
}

inline int count(int* n) {
  *n = static_cast<int>(driver().devices.size());
  return call([](Driver&) { return 0; });
}

inline int name(char* text, int size, int device) {
  return call([&](Driver& d) {
    const std::string& arch = d.devices.at(static_cast<size_t>(device));
    const std::string given = "Stand-in " + arch.substr(0, arch.find('/'));
    std::strncpy(text, given.c_str(), static_cast<size_t>(size));
    return 0;
  });
}

inline int bus_id(char* text, int size, int device) {
  return call([&](Driver&) {
    return std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", 3 + 8 * device), 0;
  });
}

inline int total_memory(size_t* bytes) {
  return call([&](Driver&) { return *bytes = size_t{24} << 30, 0; });
}

// The "device code" is the name of its architecture.
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

// Lets another thread act while a stream is captured, or while its work is pending. The next thread that adds
// work to a capture, or that waits for a stream with work, pauses. The pause has a limit, since the other
// thread may itself wait for the end of the capture.
struct Pause {
  std::mutex mutex;
  std::condition_variable changed;
  bool wanted = false, in_wait = false, begun = false, ended = false;
  std::chrono::milliseconds most{0};
};
inline Pause& pause() {
  static auto& one = *new Pause;
  return one;
}

inline void pause_if_wanted(void* stream, bool in_wait) {
  {
    Driver& d = driver();
    const std::lock_guard<std::mutex> lock(d.mutex);
    const auto queue = d.late.find(stream);
    const bool here =
        in_wait ? queue != d.late.end() && !queue->second.todo.empty() : d.recordings.count(stream) > 0;
    if (!here) return;
  }
  Pause& p = pause();
  std::unique_lock<std::mutex> lock(p.mutex);
  if (p.in_wait != in_wait || !std::exchange(p.wanted, false)) return;
  p.begun = true;
  p.changed.notify_all();
  p.changed.wait_for(lock, p.most, [&] { return p.ended; });
}

// Executes the work immediately, or at the next wait, or when the graph captured from the stream is launched.
inline int enqueue(Driver& d, void* stream, Work work) {
  const auto found = d.recordings.find(stream);
  if (found == d.recordings.end()) {
    ++d.time;
    if (stream == nullptr && kCapturesAsHip && d.invalidate_all()) return kUnsupportedInCapture;
    if (!d.is_late || stream == nullptr) return work(d);
    Driver::Queue& queue = d.late[stream];
    queue.todo.push_back(std::move(work));
    ++queue.given;
    return 0;
  }
  if (!found->second.valid) return kInvalidatedCapture;
  found->second.work.push_back(std::move(work));
  return 0;
}

inline int run(void* function, const uint32_t (&grid)[3], const uint32_t (&block)[3], uint32_t lds,
               void* stream, void** args) {
  pause_if_wanted(stream, false);
  return call([&](Driver& d) {
    if (!usable(d, stream)) return kInvalidHandle;
    if (uint64_t{grid[0]} * block[0] > kMostItems) return kTooLarge;
    const bool wide = d.devices.at(static_cast<size_t>(current)).rfind("gfx9", 0) == 0;
    const Launch launch = wide ? d.launch_64 : d.launch;
    const auto* name = static_cast<const char*>(function);
    const size_t* sizes = nullptr;
    const int count = d.parameters(name, &sizes);
    if (count < 0) return kNotFound;
    // A driver copies the arguments.
    std::vector<std::vector<std::max_align_t>> values;
    std::vector<const void*> addresses;  // all arguments except the first, which contains the kernel's sizes
    for (int i = 0; i < count; ++i) {
      values.emplace_back((sizes[i] + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
      std::memcpy(values.back().data(), args[i], sizes[i]);
      if (i > 0) addresses.push_back(*static_cast<const void* const*>(args[i]));
    }
    const std::array<uint32_t, 3> groups = {grid[0], grid[1], grid[2]},
                                  items = {block[0], block[1], block[2]};
    return enqueue(d, stream, [=](Driver& later) mutable {
      std::vector<void*> pointers;
      for (auto& value : values) pointers.push_back(value.data());
      return later.access(name, addresses, [&] {
        return launch(name, groups.data(), items.data(), lds, pointers.data(), 0, 0) == 0 ? 0 : kNotFound;
      });
    });
  });
}

inline int wait(void* stream) {
  pause_if_wanted(stream, true);
  return call([&](Driver& d) {
    if (is_captured(d, stream) || d.disturbs_recording()) return kUnsupportedInCapture;
    return usable(d, stream) ? d.finish(stream) : kInvalidHandle;
  });
}

inline int wait_for_device() {
  return call([&](Driver& d) { return d.invalidate_all() ? kUnsupportedInCapture : d.finish(); });
}

inline int destroy_stream(void* stream) {
  return call([&](Driver& d) {
    if (const int status = d.finish(stream)) return status;
    d.late.erase(stream);
    d.recordings.erase(stream);
    for (auto& [event, where] : d.recorded) {
      if (where.stream == stream) where = {};  // another stream may get the address
    }
    return destroy(d.streams, stream);
  });
}

// Whether the driver can access this address asynchronously.
inline bool known(const Driver& d, const void* address) {
  for (const auto* blocks : {&d.memory, &d.pinned}) {
    auto after = blocks->upper_bound(const_cast<void*>(address));
    if (after == blocks->begin()) continue;
    --after;
    if (address < static_cast<const char*>(after->first) + after->second) return true;
  }
  return false;
}

inline int pin(void** memory, size_t bytes) {
  return call([&](Driver& d) {
    if (d.disturbs_recording()) return kUnsupportedInCapture;
    *memory = d.guarded.allocate(bytes);
    if (*memory == nullptr) return kOutOfMemory;
    d.pinned[*memory] = bytes;
    return 0;
  });
}

inline int unpin(void* memory) {
  return call([&](Driver& d) {
    if (d.disturbs_recording()) return kUnsupportedInCapture;
    if (const int status = d.finish()) return status;
    if (d.pinned.erase(memory) == 0) return memory == nullptr ? 0 : kInvalidHandle;
    return d.fault(d.guarded.free(memory));
  });
}

inline int copy(void* to, const void* from, size_t bytes, void* stream) {
  pause_if_wanted(stream, false);
  return call([&](Driver& d) {
    if (!usable(d, stream)) return kInvalidHandle;
    if (stream != nullptr && !known(d, from)) {
      ++d.waits;
      if (d.recordings.count(stream) > 0 && d.disturbs_recording()) return kUnsupportedInCapture;
      if (const int status = d.finish(stream)) return status;
      d.copied += bytes;
      return d.access("copy", {to, from}, [&] { return std::memcpy(to, from, bytes), 0; });
    }
    return enqueue(d, stream, [=](Driver& later) {
      later.copied += bytes;
      return later.access("copy", {to, from}, [&] { return std::memcpy(to, from, bytes), 0; });
    });
  });
}

inline int begin_recording(void* stream, int how) {
  return call([&](Driver& d) {
    if (stream == nullptr || !usable(d, stream)) return kInvalidHandle;
    Recording& recording = d.recordings[stream];
    if (recording.thread != std::thread::id() && !recording.ended) return kInvalidHandle;
    recording = {std::this_thread::get_id(), how, {}};
    return 0;
  });
}

inline int exchange_mode(int* other) {
  return call([&](Driver&) { return std::swap(mode, *other), 0; });
}

inline int end_recording(void* stream, void** graph) {
  return call([&](Driver& d) {
    *graph = nullptr;
    const auto found = d.recordings.find(stream);
    if (found == d.recordings.end()) return kInvalidHandle;
    const Recording& r = found->second;
    if (r.ended || (r.mode != kRelaxed && r.thread != std::this_thread::get_id())) return kWrongThread;
    if (!found->second.valid) {
      if (kCapturesAsHip) {
        found->second.ended = true;
        found->second.work.clear();
      } else {
        d.recordings.erase(found);
      }
      return kInvalidatedCapture;
    }
    *graph = std::malloc(1);
    d.most_nodes = std::max(d.most_nodes, found->second.work.size());
    d.graphs[*graph] = {std::move(found->second.work), current};
    d.recordings.erase(found);
    return 0;
  });
}

inline int recording_state(void* stream, int* state) {
  return call([&](Driver& d) {
    const auto found = d.recordings.find(stream);
    *state = found == d.recordings.end() ? 0 : found->second.valid ? 1 : 2;
    return 0;
  });
}

inline int make_ready(void** ready, void* graph) {
  return call([&](Driver& d) {
    const auto found = d.graphs.find(graph);
    if (found == d.graphs.end()) return kInvalidHandle;
    *ready = std::malloc(1);
    d.graphs[*ready] = found->second;
    return 0;
  });
}

inline int launch_graph(void* ready, void* stream) {
  return call([&](Driver& d) {
    const auto found = d.graphs.find(ready);
    if (found == d.graphs.end() || !usable(d, stream) || found->second.device != current)
      return kInvalidHandle;
    return enqueue(d, stream, [todo = found->second.work, first = found->second.first](Driver& later) {
      const size_t lost = later.replay == "drops" ? 1 : 0;
      for (size_t i = 0; i + lost < todo.size(); ++i) {
        if (const int status = todo[i](later)) return status;
      }
      if (later.replay != "remembers") return 0;
      for (const auto& [block, bytes] : later.memory) {
        std::vector<char>& content = first->blocks[block];
        if (first->known && content.size() == bytes) std::memcpy(block, content.data(), bytes);
        content.assign(static_cast<char*>(block), static_cast<char*>(block) + bytes);
      }
      first->known = true;
      return 0;
    });
  });
}

inline int destroy_graph(void* graph) {
  return call([&](Driver& d) {
    if (d.graphs.erase(graph) == 0) return kInvalidHandle;
    std::free(graph);
    return 0;
  });
}

inline int record(void* handle, void* stream) {
  return call([&](Driver& d) {
    if (d.events.count(handle) == 0 || !usable(d, stream)) return kInvalidHandle;
    d.recorded[handle] = {stream, d.late[stream].given, d.time};
    return 0;
  });
}

// Makes the stream, or with null the caller, wait for an event. `asks`: queries the event instead.
inline int wait_for_event(void* handle, void* stream, bool asks = false) {
  return call([&](Driver& d) {
    if (d.events.count(handle) == 0 || !usable(d, stream)) return kInvalidHandle;
    const auto found = d.recorded.find(handle);
    if (found == d.recorded.end()) return 0;
    const Driver::Event event = found->second;
    const auto captured = d.recordings.find(event.stream);
    if (kCapturesAsHip && captured != d.recordings.end() && captured->second.valid) {
      if (stream != nullptr) return kIsolatedCapture;
      captured->second.valid = false;
      return kCapturedEvent;
    }
    const auto wait = [event](Driver& later) { return later.finish(event.stream, event.given); };
    if (stream != nullptr) return enqueue(d, stream, wait);
    if (d.disturbs_recording()) return kUnsupportedInCapture;
    if (!asks) return wait(d);
    const auto queue = d.late.find(event.stream);
    if (queue == d.late.end() || queue->second.done >= event.given) return 0;
    const int status = d.finish(event.stream, queue->second.done + 1);
    return status != 0 ? status : kNotReady;
  });
}

inline int create_event(void** handle, unsigned flags) {
  constexpr unsigned kDisableTiming = 2;
  return call([&](Driver& d) {
    const int status = create(d.events, handle);
    if ((flags & kDisableTiming) != 0) d.untimed.insert(*handle);
    return status;
  });
}

inline int time_between(float* milliseconds, void* begin, void* end) {
  return call([&](Driver& d) {
    for (void* event : {begin, end}) {
      if (d.recorded.count(event) == 0 || d.untimed.count(event) > 0) return kInvalidHandle;
    }
    *milliseconds = static_cast<float>(d.recorded[end].time) - static_cast<float>(d.recorded[begin].time);
    return 0;
  });
}

inline int destroy_event(void* handle) {
  return call([&](Driver& d) {
    d.recorded.erase(handle);
    d.untimed.erase(handle);
    return destroy(d.events, handle);
  });
}

}  // namespace stand_in

// After this many further calls every call fails with this status, or the process aborts (kAbort); -1: none
// fails.
STAND_IN_EXPORT void stand_in_fail(long calls, int status) {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  stand_in::driver().until_failure = calls;
  stand_in::driver().failure = status;
}

// Requests a pause of at most this many milliseconds in the next thread that adds work to a capture, or, with
// `in_wait`, that waits for a stream with work.
STAND_IN_EXPORT void stand_in_pause(int milliseconds, bool in_wait) {
  stand_in::Pause& p = stand_in::pause();
  const std::lock_guard<std::mutex> lock(p.mutex);
  p.wanted = true;
  p.in_wait = in_wait;
  p.begun = p.ended = false;
  p.most = std::chrono::milliseconds(milliseconds);
}
// Waits until the pause begins; returns false after this many milliseconds.
STAND_IN_EXPORT bool stand_in_await_pause(int milliseconds) {
  stand_in::Pause& p = stand_in::pause();
  std::unique_lock<std::mutex> lock(p.mutex);
  return p.changed.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return p.begun; });
}
STAND_IN_EXPORT void stand_in_end_pause() {
  stand_in::Pause& p = stand_in::pause();
  const std::lock_guard<std::mutex> lock(p.mutex);
  p.ended = true;
  p.changed.notify_all();
}

// Sets the total device memory in bytes, including memory in use.
STAND_IN_EXPORT void stand_in_memory(size_t bytes) {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  stand_in::driver().most = bytes;
}

// Returns the number of calls that have returned an error so far.
STAND_IN_EXPORT long stand_in_failures() {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  return stand_in::driver().failures;
}

// Returns the number of stream copies from unpinned memory.
STAND_IN_EXPORT long stand_in_waits() {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  return stand_in::driver().waits;
}

// Returns the bytes of all copies, including those of graphs.
STAND_IN_EXPORT size_t stand_in_copied() {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  return stand_in::driver().copied;
}

// Return the calling thread's last error and current device.
STAND_IN_EXPORT int stand_in_last_error() { return stand_in::last_error; }
STAND_IN_EXPORT int stand_in_current() { return stand_in::current; }
STAND_IN_EXPORT void stand_in_set_current(int device) { stand_in::current = device; }

// Enqueues a library's work like a launch. `refuses`: the work cannot be captured.
STAND_IN_EXPORT int stand_in_enqueue(void* stream, const char* what,
                                     const std::vector<const void*>& addresses,
                                     const std::function<int()>& work, bool refuses) {
  stand_in::pause_if_wanted(stream, false);
  stand_in::Driver& d = stand_in::driver();
  const std::lock_guard<std::mutex> lock(d.mutex);
  if (refuses) stand_in::is_captured(d, stream);
  return stand_in::enqueue(d, stream,
                           [=](stand_in::Driver& later) { return later.access(what, addresses, work); });
}

// Returns the number of nodes of the largest graph so far.
STAND_IN_EXPORT size_t stand_in_most_nodes() {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  return stand_in::driver().most_nodes;
}

// Returns the number of live graphs.
STAND_IN_EXPORT size_t stand_in_graphs() {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  return stand_in::driver().graphs.size();
}

STAND_IN_EXPORT size_t stand_in_devices() { return stand_in::driver().devices.size(); }

// Returns the number of pinned bytes.
STAND_IN_EXPORT size_t stand_in_pinned() {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  size_t bytes = 0;
  for (const auto& block : stand_in::driver().pinned) bytes += block.second;
  return bytes;
}

// Returns the number of loaded modules.
STAND_IN_EXPORT size_t stand_in_modules() {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  return stand_in::driver().modules.size();
}

// Returns the live bytes, streams and events.
STAND_IN_EXPORT void stand_in_alive(size_t (&counts)[3]) {
  const std::lock_guard<std::mutex> lock(stand_in::driver().mutex);
  counts[0] = stand_in::driver().in_use;
  counts[1] = stand_in::driver().streams.size();
  counts[2] = stand_in::driver().events.size();
}
