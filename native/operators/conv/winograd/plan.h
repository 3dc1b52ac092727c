// Launch plans of WinogradConv[Add][act] for the GPU kernels in kernel.hip and matrix.hip.
#pragma once

#include "device/launch.h"
#include "gemm/planner.h"
#include "operators/conv/winograd/op.h"

namespace graphopt::gpu {

// kWinograd4 and kWinograd2: F(4x4, 3x3) and F(2x2, 3x3). kImplicit: implicit GEMM in float32 arithmetic. kMatrix:
// implicit GEMM in float16 on the matrix units.
enum class ConvAlgorithm : int32_t { kWinograd4, kWinograd2, kImplicit, kMatrix };
struct ConvChoice {
  ConvAlgorithm algorithm = ConvAlgorithm::kWinograd4;
  GemmTile tile = GemmTile::k64x128_f16;  // of hip::kStridedTiles for kMatrix, otherwise of hip::kVectorTiles
  int64_t chunk = 0;   // Winograd: tiles in a chunk, a multiple of 4 unless there is one chunk
  double seconds = 0;  // estimate
};

// Returns the choice with the lowest estimated time. The estimate adds the GEMMs (by the device's arithmetic rate), the
// transforms (by the bytes moved) and a constant for each launch. Throws std::invalid_argument if a tensor is too
// large.
ConvChoice choose_conv(const ConvolutionProblem& p, bool half, const DeviceFacts& device);

// Whether the device supports kMatrix.
bool has_matrix_conv(bool half, const DeviceFacts& device);

// Returns the best tile and chunk for one algorithm. `seconds` is infinite if kMatrix would need too large a workspace.
ConvChoice choose_conv(const ConvolutionProblem& p, bool half, const DeviceFacts& device,
                       ConvAlgorithm algorithm);

// Transforms input 1 (W) into the weights buffer; Plan::weights is its size in bytes. The plan depends on C, M, the
// type and the algorithm only.
Plan winograd_conv_prepare_plan(const ConvolutionProblem& p, bool half, ConvAlgorithm algorithm);

// Inputs X, W, B and optional R; output Y; reads the prepared weights. `aligned`: all pointers are multiples of 16
// bytes.
Plan winograd_conv_plan(const ConvolutionProblem& p, bool half, bool aligned, const ConvChoice& choice,
                        const DeviceFacts& device);

}  // namespace graphopt::gpu
