// X W in bfloat16 with AMX tiles (tiles_cpu.cpp). For kernel files only (see cpu/isa.h).
#pragma once

#include <cstddef>

#include "cpu/microkernels/gemm.h"
#include "cpu/parallel.h"
#include "operators/matmul/linear/problem.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

size_t linear_tiles_workspace(const LinearProblem& p);

// w: panels (cpu/microkernels/gemm.h) with steps of zeros at their ends, so that the number of steps is a multiple of
// kTileSide.
template <class T>
void linear_in_tiles(const LinearProblem& p, const T* x, const Word* w, const T* b, const T* r, T* y,
                     Parallel& parallel, void* memory);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
