// Which instruction set the CPU kernels use in this process.
//
// The cpu.cpp of an operator, each NAME_cpu.cpp and each file of cpu/microkernels is compiled once for each instruction set, with
// GRAPHOPT_ISA set to the name of the namespace that it must define its functions in:
//
//   namespace graphopt::cpu::GRAPHOPT_ISA {
//   template <class T>
//   void name(const T* x, T* y, int64_t n) { ... }
//   GRAPHOPT_INSTANTIATE(name)
//   }
//
// and op.h or cpu.h declares it, for float and half, with a choice (a macro: a namespace is no argument of a template):
//
//   namespace graphopt::cpu {
//   GRAPHOPT_CPU_KERNEL(void, name, (const T* x, T* y, int64_t n), (x, y, n))
//   }
//
// What multiplies in bfloat16 is compiled once more, for AVX-512 with BF16 (CMakeLists.txt says which files),
// and is declared and picked by GRAPHOPT_PRODUCT_KERNEL. Where the machine has AMX, too, these kernels multiply in
// its tiles (cpu/microkernels/tiles.h).
//
// Headers with inline functions for kernel files put these into the same namespace, so that no linker ever
// hands a function compiled for AVX-512 to the baseline.
#pragma once

#include <string>

namespace graphopt::cpu {

// Ordered: each includes the ones before.
enum class Isa { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// The best instruction set that this machine has, or the one that the environment variable GRAPHOPT_ISA
// (baseline, avx2, avx512, avx512bf16, amx) names if that is lower.
Isa isa();

// Its name, and why it is not one of those above it.
const std::string& isa_choice();

const char* isa_name(Isa isa);

}  // namespace graphopt::cpu

#if GRAPHOPT_X86_ISAS
#define GRAPHOPT_DECLARE_ISAS(...) \
  namespace isa_baseline {         \
  __VA_ARGS__                      \
  }                                \
  namespace isa_avx2 {             \
  __VA_ARGS__                      \
  }                                \
  namespace isa_avx512 {           \
  __VA_ARGS__                      \
  }
#define GRAPHOPT_PICK_ISA(...)                                                        \
  (::graphopt::cpu::isa() >= ::graphopt::cpu::Isa::kAvx512 ? &isa_avx512::__VA_ARGS__ \
   : ::graphopt::cpu::isa() == ::graphopt::cpu::Isa::kAvx2 ? &isa_avx2::__VA_ARGS__   \
                                                           : &isa_baseline::__VA_ARGS__)
#define GRAPHOPT_DECLARE_PRODUCT_ISAS(...) \
  GRAPHOPT_DECLARE_ISAS(__VA_ARGS__)       \
  namespace isa_avx512bf16 {               \
  __VA_ARGS__                              \
  }
#define GRAPHOPT_PICK_PRODUCT_ISA(...)                                                        \
  (::graphopt::cpu::isa() >= ::graphopt::cpu::Isa::kAvx512Bf16 ? &isa_avx512bf16::__VA_ARGS__ \
                                                               : GRAPHOPT_PICK_ISA(__VA_ARGS__))
#else
#define GRAPHOPT_DECLARE_ISAS(...) \
  namespace isa_baseline {         \
  __VA_ARGS__                      \
  }
#define GRAPHOPT_PICK_ISA(...) (&isa_baseline::__VA_ARGS__)
#define GRAPHOPT_DECLARE_PRODUCT_ISAS(...) GRAPHOPT_DECLARE_ISAS(__VA_ARGS__)
#define GRAPHOPT_PICK_PRODUCT_ISA(...) GRAPHOPT_PICK_ISA(__VA_ARGS__)
#endif

// Declares `template <class T> result name parameters` for each instruction set, and defines the function
// that calls the best with the arguments.
#define GRAPHOPT_CPU_KERNEL(result, name, parameters, arguments)    \
  GRAPHOPT_DECLARE_ISAS(template <class T> result name parameters;) \
  template <class T>                                                \
  result name parameters {                                          \
    return GRAPHOPT_PICK_ISA(name<T>) arguments;                    \
  }

// The same for a file that is compiled for AVX-512 with BF16 too.
#define GRAPHOPT_PRODUCT_KERNEL(result, name, parameters, arguments)        \
  GRAPHOPT_DECLARE_PRODUCT_ISAS(template <class T> result name parameters;) \
  template <class T>                                                        \
  result name parameters {                                                  \
    return GRAPHOPT_PICK_PRODUCT_ISA(name<T>) arguments;                    \
  }

// Behind the definition of such a function in a kernel file (a macro: it names a template for two instantiations).
#define GRAPHOPT_INSTANTIATE(name)            \
  template decltype(name<float>) name<float>; \
  template decltype(name<half>) name<half>;
