// Register-tiled GEMM kernels that store their sums, shared by several operators.
#include "cpu/microkernels/gemm.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

template <class E, class Steps>
void multiply_rows(int64_t rows, int64_t vectors, const Word* s, const Word* v, Steps at, int64_t steps,
                   float* o, const StoreSums& each) {
  pick_multiply<E, Steps, StoreSums>(rows, vectors)(s, v, at, steps, o, each);
}

template decltype(multiply_rows<Float32, Panel>) multiply_rows<Float32, Panel>;
template decltype(multiply_rows<Float32, Table>) multiply_rows<Float32, Table>;
template decltype(multiply_rows<Float32, TableOfRows>) multiply_rows<Float32, TableOfRows>;
template decltype(multiply_rows<Bfloat16Pairs, Panel>) multiply_rows<Bfloat16Pairs, Panel>;
template decltype(multiply_rows<Bfloat16Pairs, Table>) multiply_rows<Bfloat16Pairs, Table>;
template decltype(multiply_rows<Bfloat16Pairs, TableOfRows>) multiply_rows<Bfloat16Pairs, TableOfRows>;
template decltype(multiply_rows<ShortPairs, Panel>) multiply_rows<ShortPairs, Panel>;
template decltype(multiply_rows<ShortPairs, Table>) multiply_rows<ShortPairs, Table>;
template decltype(multiply_rows<ShortPairs, TableOfRows>) multiply_rows<ShortPairs, TableOfRows>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
