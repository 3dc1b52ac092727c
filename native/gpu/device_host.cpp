// Kernels on the CPU, for tests of everything around them.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "gpu/device.h"

namespace graphopt::gpu {
namespace {

class HostDevice final : public Device {
 public:
  explicit HostDevice(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    launch_ = reinterpret_cast<decltype(launch_)>(dlsym(library, "graphopt_host_launch"));
    const auto wave = reinterpret_cast<int (*)()>(dlsym(library, "graphopt_host_wave"));
    if (launch_ == nullptr || wave == nullptr) throw std::runtime_error(path + " holds no kernels");
    // Where errors of launches come late, as they do on a GPU.
    synchronize_ = reinterpret_cast<decltype(synchronize_)>(dlsym(library, "graphopt_host_synchronize"));
    facts_ = typical_facts("cpu" + std::to_string(wave()));
    facts_.name = "host memory";
  }

  Backend backend() const override { return Backend::kHost; }
  const DeviceFacts& facts() const override { return facts_; }
  int current() const override { return 0; }
  void make_current() override {}

  void launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds, void** args,
              void*) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint32_t size[3] = {block, 1, 1};
    if (launch_(kernel, grid, size, lds, args, 0, 0) != 0) {
      throw std::runtime_error(std::string("no kernel ") + kernel + " for the CPU");
    }
  }

  void* allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(256, static_cast<size_t>(round_up(static_cast<int64_t>(bytes), 256)));
    if (memory == nullptr) throw OutOfMemory("out of device memory: " + std::to_string(bytes) + " bytes");
    return memory;
  }
  void free(void* memory) noexcept override { std::free(memory); }
  // Everything is done when the call returns; a stream or an event is only an address of its own.
  void synchronize(void*) override { synchronize(); }
  void synchronize() override {
    if (synchronize_ != nullptr && synchronize_() != 0)
      throw std::runtime_error("synchronize: a launch failed");
  }
  void copy(void* to, const void* from, size_t bytes, void*) override { std::memcpy(to, from, bytes); }
  void* create_stream() override { return new char; }
  void destroy_stream(void* stream) noexcept override { delete static_cast<char*>(stream); }
  void* create_event() override { return new char; }
  void destroy_event(void* event) noexcept override { delete static_cast<char*>(event); }
  void record(void*, void*) override {}
  void wait(void*, void*) override {}
  void wait(void*) override {}

 private:
  int (*launch_)(const char*, const uint32_t*, const uint32_t*, uint32_t, void**, int, uint32_t);
  int (*synchronize_)();
  DeviceFacts facts_;
  std::mutex mutex_;
};

}  // namespace

std::unique_ptr<Device> open_host(const std::string& path) { return std::make_unique<HostDevice>(path); }

}  // namespace graphopt::gpu
