#include "blocks/half.h"
#include "device/cpu/isa.h"
#include "operators/attention/cpu.h"

namespace graphopt::cpu {

GRAPHOPT_DECLARE_ISAS(template <class T> void fused_attention(const AttentionProblem& p, const T* q,
                                                              const T* k, const T* v, const T* bias,
                                                              const bool* mask, T* o, Parallel& parallel,
                                                              Workspace& workspace);)

template <class T>
void fused_attention(const AttentionProblem& p, const T* q, const T* k, const T* v, const T* bias,
                     const bool* mask, T* o, Parallel& parallel, Workspace& workspace) {
  GRAPHOPT_PICK_ISA(fused_attention<T>)(p, q, k, v, bias, mask, o, parallel, workspace);
}

template void fused_attention(const AttentionProblem&, const float*, const float*, const float*, const float*,
                              const bool*, float*, Parallel&, Workspace&);
template void fused_attention(const AttentionProblem&, const half*, const half*, const half*, const half*,
                              const bool*, half*, Parallel&, Workspace&);

}  // namespace graphopt::cpu
