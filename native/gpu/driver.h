// The functions of the HIP module API and of the CUDA driver API that we use. Both have the same shape; the
// types and numbers are declared here, so that no header of either is needed.
#pragma once

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "gpu/device.h"
#include "hip/traits.h"

namespace graphopt::gpu {

// A shared library: the one that is already in the process, if any, else the first that can be loaded. Two
// copies of a GPU runtime in one process would not know each other's streams.
inline void* open_runtime(std::initializer_list<const char*> names, const char* what) {
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : names) {
      if (void* library = dlopen(name, flags)) return library;
    }
  }
  throw NoRuntime(std::string(what) + " was not found: " + dlerror());
}

template <class Function>
void resolve(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("the GPU runtime lacks ") + name);
}

template <class Driver>
Present find_devices() {
  try {
    const Driver driver;
    Present found;
    found.count = driver.count();
    // A thread that has never used the driver has no current device: then it is the first.
    if (driver.get_device(&found.current) != 0) found.current = 0;
    return found;
  } catch (const NoRuntime&) {
    return {};
  }
}

// One device through a driver. Driver supplies the function table and the naming of errors.
template <class Driver>
class DriverDevice final : public Device {
 public:
  DriverDevice(Driver driver, int number) : driver_(std::move(driver)), number_(number) {
    driver_.set_device(number_);
    facts_ = driver_.facts();
    char name[256] = {};
    driver_.check(driver_.get_name(name, sizeof name - 1, number_), "name of the device");
    facts_.name = name;
    facts_.driver = driver_.version();
    for (const CodeObject& object : code_objects()) {
      if (object.arch != facts_.arch) continue;
      typename Driver::Module module{};
      driver_.check(driver_.module_load(&module, object.data), object.module);
      modules_.push_back(module);
    }
  }

  Backend backend() const override { return Driver::kBackend; }
  const DeviceFacts& facts() const override { return facts_; }

  int current() const override {
    int device = 0;
    driver_.check(driver_.get_device(&device), "current device");
    return device;
  }

  void make_current() override { driver_.set_device(number_); }

  void launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds, void** args,
              void* stream) override {
    driver_.check(
        driver_.launch(function(kernel), grid[0], grid[1], grid[2], block, 1, 1, lds, stream, args, nullptr),
        kernel);
  }

  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    const int status = driver_.malloc_(&memory, bytes);
    if (status == Driver::kOutOfMemory) {
      throw OutOfMemory("out of device memory: " + std::to_string(bytes) + " bytes");
    }
    driver_.check(status, "allocate");
    return memory;
  }
  void free(void* memory) noexcept override { driver_.free_(memory); }
  void synchronize(void* stream) override { driver_.check(driver_.synchronize(stream), "synchronize"); }
  void synchronize() override { driver_.check(driver_.synchronize_device(), "synchronize"); }

  void copy(void* to, const void* from, size_t bytes, void* stream) override {
    driver_.check(driver_.copy(to, from, bytes, stream), "copy");
  }
  void* create_stream() override {
    void* stream = nullptr;
    driver_.check(driver_.stream_create(&stream, kNonBlocking), "create a stream");
    return stream;
  }
  void destroy_stream(void* stream) noexcept override { driver_.stream_destroy(stream); }
  void* create_event() override {
    void* event = nullptr;
    driver_.check(driver_.event_create(&event, kDisableTiming), "create an event");
    return event;
  }
  void destroy_event(void* event) noexcept override { driver_.event_destroy(event); }
  void record(void* event, void* stream) override {
    driver_.check(driver_.event_record(event, stream), "record an event");
  }
  void wait(void* stream, void* event) override {
    driver_.check(driver_.stream_wait_event(stream, event, 0), "wait for an event");
  }
  void wait(void* event) override { driver_.check(driver_.event_synchronize(event), "wait for an event"); }

 private:
  // The same numbers in HIP and CUDA.
  static constexpr unsigned kNonBlocking = 1, kDisableTiming = 2;

  typename Driver::Function function(const char* kernel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = functions_.find(kernel);
    if (found != functions_.end()) return found->second;
    for (const auto module : modules_) {
      typename Driver::Function f{};
      if (driver_.get_function(&f, module, kernel) == 0) {
        driver_.prepare(f);
        return functions_[kernel] = f;
      }
    }
    throw std::runtime_error(std::string("no kernel ") + kernel + " for " + facts_.arch);
  }

  Driver driver_;
  int number_ = 0;
  DeviceFacts facts_;
  std::vector<typename Driver::Module> modules_;  // never unloaded: the device lives as long as the process
  std::mutex mutex_;
  std::map<std::string, typename Driver::Function> functions_;
};

}  // namespace graphopt::gpu
