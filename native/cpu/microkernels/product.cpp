// Register-tiled GEMM kernels that store their sums, shared by several operators.
#include "cpu/microkernels/product.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

template <class E, class Steps>
void multiply_rows(int64_t rows, int64_t vectors, const Word* s, const Word* v, Steps at, int64_t steps,
                   float* o, const Keep& keep) {
  pick_multiply<E, Steps, Keep>(rows, vectors)(s, v, at, steps, o, keep);
}

template decltype(multiply_rows<Single, Panel>) multiply_rows<Single, Panel>;
template decltype(multiply_rows<Single, Table>) multiply_rows<Single, Table>;
template decltype(multiply_rows<Single, TableOfRows>) multiply_rows<Single, TableOfRows>;
template decltype(multiply_rows<Brain, Panel>) multiply_rows<Brain, Panel>;
template decltype(multiply_rows<Brain, Table>) multiply_rows<Brain, Table>;
template decltype(multiply_rows<Brain, TableOfRows>) multiply_rows<Brain, TableOfRows>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
