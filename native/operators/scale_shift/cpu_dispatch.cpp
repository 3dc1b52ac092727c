#include "blocks/half.h"
#include "device/cpu/isa.h"
#include "operators/scale_shift/cpu.h"

namespace graphopt::cpu {

GRAPHOPT_DECLARE_ISAS(template <class T> void scale_shift(const ScaleShiftProblem& p, const T* x,
                                                          const T* scale, const T* shift, const T* residual,
                                                          T* y, Parallel& parallel, Workspace& workspace);)

template <class T>
void scale_shift(const ScaleShiftProblem& p, const T* x, const T* scale, const T* shift, const T* residual,
                 T* y, Parallel& parallel, Workspace& workspace) {
  GRAPHOPT_PICK_ISA(scale_shift<T>)(p, x, scale, shift, residual, y, parallel, workspace);
}

template void scale_shift(const ScaleShiftProblem&, const float*, const float*, const float*, const float*,
                          float*, Parallel&, Workspace&);
template void scale_shift(const ScaleShiftProblem&, const half*, const half*, const half*, const half*, half*,
                          Parallel&, Workspace&);

}  // namespace graphopt::cpu
