// Which instruction set the CPU kernels use in this process.
//
// The cpu.cpp of a room (operators/) is compiled once for each instruction set, with GRAPHOPT_ISA set to the
// name of the namespace that it must define its functions in:
//
//   namespace graphopt::cpu::GRAPHOPT_ISA {
//   void name_kernel(const float* x, float* y, int64_t n) { ... }
//   }
//
// and its cpu_dispatch.cpp, compiled once, declares and picks:
//
//   namespace graphopt::cpu {
//   GRAPHOPT_DECLARE_ISAS(void name_kernel(const float* x, float* y, int64_t n);)
//   void name(const float* x, float* y, int64_t n) { GRAPHOPT_PICK_ISA(name_kernel)(x, y, n); }
//   }
//
// Headers with inline functions for kernel files put these into the same namespace, so that no linker ever
// hands a function compiled for AVX-512 to the baseline.
#pragma once

namespace graphopt::cpu {

// Ordered: each includes the ones before.
enum class Isa { kBaseline, kAvx2, kAvx512 };

// The best instruction set that this machine has, or the one that the environment variable GRAPHOPT_ISA
// (baseline, avx2, avx512) names if that is lower.
Isa isa();

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
  (::graphopt::cpu::isa() == ::graphopt::cpu::Isa::kAvx512 ? &isa_avx512::__VA_ARGS__ \
   : ::graphopt::cpu::isa() == ::graphopt::cpu::Isa::kAvx2 ? &isa_avx2::__VA_ARGS__   \
                                                           : &isa_baseline::__VA_ARGS__)
#else
#define GRAPHOPT_DECLARE_ISAS(...) \
  namespace isa_baseline {         \
  __VA_ARGS__                      \
  }
#define GRAPHOPT_PICK_ISA(...) (&isa_baseline::__VA_ARGS__)
#endif
