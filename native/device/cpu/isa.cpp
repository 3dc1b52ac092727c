#include "device/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace graphopt::cpu {
namespace {

Isa detect() {
  Isa best = Isa::kBaseline;
#if GRAPHOPT_X86_ISAS
  __builtin_cpu_init();
  // __builtin_cpu_supports also asks the operating system whether it saves the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    best = Isa::kAvx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      best = __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
    }
  }
#endif
  const char* wanted = std::getenv("GRAPHOPT_ISA");
  for (Isa lower : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (wanted != nullptr && std::strcmp(wanted, isa_name(lower)) == 0) best = std::min(best, lower);
  }
  return best;
}

}  // namespace

Isa isa() {
  static const Isa chosen = detect();
  return chosen;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kBaseline:
      break;
  }
  return "baseline";
}

}  // namespace graphopt::cpu
