// The functions of the HIP module API and the CUDA driver API that we use. Most have equal signatures in both.
// Types and constants are declared here, so the headers of HIP and CUDA are not needed.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/allocations.h"
#include "device/device.h"
#include "device/shared_library.h"
#include "device/traits.h"

namespace graphopt::gpu {

template <class Function>
void resolve(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("the GPU runtime lacks ") + name);
}

// Like resolve for a function that older versions lack; sets it to null if this version lacks it.
template <class Function>
void resolve_optional(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

inline void check(int status, const std::string& what) {
  if (status != 0) throw std::runtime_error(what + " failed, status " + std::to_string(status));
}

// A function of a vendor's library that returns a status. The constructor throws std::runtime_error if the
// library lacks it.
template <class... Parameters>
class LibraryFunction {
 public:
  LibraryFunction(void* library, std::string name) : name_(std::move(name)) {
    resolve(library, name_.c_str(), function_);
  }
  int operator()(Parameters... arguments) const { return function_(arguments...); }
  // Calls the function. Throws std::runtime_error with its name if it fails.
  void check(Parameters... arguments) const { gpu::check(function_(arguments...), name_); }
  auto pointer() const { return function_; }

 private:
  std::string name_;
  int (*function_)(Parameters...) = nullptr;
};

// A failed call of a driver, with its status.
class DriverError : public std::runtime_error {
 public:
  DriverError(int code, const std::string& what) : std::runtime_error(what), status(code) {}
  int status;
};

// Functions with equal parameters in HIP and CUDA. A derived struct resolves them by their names in its
// driver.
struct DriverFunctions {
  using Module = void*;
  using Function = void*;

  int (*module_load)(Module*, const void*);
  int (*get_function)(Function*, Module, const char*);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                void**);
  int (*synchronize)(void*);
  // A CUdeviceptr is an integer as wide as a pointer.
  int (*malloc_)(void**, size_t);
  int (*free_)(void*);
  int (*malloc_pinned)(void**, size_t, unsigned);
  int (*get_device_count)(int*);
  int (*get_device)(int*);
  int (*get_attribute)(int*, int, int);
  int (*get_name)(char*, int, int);
  int (*get_bus_id)(char*, int, int);
  int (*get_memory)(size_t*, int);
  int (*get_version)(int*);
  int (*stream_create)(void**, unsigned);
  int (*stream_destroy)(void*);
  int (*stream_wait_event)(void*, void*, unsigned);
  int (*event_create)(void**, unsigned);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void*);
  int (*event_synchronize)(void*);
  int (*event_query)(void*);
  int (*event_elapsed)(float* milliseconds, void*, void*);

  // Null in old drivers.
  int (*memory_info)(size_t*, size_t*);
  int (*capture_begin)(void*, int);
  int (*capture_end)(void*, void**);
  int (*capture_state)(void*, int*);
  int (*capture_mode)(int*);
  int (*graph_launch)(void*, void*);
  int (*graph_destroy)(void*);
  int (*graph_exec_destroy)(void*);

  SharedLibrary library;

 protected:
  bool has_common_graphs() const {
    return capture_begin != nullptr && capture_end != nullptr && capture_state != nullptr &&
           graph_launch != nullptr && graph_destroy != nullptr && graph_exec_destroy != nullptr;
  }
};

// The capture of the calling thread: its completed graphs, and the number of nodes in the current one.
struct OpenCapture {
  void* stream = nullptr;
  size_t max_nodes = 0, nodes = 0;
  std::vector<void*> graphs;
};
inline thread_local OpenCapture* open_capture = nullptr;

// Sets facts.code from the other facts of a device. If the library has no code that the device can run and the driver
// can load, facts.code is empty and the reason is returned.
inline Diagnosis choose_code(DeviceFacts& facts, const std::string& prefix, bool loads_generic_code) {
  const auto has = [](const std::string& name) {
    const auto& all = code_objects();
    return std::any_of(all.begin(), all.end(), [&](const CodeObject& o) { return name == o.arch; });
  };
  const Architecture* row = find_architecture(facts.arch);
  const std::string family = row != nullptr && row->family != nullptr ? row->family : "";
  facts.code = has(facts.arch) ? facts.arch : has(family) ? family : "";
  const std::string known = architectures(prefix);
  if (row == nullptr) {
    facts.code.clear();
    return {"unsupported", "graphopt has no kernels for " + facts.arch};
  }
  if (facts.code.empty()) {
    return {"no_code", known.empty()
                           ? "this library was built without device code"
                           : "this library has device code for " + known + ", and this GPU is " + facts.arch};
  }
  if (facts.code != facts.arch && !loads_generic_code) {
    facts.code.clear();
    return {"old_runtime", facts.arch + " needs the device code for " + family +
                               ", which only ROCm 6.4 and newer load; this is " + facts.driver};
  }
  return {};
}

