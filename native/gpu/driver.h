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

// One device through a driver. Driver supplies the function table and the naming of errors.
template <class Driver>
class DriverDevice final : public Device {
 public:
  explicit DriverDevice(Driver driver) : driver_(std::move(driver)) {
    facts_ = driver_.facts();
    for (const CodeObject& object : code_objects()) {
      if (object.arch != facts_.arch) continue;
      typename Driver::Module module{};
      driver_.check(driver_.module_load(&module, object.data), object.module);
      modules_.push_back(module);
    }
    if (modules_.empty()) {
      throw std::runtime_error("this library has no device code for " + facts_.arch);
    }
  }

  const DeviceFacts& facts() const override { return facts_; }

  int current() const override {
    int device = 0;
    driver_.check(driver_.get_device(&device), "current device");
    return device;
  }

  void launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds, void** args,
              void* stream) override {
    driver_.check(
        driver_.launch(function(kernel), grid[0], grid[1], grid[2], block, 1, 1, lds, stream, args, nullptr),
        kernel);
  }

  void* allocate(size_t bytes) override { return driver_.allocate(bytes); }
  void free(void* memory) noexcept override { driver_.free(memory); }
  void synchronize(void* stream) override { driver_.check(driver_.synchronize(stream), "synchronize"); }

 private:
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
  DeviceFacts facts_;
  std::vector<typename Driver::Module> modules_;  // never unloaded: the device lives as long as the process
  std::mutex mutex_;
  std::map<std::string, typename Driver::Function> functions_;
};

}  // namespace graphopt::gpu
