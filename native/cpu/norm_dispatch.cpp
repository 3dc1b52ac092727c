#include "cpu/isa.h"
#include "cpu/norm.h"
#include "ops/half.h"

namespace graphopt::cpu {

GRAPHOPT_DECLARE_ISAS(template <class T>
                      void group_norm(const GroupNormProblem& p, const T* x, const T* gamma, const T* beta,
                                      T* y, Parallel& parallel, Workspace& workspace);
                      template <class T>
                      void row_norm(const RowNormProblem& p, const T* x, const T* residual, const T* gamma,
                                    const T* beta, T* y, T* sum, Parallel& parallel, Workspace& workspace);)

template <class T>
void group_norm(const GroupNormProblem& p, const T* x, const T* gamma, const T* beta, T* y,
                Parallel& parallel, Workspace& workspace) {
  GRAPHOPT_PICK_ISA(group_norm<T>)(p, x, gamma, beta, y, parallel, workspace);
}

template <class T>
void row_norm(const RowNormProblem& p, const T* x, const T* residual, const T* gamma, const T* beta, T* y,
              T* sum, Parallel& parallel, Workspace& workspace) {
  GRAPHOPT_PICK_ISA(row_norm<T>)(p, x, residual, gamma, beta, y, sum, parallel, workspace);
}

template void group_norm(const GroupNormProblem&, const float*, const float*, const float*, float*, Parallel&,
                         Workspace&);
template void group_norm(const GroupNormProblem&, const half*, const half*, const half*, half*, Parallel&,
                         Workspace&);
template void row_norm(const RowNormProblem&, const float*, const float*, const float*, const float*, float*,
                       float*, Parallel&, Workspace&);
template void row_norm(const RowNormProblem&, const half*, const half*, const half*, const half*, half*,
                       half*, Parallel&, Workspace&);

}  // namespace graphopt::cpu
