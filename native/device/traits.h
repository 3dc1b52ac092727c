// Properties of the target architecture that kernels depend on; the properties that launch plans depend on
// are in device/architectures.h. Sources: the CDNA 1-3 and RDNA 2-4 ISA guides, the CUDA programming guide
// (compute capability 9.0).
#pragma once

// CDNA has matrix units for fp16 and fp32, RDNA 3 and 4 for fp16. The compiler knows the instructions of its target.
// GRAPHOPT_MFMA and GRAPHOPT_MATRIX_F16 are macros because kernels that a target lacks are left out with #if.
#define GRAPHOPT_MFMA __has_builtin(__builtin_amdgcn_mfma_f32_16x16x16f16)

namespace graphopt::hip {

// Work-items of a wave. On AMD it depends on the target: 64 on CDNA and GCN, 32 for our kernels on RDNA.
#if defined(__GFX9__)
constexpr int kWave = 64;
#elif defined(GRAPHOPT_WAVE)  // on the CPU
constexpr int kWave = GRAPHOPT_WAVE;
#else
constexpr int kWave = 32;
#endif

// On the CPU, gemm/pipelines/instruction.h emulates the matrix units: for fp16 with both wave sizes, for fp32
// with waves of 64. The code for RDNA and for CDNA can therefore be tested on the CPU.
enum class Matrix { kNone, kMfma, kWmma, kMma, kEmulated };

// The matrix units of this target; device/architectures.h has the same information for the host.
// GRAPHOPT_MATRIX_F16 is set for targets with fp16 matrix units, and on the CPU, which emulates them.
#if GRAPHOPT_MFMA || defined(GRAPHOPT_WAVE) || defined(__CUDA_ARCH__) || \
    __has_builtin(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32) ||         \
    __has_builtin(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)
#define GRAPHOPT_MATRIX_F16 1
#endif
#if GRAPHOPT_MATRIX_F16
constexpr bool kMatrixF16 = true;
#else
constexpr bool kMatrixF16 = false;
#endif
#if GRAPHOPT_MFMA || GRAPHOPT_WAVE == 64
constexpr bool kMatrixF32 = true;
#else
constexpr bool kMatrixF32 = false;
#endif
// Whether the target is GCN 5 (gfx9-generic). It has waves of 64 like CDNA, but at most 256 registers for a work-item
// instead of 512.
#if defined(__GFX9__) && !GRAPHOPT_MFMA
constexpr bool kGcn = true;
#else
constexpr bool kGcn = false;
#endif
// Whether the matrix units use the same registers as the vector unit. On gfx908, half of the registers belong to the
// matrix units.
#if defined(__gfx908__)
constexpr bool kSharesRegisters = false;
#else
constexpr bool kSharesRegisters = true;
#endif
// Whether 16 bytes of a work-item can be copied from memory to LDS without registers (copy_to_lds in
// platform.h).
#if defined(__CUDA_ARCH__)
constexpr bool kCopiesToLds = true;
#else
constexpr bool kCopiesToLds = false;
#endif
#if defined(GRAPHOPT_WAVE)
constexpr bool kOnCpu = true;
#else
constexpr bool kOnCpu = false;
#endif
// The LDS of a work-group that kernels assume. gfx950 has more, but runs the tile shapes of gfx942.
constexpr int kAmdLdsBytes = 65536, kNvidiaLdsBytes = 232448;
#if defined(__CUDA_ARCH__)
constexpr int kLdsBytes = kNvidiaLdsBytes;
#else
constexpr int kLdsBytes = kAmdLdsBytes;
#endif

}  // namespace graphopt::hip
