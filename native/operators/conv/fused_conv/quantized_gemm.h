// The implicit GEMM of FusedConv with integer sums, for DynamicQuantizedConv. X is quantized while it is packed. Words
// have two 16-bit integers, whose products are exact for every zero point of the 8-bit weights. For kernel files only
// (see cpu/isa.h).
#pragma once

#include "cpu/microkernels/quantization.h"
#include "operators/conv/fused_conv/gemm_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// Makes words of quantized elements of X minus their zero point. Padding is therefore zero.
struct QuantizedPairs : ShortPairs {
  Quantization quantization;

  explicit QuantizedPairs(const Quantization& of_x) : quantization(of_x) {}
  Words make_words(Vec low, Vec high) const {
    return ShortPairs::make_words(quantization.centred(low), quantization.centred(high));
  }
};

// The functions of gemm_cpu.h that depend only on sizes are shared; p.quantized is true. `weights` must be
// zero-initialized.
void quantized_gemm_prepare(const ConvolutionProblem& p, FusedConvVectors vectors, const uint8_t* w,
                            uint8_t zero, void* weights);

// Computes act(sums factors + b), with a factor for each channel of y. The schedule may be null.
void quantized_gemm(const ConvolutionProblem& p, FusedConvVectors vectors, ConvSchedule* schedule,
                    const Quantization& quantization, const float* x, const void* weights,
                    const float* factors, const float* b, float* y, Parallel& parallel, void* workspace);

}  // namespace graphopt::cpu::GRAPHOPT_ISA