// Detects the devices of a driver. `driver` loads it, and throws NoRuntime if it is not installed.
template <class Driver>
DetectedDriver find_devices(Driver& (*driver)()) {
  DetectedDriver found;
  try {
    const Driver& it = driver();
    found.library = it.library.path;
    int count = 0;
    const int status = it.count_devices(&count);
    if (status != 0 || count == 0) {
      found.problem = it.explain_no_devices(status);
      return found;
    }
    for (int n = 0; n < count; ++n) {
      FoundDevice& device = found.devices.emplace_back();
      try {
        device.facts = it.facts(n);
        device.problem = choose_code(device.facts, Driver::prefix(), it.loads_generic_code());
        found.version = device.facts.driver;
      } catch (const std::exception& e) {
        device.problem = {"failed", e.what()};
      }
    }
  } catch (const NoRuntime& e) {
    found.problem = {"no_runtime", e.what()};
  } catch (const std::exception& e) {
    found.problem = {"broken_runtime", e.what()};
  }
  return found;
}

// One device of a driver. Driver supplies the functions and the texts of errors.
template <class Driver>
class DriverDevice final : public Device {
 public:
  DriverDevice(Driver& driver, int number, const DeviceFacts& facts)
      : driver_(driver), number_(number), facts_(facts) {
    const OnDevice on(*this);
    for (const CodeObject& object : code_objects()) {
      if (object.arch != facts_.code) continue;
      DriverFunctions::Module module{};
      check(driver_.module_load(&module, object.data), object.module);
      modules_[object.module] = module;
    }
  }

  Backend backend() const override { return Driver::kBackend; }
  const DeviceFacts& facts() const override { return facts_; }

  void* enter() override {
    refuse_fork();
    if (lost_) throw DeviceLost(lost_reason_);
    try {
      return driver_.enter(number_);
    } catch (const DriverError& e) {
      mark_lost_if_fatal(e);
      throw;
    }
  }
  void leave(void* before) noexcept override { driver_.leave(before); }
  void clear_errors() noexcept override { driver_.clear_error(); }

