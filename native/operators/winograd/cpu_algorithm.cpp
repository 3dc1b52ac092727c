#include <algorithm>

#include "operators/winograd/cpu.h"

namespace graphopt::cpu {

namespace {

// Multiplications over C M: every point of the transform multiplies all tiles by all weights, or waits for
// the weights where tiles are few. In the time of a fetch from a last-level cache 8 tiles are multiplied,
// from memory 20.
double product_cost(const ConvProblem& p, int64_t tile) {
  const auto points = static_cast<double>((tile + 2) * (tile + 2));
  const int64_t tiles =
      std::max<int64_t>(p.N, 1) * ((p.OH() + tile - 1) / tile) * ((p.OW() + tile - 1) / tile);
  const double weight_bytes = points * static_cast<double>(p.C * p.M) * sizeof(float);
  constexpr double kLastLevelCache = 12 << 20;
  return points * std::max(static_cast<double>(tiles), weight_bytes > kLastLevelCache ? 20.0 : 8.0);
}

}  // namespace

ConvAlgorithm winograd_choose(const ConvProblem& p, size_t element_size) {
  // The transforms must be paid back; those of F(2x2) read and write twice as much for each pixel.
  if (element_size < 4) return p.C < 8 ? ConvAlgorithm::kDirect : ConvAlgorithm::kF2x2;
  if (p.C < 3) return ConvAlgorithm::kDirect;
  if (p.H == 0 || p.W == 0) return ConvAlgorithm::kF4x4;
  // F(2x2) has less than half the weights of F(4x4) and a smaller error, so it wins a near draw.
  return product_cost(p, 4) < 0.9 * product_cost(p, 2) ? ConvAlgorithm::kF4x4 : ConvAlgorithm::kF2x2;
}

}  // namespace graphopt::cpu
