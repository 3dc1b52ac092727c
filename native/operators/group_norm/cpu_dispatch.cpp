#include "blocks/half.h"
#include "device/cpu/isa.h"
#include "operators/group_norm/cpu.h"

namespace graphopt::cpu {

GRAPHOPT_DECLARE_ISAS(template <class T> void group_norm(const GroupNormProblem& p, const T* x,
                                                         const T* gamma, const T* beta, T* y,
                                                         Parallel& parallel, Workspace& workspace);)

template <class T>
void group_norm(const GroupNormProblem& p, const T* x, const T* gamma, const T* beta, T* y,
                Parallel& parallel, Workspace& workspace) {
  GRAPHOPT_PICK_ISA(group_norm<T>)(p, x, gamma, beta, y, parallel, workspace);
}

template void group_norm(const GroupNormProblem&, const float*, const float*, const float*, float*, Parallel&,
                         Workspace&);
template void group_norm(const GroupNormProblem&, const half*, const half*, const half*, half*, Parallel&,
                         Workspace&);

}  // namespace graphopt::cpu
