#include "cpu/isa.h"
#include "cpu/winograd_conv.h"
#include "ops/half.h"

namespace graphopt::cpu {

GRAPHOPT_DECLARE_ISAS(template <class T> std::shared_ptr<const WinogradWeights> winograd_prepare_kernel(
                          const ConvProblem& p, const T* w, ConvAlgorithm algorithm);
                      template <class T>
                      void winograd_conv_kernel(const ConvProblem& p, const T* x, const WinogradWeights& w,
                                                const T* bias, const T* residual, T* y, Parallel& parallel,
                                                Workspace& workspace);)

ConvAlgorithm winograd_choose(const ConvProblem& p, size_t element_size) {
  if (p.C < 8) return ConvAlgorithm::kDirect;
  if (element_size < 4) return ConvAlgorithm::kF2x2;
  return ConvAlgorithm::kF4x4;
}

template <class T>
std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem& p, const T* w,
                                                        ConvAlgorithm algorithm) {
  return GRAPHOPT_PICK_ISA(winograd_prepare_kernel<T>)(p, w, algorithm);
}

template <class T>
std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem& p, const T* w) {
  return winograd_prepare(p, w, winograd_choose(p, sizeof(T)));
}

template <class T>
void winograd_conv(const ConvProblem& p, const T* x, const WinogradWeights& w, const T* bias,
                   const T* residual, T* y, Parallel& parallel, Workspace& workspace) {
  GRAPHOPT_PICK_ISA(winograd_conv_kernel<T>)(p, x, w, bias, residual, y, parallel, workspace);
}

template std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem&, const float*,
                                                                 ConvAlgorithm);
template std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem&, const half*,
                                                                 ConvAlgorithm);
template std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem&, const float*);
template std::shared_ptr<const WinogradWeights> winograd_prepare(const ConvProblem&, const half*);
template void winograd_conv(const ConvProblem&, const float*, const WinogradWeights&, const float*,
                            const float*, float*, Parallel&, Workspace&);
template void winograd_conv(const ConvProblem&, const half*, const WinogradWeights&, const half*, const half*,
                            half*, Parallel&, Workspace&);

}  // namespace graphopt::cpu
