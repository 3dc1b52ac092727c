// Whether the CPU kernels may use VNNI.
#pragma once

namespace graphopt::cpu {

// Returns true if this machine has vpdpbusd for the vectors of isa(): AVX512-VNNI, or AVX-VNNI for AVX2. This
// instruction adds four products of an unsigned and a signed byte to a 32-bit sum. Returns false if GRAPHOPT_ISA is set
// and isa() is avx512 or lower.
bool has_vnni();

}  // namespace graphopt::cpu
