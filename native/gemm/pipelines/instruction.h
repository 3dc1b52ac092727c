// The product of one wave: a 16x16x16 tile, float32 += T x T, on the matrix units where the target has them
// for T (traits.h), else through shuffles: then it is only for tests.
//
// A tile has 16 rows and 16 columns. A lane holds kRows rows of it, kSums values in all, of which kTogether are
// neighbours in a row (and begin at a multiple of as many columns), and kSlots of the 16 products' left and right
// operands. What the units call A and B is swapped where that makes the sums of a lane those of one row: the sums
// of a first product are then, rounded to T, the left operand of a second (left_of), in the same lane on CDNA,
// RDNA 4 and NVIDIA, from the lane 16 away on RDNA 3, whose operands are held twice.
#pragma once

#include "gemm/pipelines/shuffles.h"

namespace graphopt::hip {

template <class T>
struct Instruction : ShuffledInstruction<T> {};

}  // namespace graphopt::hip

#if GRAPHOPT_MFMA
#include "gemm/pipelines/mfma.h"
#elif defined(__GFX11__) || defined(__GFX12__)
#include "gemm/pipelines/wmma.h"
#elif defined(__CUDA_ARCH__)
#include "gemm/pipelines/mma_sync.h"
#endif
