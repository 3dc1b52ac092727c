// Selects the instruction set of the CPU kernels in this process.
//
// An operator's cpu.cpp, each NAME_cpu.cpp and each file in cpu/microkernels are compiled once for each instruction
// set. The build defines the macro GRAPHOPT_ISA as the namespace that must contain their functions:
//
//   namespace graphopt::cpu::GRAPHOPT_ISA {
//   template <class T>
//   void name(const T* x, T* y, int64_t n) { ... }
//   GRAPHOPT_INSTANTIATE(name)
//   }
//
// op.h or cpu.h declares the function for float and half, and selects an instruction set:
//
//   namespace graphopt::cpu {
//   GRAPHOPT_CPU_KERNEL(void, name, (const T* x, T* y, int64_t n), (x, y, n))
//   }
//
// Files that multiply in bfloat16 are also compiled for AVX-512 with BF16 (CMakeLists.txt lists them).
// GRAPHOPT_BFLOAT16_KERNEL declares and selects their functions. If the machine also has AMX, these kernels multiply in
// its tiles (cpu/microkernels/tiles.h).
//
// Headers with inline functions for kernel files put them into the same namespace. Otherwise the linker could merge a
// function compiled for AVX-512 into baseline code.
#pragma once

#include <string>

namespace graphopt::cpu {

// Each instruction set includes the previous ones.
enum class Isa { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// Returns the highest instruction set of this machine. The environment variable GRAPHOPT_ISA (baseline, avx2, avx512,
// avx512bf16, amx) can select a lower one.
Isa isa();

// Returns the name of isa() and the reason why no higher instruction set is used.
const std::string& isa_choice();

const char* isa_name(Isa isa);

}  // namespace graphopt::cpu

namespace graphopt::cpu {

// Returns the function for the instruction set of this process. All arguments are the same function, compiled for
// different instruction sets.
template <class Function>
Function pick_isa(Function baseline, Function avx2, Function avx512) {
  return isa() >= Isa::kAvx512 ? avx512 : isa() == Isa::kAvx2 ? avx2 : baseline;
}
template <class Function>
Function pick_isa(Function baseline, Function avx2, Function avx512, Function avx512bf16) {
  return isa() >= Isa::kAvx512Bf16 ? avx512bf16 : pick_isa(baseline, avx2, avx512);
}

}  // namespace graphopt::cpu

// The code below consists of macros, because neither a namespace nor the name of a function template can be a template
// argument.

// Declares `template <class T> result name parameters` for each instruction set, and defines the function that calls
// the best one with the arguments. GRAPHOPT_X86_ISAS is 0 if only the baseline is compiled.
#define GRAPHOPT_CPU_KERNEL(result, name, parameters, arguments)                                   \
  namespace isa_baseline {                                                                         \
  template <class T>                                                                               \
  result name parameters;                                                                          \
  }                                                                                                \
  namespace isa_avx2 {                                                                             \
  template <class T>                                                                               \
  result name parameters;                                                                          \
  }                                                                                                \
  namespace isa_avx512 {                                                                           \
  template <class T>                                                                               \
  result name parameters;                                                                          \
  }                                                                                                \
  template <class T>                                                                               \
  result name parameters {                                                                         \
    if constexpr (GRAPHOPT_X86_ISAS) {                                                             \
      return pick_isa(&isa_baseline::name<T>, &isa_avx2::name<T>, &isa_avx512::name<T>) arguments; \
    } else {                                                                                       \
      return isa_baseline::name<T> arguments;                                                      \
    }                                                                                              \
  }

// The same for a file that is also compiled for AVX-512 with BF16.
#define GRAPHOPT_BFLOAT16_KERNEL(result, name, parameters, arguments)                   \
  namespace isa_baseline {                                                              \
  template <class T>                                                                    \
  result name parameters;                                                               \
  }                                                                                     \
  namespace isa_avx2 {                                                                  \
  template <class T>                                                                    \
  result name parameters;                                                               \
  }                                                                                     \
  namespace isa_avx512 {                                                                \
  template <class T>                                                                    \
  result name parameters;                                                               \
  }                                                                                     \
  namespace isa_avx512bf16 {                                                            \
  template <class T>                                                                    \
  result name parameters;                                                               \
  }                                                                                     \
  template <class T>                                                                    \
  result name parameters {                                                              \
    if constexpr (GRAPHOPT_X86_ISAS) {                                                  \
      return pick_isa(&isa_baseline::name<T>, &isa_avx2::name<T>, &isa_avx512::name<T>, \
                      &isa_avx512bf16::name<T>) arguments;                              \
    } else {                                                                            \
      return isa_baseline::name<T> arguments;                                           \
    }                                                                                   \
  }

// Instantiates a kernel's function template for float and half, after its definition in a kernel file.
#define GRAPHOPT_INSTANTIATE(name)            \
  template decltype(name<float>) name<float>; \
  template decltype(name<half>) name<half>;
