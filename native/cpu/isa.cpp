#include "cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cpu/amx.h"

namespace graphopt::cpu {
namespace {

// __builtin_cpu_supports also checks that the operating system saves the wide registers.
#if GRAPHOPT_X86_ISAS
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512bf16() { return false; }
#endif

// In order of preference; the last one runs on every machine.
struct Level {
  Isa isa;
  const char* name;
  bool (*supported)();
};
constexpr Level kLevels[] = {
    {Isa::kAmx, "amx", [] { return has_avx512bf16() && may_use_amx(); }},
    {Isa::kAvx512Bf16, "avx512bf16", has_avx512bf16},
    {Isa::kAvx512, "avx512", has_avx512},
    {Isa::kAvx2, "avx2", has_avx2},
    {Isa::kBaseline, "baseline", [] { return true; }},
};

struct Chosen {
  Isa isa = Isa::kBaseline;
  std::string why;
};

Chosen choose() {
#if GRAPHOPT_X86_ISAS
  __builtin_cpu_init();
#endif
  const char* given = std::getenv("GRAPHOPT_ISA");
  const auto is_given = [&](const Level& level) {
    return given == nullptr || std::strcmp(given, level.name) == 0;
  };
  const Level* selected = std::find_if(std::begin(kLevels), std::end(kLevels), is_given);
  Chosen chosen;
  if (selected == std::end(kLevels)) {
    chosen.why = std::string("; GRAPHOPT_ISA is ignored: '") + given + "' is not a name";
    selected = kLevels;
  }
  for (const Level& level : kLevels) {
    const char* why = &level < selected    ? "GRAPHOPT_ISA selects a lower one"
                      : !level.supported() ? "this machine or its system lacks it"
                                           : nullptr;
    if (why == nullptr) {
      chosen.isa = level.isa;
      chosen.why = level.name + chosen.why;
      break;
    }
    chosen.why += std::string("; not ") + level.name + ": " + why;
  }
  return chosen;
}

const Chosen& chosen() {
  static const Chosen result = choose();
  return result;
}

}  // namespace

Isa isa() { return chosen().isa; }

const std::string& isa_choice() { return chosen().why; }

const char* isa_name(Isa isa) {
  for (const Level& level : kLevels) {
    if (level.isa == isa) return level.name;
  }
  return "";
}

}  // namespace graphopt::cpu
