#include "cpu/vnni.h"

#include <cstdlib>

#include "cpu/isa.h"

namespace graphopt::cpu {
namespace {

bool find_vnni() {
#if GRAPHOPT_X86_ISAS
  // A selected instruction set excludes its extensions: avx512 is AVX-512 without VNNI.
  if (std::getenv("GRAPHOPT_ISA") != nullptr && isa() < Isa::kAvx512Bf16) return false;
  __builtin_cpu_init();
  if (isa() >= Isa::kAvx512) return __builtin_cpu_supports("avx512vnni");
  if (isa() == Isa::kAvx2) return __builtin_cpu_supports("avxvnni");
#endif
  return false;
}

}  // namespace

bool has_vnni() {
  static const bool found = find_vnni();
  return found;
}

}  // namespace graphopt::cpu
