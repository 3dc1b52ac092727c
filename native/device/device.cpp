#include "device/device.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "blocks/half.h"
#include "device/allocations.h"

namespace graphopt::gpu {
namespace {

std::atomic<bool> forked{false};

}  // namespace

void refuse_fork() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forked = true; }); });
  if (forked) {
    throw std::runtime_error(
        "this process was forked after its parent had used the GPU, and no GPU can be used in it: start it "
        "with the method 'spawn' (multiprocessing.set_start_method), or fork before the first session");
  }
}

std::string architectures(const std::string& prefix) {
  std::string names;
  const char* last = "";
  for (const CodeObject& object : code_objects()) {
    const std::string arch = object.arch;
    if (arch == last || arch.rfind(prefix, 0) != 0) continue;
    names += (names.empty() ? "" : " ") + arch;
    last = object.arch;
  }
  return names;
}

namespace {

const void* address(const Buffer& b, const Memory& memory) {
  const void* base = nullptr;
  switch (b.role) {
    case Role::kNull:
      break;
    case Role::kInput:
      base = memory.inputs[b.index];
      break;
    case Role::kOutput:
      base = memory.outputs[b.index];
      break;
    case Role::kWeights:
      base = memory.weights;
      break;
    case Role::kWorkspace:
      base = memory.workspace[b.index];
      break;
  }
  return base == nullptr ? nullptr : static_cast<const char*>(base) + b.offset;
}

}  // namespace

void Device::run(const Plan& plan, const Memory& memory, void* stream) {
  refuse_fork();
  for (const Launch& launch : plan.launches) {
    // The driver copies the values during the call.
    const void* pointers[hip::kMaxSlots];
    void* args[hip::kMaxSlots + 1];
    args[0] = const_cast<unsigned char*>(launch.args);
    for (size_t i = 0; i < launch.slots; ++i) {
      pointers[i] = address(launch.slot(i), memory);
      args[i + 1] = &pointers[i];
    }
    const uint32_t grid[3] = {launch.grid.x, launch.grid.y, launch.grid.z};
    this->launch(launch.kernel, grid, launch.block, launch.lds, args, stream);
  }
}

void* constant_vector(Device& device, float value, bool half, int64_t count) {
  struct Vector {
    void* memory = nullptr;
    int64_t count = 0;
  };
  static std::mutex mutex;
  static auto& all = *new std::map<std::tuple<const Device*, float, bool>, Vector>;
  const std::lock_guard<std::mutex> lock(mutex);
  Vector& vector = all[{&device, value, half}];
  if (vector.count >= count) return vector.memory;
  // Shorter vectors are never freed, because a captured graph may read them.
  const int64_t enough = std::max<int64_t>(count, 2048);
  const size_t bytes = static_cast<size_t>(enough) * (half ? 2 : 4);
  void* memory = allocate(device, bytes, MemoryUse::kWeights);
  const auto fill = [&](auto element) {
    const std::vector<decltype(element)> values(static_cast<size_t>(enough), element);
    const WorkStream stream(device);
    device.copy(memory, values.data(), bytes, stream.get());
    stream.synchronize();
  };
  if (half) {
    fill(graphopt::half(value));
  } else {
    fill(value);
  }
  vector = {memory, enough};
  return memory;
}

}  // namespace graphopt::gpu
