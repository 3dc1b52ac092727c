#include "blocks/half.h"
#include "device/cpu/isa.h"
#include "operators/row_norm/cpu.h"

namespace graphopt::cpu {

GRAPHOPT_DECLARE_ISAS(template <class T> void row_norm(const RowNormProblem& p, const T* x, const T* residual,
                                                       const T* gamma, const T* beta, T* y, T* sum,
                                                       Parallel& parallel, Workspace& workspace);)

template <class T>
void row_norm(const RowNormProblem& p, const T* x, const T* residual, const T* gamma, const T* beta, T* y,
              T* sum, Parallel& parallel, Workspace& workspace) {
  GRAPHOPT_PICK_ISA(row_norm<T>)(p, x, residual, gamma, beta, y, sum, parallel, workspace);
}

template void row_norm(const RowNormProblem&, const float*, const float*, const float*, const float*, float*,
                       float*, Parallel&, Workspace&);
template void row_norm(const RowNormProblem&, const half*, const half*, const half*, const half*, half*,
                       half*, Parallel&, Workspace&);

}  // namespace graphopt::cpu
