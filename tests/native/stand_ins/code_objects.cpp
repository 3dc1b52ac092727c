// Device code for the stand-in drivers: the name of its architecture. Also the system folder for tests.
#include "device/amd_system.h"
#include "device/device.h"

namespace graphopt::gpu {

const std::vector<CodeObject>& code_objects() {
  static const auto& objects = *new std::vector<CodeObject>{
      {"gfx10-3-generic", "all", "gfx10-3-generic", sizeof "gfx10-3-generic"},
      {"gfx11-generic", "all", "gfx11-generic", sizeof "gfx11-generic"},
      {"gfx90a", "all", "gfx90a", sizeof "gfx90a"},
      {"gfx942", "all", "gfx942", sizeof "gfx942"},
      {"gfx1100", "all", "gfx1100", sizeof "gfx1100"},
      {"gfx1201", "all", "gfx1201", sizeof "gfx1201"},
      {"sm_90", "all", "sm_90", sizeof "sm_90"},
  };
  return objects;
}

const char* module_of(const std::string&) { return "all"; }

}  // namespace graphopt::gpu

extern "C" __attribute__((visibility("default"))) void stand_in_system_root(const char* folder) {
  graphopt::gpu::system_root() = folder;
}
