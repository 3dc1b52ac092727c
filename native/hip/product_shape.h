// What the float16 products of gemm.hip and conv.hip on the matrix units and their launch plans share.
#pragma once

namespace graphopt::hip {

// A work-group of side x side is cut into parts of side / 2 rows and this many columns, one for each wave.
// The sums of 64 columns are 128 registers of a wave of 32, which leaves too few for the operands of RDNA 3.
constexpr int product_columns(int wave) { return wave == 64 ? 64 : 32; }
constexpr int product_waves(int side, int wave) { return 2 * side / product_columns(wave); }

}  // namespace graphopt::hip
