// A device that runs kernels on the CPU, to test the code around them.
#include <dlfcn.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device/allocations.h"
#include "device/device.h"
#include "device/emulator/guarded_memory.h"

namespace graphopt::gpu {
namespace {

// The memory of all host devices. Only kernels and copies can access it, as with a GPU's memory.
GuardedMemory& guarded_memory() {
  static auto& memory = *new GuardedMemory(PROT_NONE);
  return memory;
}

// A graph of captured calls.
class HostGraph final : public Graph {
 public:
  explicit HostGraph(std::vector<std::function<void()>> work) : work_(std::move(work)) {
    allocations().add_graph();
  }
  ~HostGraph() override { allocations().remove_graph(); }
  void launch(void*) override {
    for (const auto& call : work_) call();
  }

 private:
  std::vector<std::function<void()>> work_;
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    launch_ = reinterpret_cast<decltype(launch_)>(dlsym(library, "graphopt_host_launch"));
    const auto wave = reinterpret_cast<int (*)()>(dlsym(library, "graphopt_host_wave"));
    parameters_ = reinterpret_cast<decltype(parameters_)>(dlsym(library, "graphopt_host_parameters"));
    if (launch_ == nullptr || wave == nullptr || parameters_ == nullptr)
      throw std::runtime_error(path + " is no library of kernels for the CPU");
    // Only a test library has this function. It reports launch errors late, like a GPU.
    synchronize_ = reinterpret_cast<decltype(synchronize_)>(dlsym(library, "graphopt_host_synchronize"));
    facts_ = typical_facts("cpu" + std::to_string(wave()));
    facts_.name = "host memory";
  }

  Backend backend() const override { return Backend::kHost; }
  const DeviceFacts& facts() const override { return facts_; }
  void* enter() override { return nullptr; }
  void leave(void*) noexcept override {}
  void clear_errors() noexcept override {}

  void launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds, void** args,
              void* stream) override {
    if (is_capturing(stream)) {
      capture_launch(kernel, grid, block, lds, args, stream);
      return;
    }
    const GuardedMemory::Access access(guarded_memory(), kernel, addresses_in(kernel, args));
    const uint32_t size[3] = {block, 1, 1};
    if (launch_(kernel, grid, size, lds, args, 0, 0) != 0) {
      throw std::runtime_error(std::string("no kernel ") + kernel + " for the CPU");
    }
  }

  void* allocate(size_t bytes) override {
    void* memory = guarded_memory().allocate(bytes);
    if (memory == nullptr) throw OutOfMemory("out of device memory: " + std::to_string(bytes) + " bytes");
    allocations().add(*this, memory, bytes);
    return memory;
  }
  void* allocate_pinned(size_t bytes) override { return allocate(bytes); }
  void free(void* memory) noexcept override {
    if (memory == nullptr) return;
    allocations().remove(memory);
    const std::string problem = guarded_memory().free(memory);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (corruption_.empty()) corruption_ = problem;
  }
  // Every call completes before it returns. So synchronize() only reports errors, a stream is only a unique address,
  // and an event holds the time of its recording.
  void synchronize(void*) override {
    if (synchronize_ != nullptr && synchronize_() != 0)
      throw std::runtime_error("synchronize: a launch failed");
    std::string problem = guarded_memory().check();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (problem.empty()) problem.swap(corruption_);
    if (!problem.empty()) throw std::runtime_error("synchronize: " + problem);
  }
  void copy(void* to, const void* from, size_t bytes, void* stream) override {
    if (is_capturing(stream)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      captures_[stream].push_back([=] { copy(to, from, bytes, nullptr); });
      return;
    }
    const GuardedMemory::Access access(guarded_memory(), "copy", {to, from});
    std::memcpy(to, from, bytes);
  }
  void* create_stream() override { return new char; }
  void destroy_stream(void* stream) noexcept override { delete static_cast<char*>(stream); }
  using Time = std::chrono::steady_clock::time_point;
  void* create_event() override { return new Time; }
  void* create_timing_event() override { return new Time; }
  double microseconds(void* begin, void* end) override {
    const std::chrono::duration<double, std::micro> between =
        *static_cast<Time*>(end) - *static_cast<Time*>(begin);
    return between.count();
  }
  void destroy_event(void* event) noexcept override { delete static_cast<Time*>(event); }
  void record(void* event, void*) override { *static_cast<Time*>(event) = std::chrono::steady_clock::now(); }
  void wait(void*, void*) override {}
  void wait(void*) override {}
  bool is_done(void*) override { return true; }

  void begin_capture(void* stream) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    captures_[stream].clear();
  }
  std::unique_ptr<Graph> end_capture(void* stream) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto graph = std::make_unique<HostGraph>(std::move(captures_[stream]));
    captures_.erase(stream);
    return graph;
  }
  void abandon_capture(void* stream) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    captures_.erase(stream);
  }
  bool is_capturing(void* stream) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return captures_.count(stream) > 0;
  }
  void check_capture(void*) override {}

 private:
  // Copies the arguments, which are valid only during the call.
  void capture_launch(const char* kernel, const uint32_t (&grid)[3], uint32_t block, uint32_t lds,
                      void** args, void* stream) {
    std::vector<std::vector<std::max_align_t>> values;
    for (const auto& [arg, bytes] : parameters(kernel, args)) {
      values.emplace_back((bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
      std::memcpy(values.back().data(), arg, bytes);
    }
    const std::array<uint32_t, 3> groups = {grid[0], grid[1], grid[2]};
    const std::lock_guard<std::mutex> lock(mutex_);
    captures_[stream].push_back([=, values = std::move(values)]() mutable {
      std::vector<void*> pointers;
      for (auto& value : values) pointers.push_back(value.data());
      const uint32_t size[3] = {groups[0], groups[1], groups[2]};
      launch(kernel, size, block, lds, pointers.data(), nullptr);
    });
  }

  // Returns each argument with its size in bytes.
  std::vector<std::pair<const void*, size_t>> parameters(const char* kernel, void** args) const {
    const size_t* sizes = nullptr;
    const int count = parameters_(kernel, &sizes);
    if (count < 0) throw std::runtime_error(std::string("no kernel ") + kernel + " for the CPU");
    std::vector<std::pair<const void*, size_t>> found;
    for (int i = 0; i < count; ++i) found.emplace_back(args[i], sizes[i]);
    return found;
  }

  // Returns the pointers among the arguments: all except the first, which is the argument struct
  // (Device::run).
  std::vector<const void*> addresses_in(const char* kernel, void** args) const {
    std::vector<const void*> found;
    const auto all = parameters(kernel, args);
    for (size_t i = 1; i < all.size(); ++i) found.push_back(*static_cast<const void* const*>(all[i].first));
    return found;
  }

  int (*parameters_)(const char*, const size_t**);
  std::mutex mutex_;
  std::map<void*, std::vector<std::function<void()>>> captures_;  // by stream
  std::string corruption_;                                        // the first error that free() found
  int (*launch_)(const char*, const uint32_t*, const uint32_t*, uint32_t, void**, int, uint32_t);
  int (*synchronize_)();
  DeviceFacts facts_;
};

}  // namespace

std::unique_ptr<Device> open_host(const std::string& path) { return std::make_unique<HostDevice>(path); }

}  // namespace graphopt::gpu
