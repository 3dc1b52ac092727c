// What an operator's cpu.h declares of an operator with weights (operator.h) that the CPU kernel wants in a layout of
// its own, and its cpu.cpp defines. PackedCpuKernel (kernel_bases.h) calls it: weights that never change are packed once, for
// all sessions and, where they share a folder, for all processes.
//
//   NAME_weights    bytes of the packed weights, which hang on the way and the weights' part of the problem alone
//   NAME_prepare    writes them, at a cache line, from w
//   NAME_workspace  bytes that a run on so many lanes wants
//   NAME            y from x, the packed weights, b, r, null unless p.has_residual, and slopes, one for each channel of y,
//                   for what is below zero, or null. The result does not depend on the number of lanes.
//
// A way is one of several to compute it; OnlyWay where there are no others.
#pragma once

#include <cstddef>

#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace graphopt::cpu {

struct OnlyWay {};

template <class P, class W, class T>
struct PackedKernels {
  using Problem = P;
  using Way = W;
  using Type = T;
  size_t (*weights)(const P&, W);
  void (*prepare)(const P&, W, const T* w, void* weights);
  size_t (*workspace)(const P&, W, size_t lanes);
  void (*run)(const P&, W, const T* x, const void* weights, const T* b, const T* r, const T* slopes, T* y,
              Parallel&, void* workspace);
};

}  // namespace graphopt::cpu

// KERNEL: GRAPHOPT_CPU_KERNEL or GRAPHOPT_PRODUCT_KERNEL (cpu/isa.h). NAME_kernels<T> is all of them.
#define GRAPHOPT_PACKED_KERNELS(KERNEL, name, Problem, Way)                                                  \
  KERNEL(size_t, name##_weights, (const Problem& p, Way way), (p, way))                                      \
  KERNEL(void, name##_prepare, (const Problem& p, Way way, const T* w, void* weights), (p, way, w, weights)) \
  KERNEL(size_t, name##_workspace, (const Problem& p, Way way, size_t lanes), (p, way, lanes))               \
  KERNEL(void, name,                                                                                         \
         (const Problem& p, Way way, const T* x, const void* weights, const T* b, const T* r,                \
          const T* slopes, T* y, Parallel& parallel, void* workspace),                                       \
         (p, way, x, weights, b, r, slopes, y, parallel, workspace))                                         \
  template <class T>                                                                                         \
  inline constexpr PackedKernels<Problem, Way, T> name##_kernels = {name##_weights<T>, name##_prepare<T>,    \
                                                                    name##_workspace<T>, name<T>};

// In cpu.cpp, behind their definitions.
#define GRAPHOPT_INSTANTIATE_PACKED(name) \
  GRAPHOPT_INSTANTIATE(name##_weights)    \
  GRAPHOPT_INSTANTIATE(name##_prepare)    \
  GRAPHOPT_INSTANTIATE(name##_workspace)  \
  GRAPHOPT_INSTANTIATE(name)
