// Matrix multiplication of one wave: a 16x16x16 tile, float32 += T x T. It runs on the matrix units if the
// target has them for T (traits.h). Otherwise it runs through shuffles, for tests only.
//
// A tile has 16 rows and 16 columns. Each work-item has kRows rows of it, kSums values in total. Groups of
// kContiguous values are consecutive in a row and begin at a multiple of kContiguous columns. A work-item has
// kSlots of the 16 k of the left and right operands. The operands A and B of the units are swapped if each
// work-item then accumulates one row. The sums, rounded to T, can therefore be the left operand of a second
// multiplication (to_left). On CDNA, RDNA 4 and NVIDIA they are already in the right work-item. On RDNA 3,
// whose operands are duplicated, they come from the work-item 16 away.
#pragma once

#include "gemm/pipelines/shuffles.h"

namespace graphopt::hip {

template <class T>
struct Instruction : ShuffledInstruction<T> {};

}  // namespace graphopt::hip

#if GRAPHOPT_MFMA
#include "gemm/pipelines/mfma.h"
#elif GRAPHOPT_WMMA
#include "gemm/pipelines/wmma.h"
#elif defined(__CUDA_ARCH__)
#include "gemm/pipelines/mma_sync.h"
#endif
