// Register-tiled matrix multiplications that store their sums, shared by several kernels.
#include "blocks/cpu/product.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

template <class E, class Steps>
void multiply_rows(int64_t rows, int64_t vectors, const Word* s, const Word* v, Steps at, int64_t steps,
                   float* o, const Keep& keep) {
  pick_multiply<E, Steps, Keep>(rows, vectors)(s, v, at, steps, o, keep);
}

#define GRAPHOPT_INSTANTIATE(E, Steps)                                                               \
  template void multiply_rows<E>(int64_t, int64_t, const Word*, const Word*, Steps, int64_t, float*, \
                                 const Keep&);
GRAPHOPT_INSTANTIATE(Single, Panel)
GRAPHOPT_INSTANTIATE(Single, Table)
GRAPHOPT_INSTANTIATE(Single, TableOfRows)
GRAPHOPT_INSTANTIATE(Brain, Panel)
GRAPHOPT_INSTANTIATE(Brain, Table)
GRAPHOPT_INSTANTIATE(Brain, TableOfRows)
#undef GRAPHOPT_INSTANTIATE

}  // namespace graphopt::cpu::GRAPHOPT_ISA
