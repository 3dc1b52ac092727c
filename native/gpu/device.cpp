#include "gpu/device.h"

#include <stdexcept>

namespace graphopt::gpu {

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

void Device::run(const Plan& plan, const Memory& memory, void* stream) {
  for (const Launch& launch : plan.launches) {
    // Pointers are resolved here; the driver copies the values during the call.
    constexpr size_t kMaxArgs = 32;
    const void* pointers[kMaxArgs];
    void* args[kMaxArgs];
    if (launch.args.size() > kMaxArgs) throw std::runtime_error("a kernel with too many parameters");
    for (size_t i = 0; i < launch.args.size(); ++i) {
      const Argument& a = launch.args[i];
      if (a.kind != Argument::Kind::kPointer) {
        args[i] = const_cast<unsigned char*>(a.bytes);
        continue;
      }
      const void* base = nullptr;
      switch (a.role) {
        case Role::kNull:
          break;
        case Role::kInput:
          base = memory.inputs[a.index];
          break;
        case Role::kOutput:
          base = memory.outputs[a.index];
          break;
        case Role::kWeights:
          base = memory.weights;
          break;
        case Role::kWorkspace:
          base = memory.workspace[a.index];
          break;
      }
      pointers[i] = base == nullptr ? nullptr : static_cast<const char*>(base) + a.offset;
      args[i] = &pointers[i];
    }
    this->launch(launch.kernel, launch.grid, launch.block, launch.lds, args, stream);
  }
}

}  // namespace graphopt::gpu
