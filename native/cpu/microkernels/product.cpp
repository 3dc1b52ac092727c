// Register-tiled matrix multiplications that store their sums, shared by several kernels.
#include "cpu/microkernels/product.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

template <class E, class Steps>
void multiply_rows(int64_t rows, int64_t vectors, const Word* s, const Word* v, Steps at, int64_t steps,
                   float* o, const Keep& keep) {
  pick_multiply<E, Steps, Keep>(rows, vectors)(s, v, at, steps, o, keep);
}

template void multiply_rows<Single>(int64_t, int64_t, const Word*, const Word*, Panel, int64_t, float*,
                                    const Keep&);
template void multiply_rows<Single>(int64_t, int64_t, const Word*, const Word*, Table, int64_t, float*,
                                    const Keep&);
template void multiply_rows<Single>(int64_t, int64_t, const Word*, const Word*, TableOfRows, int64_t, float*,
                                    const Keep&);
template void multiply_rows<Brain>(int64_t, int64_t, const Word*, const Word*, Panel, int64_t, float*,
                                   const Keep&);
template void multiply_rows<Brain>(int64_t, int64_t, const Word*, const Word*, Table, int64_t, float*,
                                   const Keep&);
template void multiply_rows<Brain>(int64_t, int64_t, const Word*, const Word*, TableOfRows, int64_t, float*,
                                   const Keep&);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
