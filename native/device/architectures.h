// The table of GPU architectures, with all properties that launch plans, drivers, the build and scripts need.
// To add an architecture, add a row here and its name in docs/gpu.md. CMake compiles for the rows that begin
// with `{"gfx...", Code::kOwn`; tests/hip/architectures.py reads all rows for scripts and tests.
//
// docs/gpu_reference.md has the source of each column; tests/hip/test_architectures.py compares the columns
// with clang where it knows them.
#pragma once

#include <cstdint>

#include "device/traits.h"

namespace graphopt::gpu {

// The device code that runs on an architecture.
enum class Code : uint8_t {
  kOwn,     // compiled for it
  kFamily,  // the code of its generic target
};

struct Architecture {
  const char* name;  // as the runtime reports it, without features such as :sramecc+
  Code code;
  bool checked;        // scripts/amd_build.py checks the compiled kernels
  const char* family;  // generic target whose code it runs if it has no own code; null: none
  int wave;            // work-items of a wave
  int lds_bytes;       // maximum LDS of a work-group
  int registers;       // maximum 32-bit registers of a work-item, AGPRs included, with one wave on a SIMD
  int waves_per_simd;  // maximum waves of a SIMD
  int simd_registers;  // registers that the waves of a SIMD share, in the unit of `registers`
  hip::Matrix matrix;  // matrix units for fp16
  bool matrix_f32;     // matrix units support fp32
  bool flushes_subnormals;  // matrix units flush float16 subnormals to 0
  int matrix_flops;         // fp16 FLOPs per clock on the matrix units of one compute unit
  int flops;                // fp32 FLOPs per clock of one compute unit; a fused multiply-add counts as two
  int units_per_multiprocessor;  // compute units that the runtime counts as one multiprocessor
  int transfers;                 // memory transfers per cycle of the memory clock that the runtime reports
  // Values of a typical GPU: used for plans without a device, and instead of values that the runtime
  // reports as 0.
  int compute_units;
  int xcds;  // dies (XCDs), which receive work-groups round-robin, each with its own L2
  double clock_hz;
  int64_t l2_bytes;              // last cache before memory, of the entire device: L2 or Infinity Cache
  double bytes_per_second;       // memory bandwidth of the slowest GPU: a lower bound for every device
  double most_bytes_per_second;  // memory bandwidth of the fastest GPU: an upper bound
};

// The typical GPUs, in the order of the rows:
// gfx9: RX Vega 56, MI50, MI100, MI210, MI300X, Ryzen 5000, MI355X
// gfx10: RX 5700, Pro V520, RX 5500 XT, RX 6800, RX 6700, RX 6600, Steam Deck, RX 6400, 680M, Ryzen 7000
// gfx11: RX 7900 GRE, RX 7700 XT, RX 7600, 780M, Strix Point, Strix Halo, Krackan, and for gfx1153 the values
//        of AMD's product pages
// gfx12: RX 9060 XT, RX 9070 GRE
// sm_90: H200
// clang-format off
constexpr Architecture kArchitectures[] = {
    {"gfx900", Code::kFamily, false, "gfx9-generic", 64, 65536, 256, 10, 256, hip::Matrix::kNone, false, false, 0, 128, 1, 2, 56, 1, 1.5e9, 4 << 20, 4.0e11, 5.2e11},
    {"gfx906", Code::kFamily, false, "gfx9-generic", 64, 65536, 256, 10, 256, hip::Matrix::kNone, false, false, 0, 128, 1, 2, 60, 1, 1.7e9, 4 << 20, 8.2e11, 1.03e12},
    {"gfx908", Code::kOwn, true, nullptr, 64, 65536, 512, 10, 512, hip::Matrix::kMfma, true, false, 1024, 256, 1, 2, 120, 1, 1.5e9, 8 << 20, 1.2e12, 1.23e12},
    {"gfx90a", Code::kOwn, true, nullptr, 64, 65536, 512, 8, 512, hip::Matrix::kMfma, true, true, 1024, 256, 1, 2, 104, 1, 1.7e9, 8 << 20, 1.6e12, 1.64e12},
    {"gfx942", Code::kOwn, true, nullptr, 64, 65536, 512, 8, 512, hip::Matrix::kMfma, true, false, 2048, 256, 1, 4, 304, 8, 2.1e9, 256 << 20, 5.3e12, 6.0e12},
    {"gfx90c", Code::kFamily, false, "gfx9-generic", 64, 65536, 256, 10, 256, hip::Matrix::kNone, false, false, 0, 128, 1, 2, 7, 1, 1.9e9, 1 << 20, 4.2e10, 6.9e10},
    {"gfx950", Code::kOwn, false, nullptr, 64, 163840, 512, 8, 512, hip::Matrix::kMfma, true, false, 4096, 256, 1, 4, 256, 8, 2.4e9, 256 << 20, 8.0e12, 8.2e12},
    {"gfx1010", Code::kFamily, false, "gfx10-1-generic", 32, 65536, 256, 20, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 16, 36, 1, 1.7e9, 4 << 20, 2.8e11, 4.5e11},
    {"gfx1011", Code::kFamily, false, "gfx10-1-generic", 32, 65536, 256, 20, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 2, 36, 1, 1.4e9, 4 << 20, 3.9e11, 5.2e11},
    {"gfx1012", Code::kFamily, false, "gfx10-1-generic", 32, 65536, 256, 20, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 16, 22, 1, 1.7e9, 2 << 20, 1.6e11, 2.3e11},
    {"gfx1030", Code::kOwn, true, "gfx10-3-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 16, 60, 1, 2.1e9, 128 << 20, 5.1e11, 5.8e11},
    {"gfx1031", Code::kFamily, false, "gfx10-3-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 16, 36, 1, 2.4e9, 80 << 20, 3.2e11, 4.4e11},
    {"gfx1032", Code::kFamily, false, "gfx10-3-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 16, 28, 1, 2.4e9, 32 << 20, 2.2e11, 2.9e11},
    {"gfx1033", Code::kFamily, false, "gfx10-3-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 8, 8, 1, 1.6e9, 1 << 20, 8.8e10, 1.03e11},
    {"gfx1034", Code::kFamily, false, "gfx10-3-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 16, 12, 1, 2.3e9, 16 << 20, 6.4e10, 1.5e11},
    {"gfx1035", Code::kFamily, false, "gfx10-3-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 4, 12, 1, 2.2e9, 2 << 20, 7.6e10, 1.03e11},
    {"gfx1036", Code::kFamily, false, "gfx10-3-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 4, 2, 1, 2.2e9, 1 << 18, 5.7e10, 9.0e10},
    {"gfx1100", Code::kOwn, true, "gfx11-generic", 32, 65536, 256, 16, 1536, hip::Matrix::kWmma, false, false, 512, 128, 2, 16, 80, 1, 2.3e9, 64 << 20, 5.7e11, 9.7e11},
    {"gfx1101", Code::kOwn, false, "gfx11-generic", 32, 65536, 256, 16, 1536, hip::Matrix::kWmma, false, false, 512, 128, 2, 16, 54, 1, 2.3e9, 48 << 20, 4.3e11, 6.3e11},
    {"gfx1102", Code::kOwn, false, "gfx11-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kWmma, false, false, 512, 128, 2, 16, 32, 1, 2.3e9, 32 << 20, 1.7e11, 2.9e11},
    {"gfx1103", Code::kFamily, false, "gfx11-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kWmma, false, false, 512, 128, 2, 8, 12, 1, 2.6e9, 2 << 20, 5.7e10, 1.21e11},
    {"gfx1150", Code::kOwn, false, "gfx11-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kWmma, false, false, 512, 128, 2, 8, 16, 1, 2.3e9, 2 << 20, 5.7e10, 1.37e11},
    {"gfx1151", Code::kOwn, true, "gfx11-generic", 32, 65536, 256, 16, 1536, hip::Matrix::kWmma, false, false, 512, 128, 2, 8, 40, 1, 2.3e9, 32 << 20, 2.5e11, 2.57e11},
    {"gfx1152", Code::kFamily, false, "gfx11-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kWmma, false, false, 512, 128, 2, 8, 8, 1, 2.3e9, 1 << 20, 5.7e10, 1.37e11},
    {"gfx1153", Code::kFamily, false, "gfx11-generic", 32, 65536, 256, 16, 1024, hip::Matrix::kWmma, false, false, 512, 128, 2, 8, 4, 1, 2.3e9, 1 << 20, 5.7e10, 1.37e11},
    {"gfx1200", Code::kOwn, false, nullptr, 32, 65536, 256, 16, 1536, hip::Matrix::kWmma, false, false, 1024, 128, 2, 16, 32, 1, 2.8e9, 32 << 20, 1.4e11, 3.3e11},
    {"gfx1201", Code::kOwn, true, nullptr, 32, 65536, 256, 16, 1536, hip::Matrix::kWmma, false, false, 1024, 128, 2, 16, 48, 1, 2.5e9, 48 << 20, 4.3e11, 6.5e11},
    // Generic targets, for members of a family without their own code object.
    {"gfx9-generic", Code::kOwn, false, nullptr, 64, 65536, 256, 10, 256, hip::Matrix::kNone, false, false, 0, 128, 1, 2, 7, 1, 1.5e9, 1 << 20, 4.2e10, 1.03e12},
    {"gfx10-1-generic", Code::kOwn, false, nullptr, 32, 65536, 256, 20, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 16, 22, 1, 1.7e9, 2 << 20, 1.6e11, 5.2e11},
    {"gfx10-3-generic", Code::kOwn, false, nullptr, 32, 65536, 256, 16, 1024, hip::Matrix::kNone, false, false, 0, 128, 2, 16, 28, 1, 2.3e9, 32 << 20, 5.7e10, 5.8e11},
    {"gfx11-generic", Code::kOwn, false, nullptr, 32, 65536, 256, 16, 1024, hip::Matrix::kWmma, false, false, 512, 128, 2, 8, 12, 1, 2.3e9, 2 << 20, 5.7e10, 9.7e11},
    {"sm_90", Code::kOwn, false, nullptr, 32, 232448, 255, 16, 2048, hip::Matrix::kMma, false, false, 4096, 256, 1, 2, 132, 1, 1.98e9, 50 << 20, 4.2e12, 5.0e12},
    // Kernels on the CPU, for tests.
    {"cpu32", Code::kOwn, false, nullptr, 32, 65536, 256, 16, 1024, hip::Matrix::kEmulated, false, false, 512, 128, 1, 2, 104, 1, 1.7e9, 8 << 20, 1.6e12, 1.6e12},
    {"cpu64", Code::kOwn, false, nullptr, 64, 65536, 512, 8, 512, hip::Matrix::kEmulated, true, false, 1024, 256, 1, 2, 104, 1, 1.7e9, 8 << 20, 1.6e12, 1.6e12},
};
// clang-format on

// Returns the maximum LDS of the kernels that run on an architecture (their kLdsBytes).
constexpr int kernel_lds(const Architecture& a) {
  return a.matrix == hip::Matrix::kMma ? hip::kNvidiaLdsBytes : hip::kAmdLdsBytes;
}

}  // namespace graphopt::gpu
