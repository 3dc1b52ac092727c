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
// op.h or cpu.h declares the function for float and half, and selects an instruction set. This needs a macro, because a
// namespace cannot be a template argument:
//
//   namespace graphopt::cpu {
//   GRAPHOPT_CPU_KERNEL(void, name, (const T* x, T* y, int64_t n), (x, y, n))
//   }
//
// Files that multiply in bfloat16 are also compiled for AVX-512 with BF16 (CMakeLists.txt lists them).
// GRAPHOPT_PRODUCT_KERNEL declares and selects their functions. If the machine also has AMX, these kernels multiply in
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

// Declares `template <class T> result name parameters` for each instruction set, and defines the function that calls
// the best one with the arguments.
#define GRAPHOPT_CPU_KERNEL(result, name, parameters, arguments)    \
  GRAPHOPT_DECLARE_ISAS(template <class T> result name parameters;) \
  template <class T>                                                \
  result name parameters {                                          \
    return GRAPHOPT_PICK_ISA(name<T>) arguments;                    \
  }

// The same for a file that is also compiled for AVX-512 with BF16.
#define GRAPHOPT_PRODUCT_KERNEL(result, name, parameters, arguments)        \
  GRAPHOPT_DECLARE_PRODUCT_ISAS(template <class T> result name parameters;) \
  template <class T>                                                        \
  result name parameters {                                                  \
    return GRAPHOPT_PICK_PRODUCT_ISA(name<T>) arguments;                    \
  }

// Instantiates a kernel's function template for float and half, after its definition in a kernel file. This needs a
// macro, because a template cannot be passed as a function argument.
#define GRAPHOPT_INSTANTIATE(name)            \
  template decltype(name<float>) name<float>; \
  template decltype(name<half>) name<half>;