  void launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds, void** args,
              void* stream) override {
    const DriverFunctions::Function f = function(kernel);
    reserve_nodes(1);
    check(driver_.launch(f, grid[0], grid[1], grid[2], block, 1, 1, lds, stream, args, nullptr), kernel);
  }

  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    const int status = driver_.malloc_(&memory, bytes);
    if (status == Driver::kOutOfMemory) {
      driver_.clear_error();
      throw OutOfMemory("out of device memory: " + std::to_string(bytes) + " bytes");
    }
    check(status, "allocate");
    allocations().add(*this, memory, bytes);
    return memory;
  }
  void* allocate_pinned(size_t bytes) override {
    void* memory = nullptr;
    const int status = driver_.malloc_pinned(&memory, bytes, kPortable);
    if (status == Driver::kOutOfMemory) {
      driver_.clear_error();
      throw OutOfMemory("out of pinned memory: " + std::to_string(bytes) + " bytes");
    }
    check(status, "allocate pinned memory");
    return memory;
  }
  void free(void* memory) noexcept override {
    allocations().remove(memory);
    ignore(driver_.free_(memory));
  }
  std::optional<MemoryInfo> memory_info() override {
    MemoryInfo info;
    if (driver_.memory_info == nullptr) return std::nullopt;
    if (driver_.memory_info(&info.free, &info.total) == 0) return info;
    driver_.clear_error();
    return std::nullopt;
  }
  void synchronize(void* stream) override { check(driver_.synchronize(stream), "synchronize"); }

  void copy(void* to, const void* from, size_t bytes, void* stream) override {
    reserve_nodes(1);
    check(driver_.copy(to, from, bytes, stream), "copy");
  }
  void* create_stream() override {
    void* stream = nullptr;
    check(driver_.stream_create(&stream, kNonBlocking), "create a stream");
    return stream;
  }
  void destroy_stream(void* stream) noexcept override { ignore(driver_.stream_destroy(stream)); }
  void* create_event() override {
    void* event = nullptr;
    check(driver_.event_create(&event, kDisableTiming), "create an event");
    return event;
  }
  void* create_timing_event() override {
    void* event = nullptr;
    check(driver_.event_create(&event, 0), "create an event");
    return event;
  }
  double microseconds(void* begin, void* end) override {
    float milliseconds = 0;
    check(driver_.event_elapsed(&milliseconds, begin, end), "read the time of events");
    return 1e3 * milliseconds;
  }
  void destroy_event(void* event) noexcept override { ignore(driver_.event_destroy(event)); }
  void record(void* event, void* stream) override {
    check(driver_.event_record(event, stream), "record an event");
  }
  void wait(void* stream, void* event) override {
    check(driver_.stream_wait_event(stream, event, 0), "wait for an event");
  }
  bool is_done(void* event) override {
    const int status = driver_.event_query(event);
    if (status == kNotReady) return false;
    check(status, "query an event");
    return true;
  }
  void wait(void* event) override { check(driver_.event_synchronize(event), "wait for an event"); }

  void begin_capture(void* stream) override {
    if (!driver_.has_graphs()) throw std::runtime_error("this driver is too old to capture launches");
    check(driver_.capture_begin(stream, kThreadLocal), "begin a capture");
    // Replaces the relaxed mode of OnDevice, in which calls of this thread that allocate or wait would not fail.
    exchange_capture_mode(kThreadLocal);
    delete std::exchange(open_capture, new OpenCapture{stream, 0, 0, {}});
  }
  std::unique_ptr<Graph> end_capture(void* stream) override {
    const std::unique_ptr<OpenCapture> open(std::exchange(open_capture, nullptr));
    exchange_capture_mode(kRelaxed);
    try {
      open->graphs.push_back(end_graph(stream));
    } catch (...) {
      destroy(open->graphs);
      recover(stream);
      throw;
    }
    return std::make_unique<ReadyGraph>(*this, std::move(open->graphs));
  }
  void abandon_capture(void* stream) noexcept override {
    const std::unique_ptr<OpenCapture> open(std::exchange(open_capture, nullptr));
    exchange_capture_mode(kRelaxed);
    if (open != nullptr) destroy(open->graphs);
    void* captured = nullptr;
    const int status = driver_.capture_end(stream, &captured);
    if (captured != nullptr) ignore(driver_.graph_destroy(captured));
    if (status != 0) recover(stream);
  }
  void limit_capture(size_t nodes) override { open_capture->max_nodes = nodes; }
  void reserve_nodes(size_t nodes) override {
    OpenCapture* open = open_capture;
    if (open == nullptr) return;
    if (open->max_nodes > 0 && open->nodes > 0 && open->nodes + nodes > open->max_nodes) {
      open->graphs.push_back(end_graph(open->stream));
      open->nodes = 0;
      check(driver_.capture_begin(open->stream, kThreadLocal), "begin a capture");
    }
    open->nodes += nodes;
  }
  GraphRules graph_rules() const override { return driver_.graph_rules(); }
  int exchange_capture_mode(int mode) noexcept override {
    if (driver_.capture_mode != nullptr) ignore(driver_.capture_mode(&mode));
    return mode;
  }
  bool is_capturing(void* stream) override {
    return stream != nullptr && driver_.has_graphs() && capture_state(stream) != 0;
  }
  void check_capture(void* stream) override {
    constexpr int kInvalid = 2;
    if (capture_state(stream) == kInvalid) throw std::runtime_error("the node cannot be captured in a graph");
  }

 private:
  // The same values in HIP and CUDA.
  static constexpr unsigned kNonBlocking = 1, kDisableTiming = 2, kPortable = 1;
  // A capture mode: calls of other threads do not affect the capture, and calls of this thread that would allocate
  // or wait fail.
  static constexpr int kThreadLocal = 1;
  // Before HIP 7 this status also becomes the last error of the thread, until the next call.
  static constexpr int kNotReady = 600;

  // The instantiated graphs of one capture, which are launched in order.
  class ReadyGraph final : public Graph {
   public:
    // Destroys `captured`, even if the constructor throws.
    ReadyGraph(DriverDevice& device, std::vector<void*> captured) : device_(device) {
      int status = 0;
      for (void* graph : captured) {
        void* ready = nullptr;
        if (status == 0) status = device_.driver_.graph_instantiate(&ready, graph);
        if (ready != nullptr) {
          ready_.push_back(ready);
          allocations().add_graph();
        }
      }
      device_.destroy(captured);
      if (status == 0) return;
      destroy();
      device_.check(status, "instantiate a graph");
    }
    ~ReadyGraph() override { destroy(); }
    void launch(void* stream) override {
      for (void* graph : ready_) device_.check(device_.driver_.graph_launch(graph, stream), "launch a graph");
    }

   private:
    void destroy() noexcept {
      for (void* graph : ready_) {
        allocations().remove_graph();
        device_.ignore(device_.driver_.graph_exec_destroy(graph));
      }
      ready_.clear();
    }

    DriverDevice& device_;
    std::vector<void*> ready_;
  };

  // Most calls find the function by the address of its name, which is a constant in plans.
  DriverFunctions::Function function(const char* kernel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = by_address_.find(kernel);
    if (known != by_address_.end() && known->second->first == kernel) return known->second->second;
    auto found = functions_.find(kernel);
    if (found == functions_.end()) found = functions_.emplace(kernel, load(kernel)).first;
    by_address_[kernel] = &*found;
    return found->second;
  }

  DriverFunctions::Function load(const char* kernel) {
    const char* name = module_of(kernel);
    const auto module = modules_.find(name != nullptr ? name : "");
    if (module == modules_.end()) {
      throw std::runtime_error(std::string("no kernel ") + kernel + " for " + facts_.code);
    }
    DriverFunctions::Function f{};
    check(driver_.get_function(&f, module->second, kernel), kernel);
    driver_.prepare(f);
    return f;
  }

  void* end_graph(void* stream) {
    void* captured = nullptr;
    check(driver_.capture_end(stream, &captured), "end a capture");
    if (captured == nullptr) throw std::runtime_error("the captured graph is empty");
    return captured;
  }

  void destroy(std::vector<void*>& graphs) noexcept {
    for (void* graph : graphs) ignore(driver_.graph_destroy(graph));
    graphs.clear();
  }

  // Before ROCm 7.14 a stream refuses every launch after a failed capture, until an empty capture has succeeded
  // (rocm-systems issue 6509).
  void recover(void* stream) noexcept {
    driver_.clear_error();
    void* empty = nullptr;
    if (driver_.capture_begin(stream, kThreadLocal) != 0 || driver_.capture_end(stream, &empty) != 0) {
      driver_.clear_error();
    }
    if (empty != nullptr) ignore(driver_.graph_destroy(empty));
  }

  int capture_state(void* stream) {
    int state = 0;
    check(driver_.capture_state(stream, &state), "query a capture");
    return state;
  }

  void check(int status, const char* what) {
    if (status == 0) return;
    try {
      driver_.check(status, what);
    } catch (const DriverError& e) {
      mark_lost_if_fatal(e);
      throw;
    }
  }

  // Errors after which the device is unusable: an uncorrectable memory error, an invalid address, a time-out,
  // an assertion, an invalid instruction, a failed launch. After such an error, CUDA and HIP 7 or newer
  // return it from every later call of the process; earlier HIP ends the process.
  static bool is_fatal(int status) {
    return status == 214 || status == 700 || status == 702 || status == 710 ||
           (status >= 714 && status <= 719);
  }

  void mark_lost_if_fatal(const DriverError& error) {
    if (!is_fatal(error.status)) return;
    const std::lock_guard<std::mutex> lock(lost_mutex_);
    if (!lost_) {
      lost_reason_ = "the GPU " + facts_.name + " (" + facts_.bus_id + ") has failed, " + error.what() +
                     ": restart the process, none of its sessions can use this GPU any more";
      std::fprintf(stderr, "graphopt: %s\n", lost_reason_.c_str());
      lost_ = true;
    }
    throw DeviceLost(lost_reason_);
  }

  void ignore(int status) noexcept {
    if (status != 0) driver_.clear_error();
  }

  Driver& driver_;
  int number_ = 0;
  DeviceFacts facts_;
  std::map<std::string, DriverFunctions::Module>
      modules_;  // by source file; never unloaded, since the device lives as long as the process
  std::mutex lost_mutex_;
  std::atomic<bool> lost_{false};
  std::string lost_reason_;  // written once, before lost_
  std::mutex mutex_;
  using Functions = std::map<std::string, DriverFunctions::Function>;
  Functions functions_;
  std::unordered_map<const void*, typename Functions::value_type*> by_address_;
};

}  // namespace graphopt::gpu
