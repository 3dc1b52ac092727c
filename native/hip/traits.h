// What the kernels and their launch plans must know of an architecture. Sources: the CDNA 1-3 and RDNA 2-4
// ISA guides, the CUDA programming guide (compute capability 9.0).
#pragma once

// Matrix instructions, in device code:
//   GRAPHOPT_MFMA           CDNA: 64 lanes, fp32 += fp16 x fp16 (16x16x16) and fp32 += fp32 x fp32 (16x16x4)
//   GRAPHOPT_WMMA_GFX11     RDNA3: 32 lanes, fp32 += fp16 x fp16 (16x16x16), operands duplicated across
//   half-waves GRAPHOPT_WMMA_GFX12     RDNA4: the same product, operands not duplicated GRAPHOPT_MMA_SM80
//   NVIDIA: warp-level mma.sync, fp32 += fp16 x fp16 (16x8x16)
// None of them: products run on the vector unit.
#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define GRAPHOPT_MFMA 1
#elif defined(__GFX11__)
#define GRAPHOPT_WMMA_GFX11 1
#elif defined(__GFX12__)
#define GRAPHOPT_WMMA_GFX12 1
#elif defined(__CUDA_ARCH__)
#define GRAPHOPT_MMA_SM80 1
#endif

namespace graphopt::hip {

// Lanes of a wave. On AMD a property of the target: CDNA and GCN have 64, RDNA runs our kernels with 32.
#if defined(__GFX9__)
constexpr int kWave = 64;
#elif defined(GRAPHOPT_WAVE)  // on the CPU
constexpr int kWave = GRAPHOPT_WAVE;
#else
constexpr int kWave = 32;
#endif

// On the CPU, tile.h emulates the matrix units: for fp16 with both wave sizes, for fp32 with waves of 64, so
// that the paths of RDNA and of CDNA both run there.
enum class Matrix { kNone, kMfma, kWmma, kMma, kEmulated };

// What the target of this compilation has; kArchitectures says the same to the host.
#if GRAPHOPT_MFMA || GRAPHOPT_WAVE == 64
#define GRAPHOPT_MATRIX_F32 1
#endif
#if GRAPHOPT_MATRIX_F32 || GRAPHOPT_WAVE == 32 || GRAPHOPT_WMMA_GFX11 || GRAPHOPT_WMMA_GFX12 || \
    GRAPHOPT_MMA_SM80
#define GRAPHOPT_MATRIX_F16 1
#endif
#if GRAPHOPT_MATRIX_F16
constexpr bool kMatrixF16 = true;
#else
constexpr bool kMatrixF16 = false;
#endif
#if GRAPHOPT_MATRIX_F32
constexpr bool kMatrixF32 = true;
#else
constexpr bool kMatrixF32 = false;
#endif
// Whether memory reaches LDS without passing through registers, 16 bytes a lane (copy_to_lds in platform.h).
#if defined(__CUDA_ARCH__)
constexpr bool kCopiesToLds = true;
#else
constexpr bool kCopiesToLds = false;
#endif
#if defined(__CUDA_ARCH__)
constexpr int kLdsBytes = 232448;
#else
constexpr int kLdsBytes = 65536;  // gfx950 has more; its kernels are those of gfx942
#endif

// For the host: launch plans.
struct Architecture {
  const char* name;    // as the runtime reports it, without features such as :sramecc+
  int wave;            // lanes of a wave
  int lds_bytes;       // LDS of one work-group
  int registers;       // 32-bit registers a lane, AGPRs included, when one wave runs on a SIMD
  int waves_per_simd;  // most waves that a SIMD holds
  Matrix matrix;       // fp16 products
  bool matrix_f32;     // fp32 products on matrix units
  int matrix_flops;    // fp16 on the matrix units, of one compute unit in a clock
  int xcds;            // dies that take work-groups in turn, each with its own L2
};

constexpr Architecture kArchitectures[] = {
    {"gfx906", 64, 65536, 256, 10, Matrix::kNone, false, 0, 1},
    {"gfx908", 64, 65536, 512, 10, Matrix::kMfma, true, 1024, 1},
    {"gfx90a", 64, 65536, 512, 8, Matrix::kMfma, true, 1024, 1},
    {"gfx942", 64, 65536, 512, 8, Matrix::kMfma, true, 2048, 8},
    {"gfx950", 64, 65536, 512, 8, Matrix::kMfma, true, 4096, 8},
    {"gfx1030", 32, 65536, 256, 16, Matrix::kNone, false, 0, 1},
    {"gfx1100", 32, 65536, 256, 16, Matrix::kWmma, false, 512, 1},
    {"gfx1101", 32, 65536, 256, 16, Matrix::kWmma, false, 512, 1},
    {"gfx1102", 32, 65536, 256, 16, Matrix::kWmma, false, 512, 1},
    {"gfx1150", 32, 65536, 256, 16, Matrix::kWmma, false, 512, 1},
    {"gfx1151", 32, 65536, 256, 16, Matrix::kWmma, false, 512, 1},
    {"gfx1200", 32, 65536, 256, 16, Matrix::kWmma, false, 1024, 1},
    {"gfx1201", 32, 65536, 256, 16, Matrix::kWmma, false, 1024, 1},
    // Families, for members without a code object of their own.
    {"gfx10-3-generic", 32, 65536, 256, 16, Matrix::kNone, false, 0, 1},
    {"gfx11-generic", 32, 65536, 256, 16, Matrix::kWmma, false, 512, 1},
    {"sm_90", 32, 232448, 255, 16, Matrix::kMma, false, 4096, 1},
    {"cpu32", 32, 65536, 256, 16, Matrix::kEmulated, false, 512, 1},
    {"cpu64", 64, 65536, 512, 8, Matrix::kEmulated, true, 1024, 1},
};

}  // namespace graphopt::hip
