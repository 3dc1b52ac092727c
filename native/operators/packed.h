// CPU kernels that need packed weights. For an operator with weights (operator.h) cpu.h or op.h declares the four
// functions below, and cpu.cpp defines them. PackedCpuKernel (kernel_bases.h) calls them. Constant weights are packed
// once for all sessions and, with a shared folder, for all processes.
//
//   NAME_weights    bytes of the packed weights; depends only on the algorithm and the weights' part of the problem
//   NAME_prepare    packs w; the result starts at a cache line
//   NAME_workspace  bytes that a run with this number of workers needs
//   NAME            computes y from x, the packed weights, b, r (null unless p.has_residual) and slopes (factors of
//                   negative values, one for each channel of y, or null). The result does not depend on the number
//                   of workers.
//
// Algorithm selects one of several algorithms. It is OnlyAlgorithm if there is only one.
#pragma once

#include <cstddef>

#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace graphopt::cpu {

struct OnlyAlgorithm {};

template <class P, class W, class T>
struct PackedKernels {
  using Problem = P;
  using Algorithm = W;
  using Type = T;
  size_t (*weights)(const P&, W);
  void (*prepare)(const P&, W, const T* w, void* weights);
  size_t (*workspace)(const P&, W, size_t workers);
  void (*run)(const P&, W, const T* x, const void* weights, const T* b, const T* r, const T* slopes, T* y,
              Parallel&, void* workspace);
};

}  // namespace graphopt::cpu

// Declares the four functions with KERNEL, which is GRAPHOPT_CPU_KERNEL or GRAPHOPT_BFLOAT16_KERNEL (cpu/isa.h).
// NAME_kernels<T> holds them. This is a macro because their names derive from NAME.
#define GRAPHOPT_PACKED_KERNELS(KERNEL, name, Problem, Algorithm)                                         \
  KERNEL(size_t, name##_weights, (const Problem& p, Algorithm algorithm), (p, algorithm))                 \
  KERNEL(void, name##_prepare, (const Problem& p, Algorithm algorithm, const T* w, void* weights),        \
         (p, algorithm, w, weights))                                                                      \
  KERNEL(size_t, name##_workspace, (const Problem& p, Algorithm algorithm, size_t workers),               \
         (p, algorithm, workers))                                                                         \
  KERNEL(void, name,                                                                                      \
         (const Problem& p, Algorithm algorithm, const T* x, const void* weights, const T* b, const T* r, \
          const T* slopes, T* y, Parallel& parallel, void* workspace),                                    \
         (p, algorithm, x, weights, b, r, slopes, y, parallel, workspace))                                \
  template <class T>                                                                                      \
  inline constexpr PackedKernels<Problem, Algorithm, T> name##_kernels = {                                \
      name##_weights<T>, name##_prepare<T>, name##_workspace<T>, name<T>};
