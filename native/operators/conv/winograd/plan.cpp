#include "operators/conv/winograd/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "operators/conv/winograd/args.h"
#include "operators/conv/winograd/matrix_args.h"

namespace graphopt::gpu {
namespace {

constexpr double kLaunchSeconds = 2e-6;

// Returns the kernel name of a transform; `what` is "filter", "input" or "output".
const char* transform(const char* what, ConvAlgorithm algorithm, bool half) {
  const char* points = algorithm == ConvAlgorithm::kWinograd4 ? "_f4" : "_f2";
  return float_kernel(kernel_name({"winograd_", what, points}), half);
}

// The matrices of prepared weights, padded with zeros: [depth, M] in float32, or [M, depth] in float16 for kMatrix.
// depth is C for Winograd and 9 C otherwise.
struct WeightShape {
  int64_t rows, columns, positions;
};

int64_t out_of(ConvAlgorithm a) { return a == ConvAlgorithm::kWinograd4 ? 4 : 2; }

WeightShape weight_shape(const ConvolutionProblem& p, ConvAlgorithm algorithm) {
  if (algorithm == ConvAlgorithm::kMatrix)
    return {round_up(p.M, 128), 9 * round_up(p.C, hip::kMatrixConvChannels), 1};
  const bool implicit = algorithm == ConvAlgorithm::kImplicit;
  const int64_t side = out_of(algorithm) + 2;
  // 128 is the height of the large tile. With at most 64 filters, half of it would be padding.
  const int64_t columns = p.M > 64 ? round_up(p.M, 128) : 64;
  return {round_up(implicit ? 9 * p.C : p.C, hip::kVectorDepth), columns, implicit ? 1 : side * side};
}

struct TileGrid {
  int64_t down, across, count;
};

TileGrid tile_grid(const ConvolutionProblem& p, ConvAlgorithm algorithm) {
  const int64_t m = out_of(algorithm), down = divide_up(p.OH(), m), across = divide_up(p.OW(), m);
  return {down, across, p.N * down * across};
}

double gemm_seconds(const DeviceFacts& d, const hip::VectorTile& tile, int64_t M, int64_t columns,
                    int64_t depth, int64_t positions) {
  const int64_t groups = divide_up(M, tile.shape.m) * divide_up(columns, tile.shape.n) * positions;
  // Two work-groups share a compute unit: one work-group does not keep its pipelines busy.
  const double slots = 2.0 * d.compute_units;
  const double waves = std::ceil(static_cast<double>(groups) / slots);
  const double occupied = groups <= d.compute_units ? 0.6 : waves;
  const double group_flops =
      2.0 * static_cast<double>(tile.shape.m * tile.shape.n) * static_cast<double>(depth);
  return occupied * 2.0 * group_flops / (tile.fraction_of_peak * d.flops_per_clock * d.clock_hz);
}

// X with padding, in channels last.
struct Packed {
  int64_t H, W, C, elements;
};

constexpr int64_t kMostPacked = int64_t{1} << 29;  // a workspace of 1 GiB

Packed packed(const ConvolutionProblem& p) {
  const int64_t H = p.OH() + 2, W = p.OW() + 2, C = round_up(p.C, hip::kMatrixConvChannels);
  return {H, W, C, p.N * H * W * C};
}

// Only NVIDIA's matrix units have direct copies from memory to LDS.
const hip::MatrixShape& shape_of(const hip::StridedTile& tile, const Architecture& arch) {
  return tile.shape(arch.wave, arch.matrix == hip::Matrix::kMma);
}

double matrix_seconds(const ConvolutionProblem& p, const DeviceFacts& d, const hip::StridedTile& t) {
  const hip::MatrixShape& s = shape_of(t, architecture(d.arch));
  const Packed x = packed(p);
  const int64_t groups = divide_up(p.M, s.m) * divide_up(p.N * p.OH() * p.OW(), s.n);
  const double flops = 2.0 * static_cast<double>(s.m * s.n) * 9.0 * static_cast<double>(x.C);
  const int64_t busiest = std::max<int64_t>(divide_up(groups, d.compute_units), t.busy_groups);
  // The rate of the tile's kernel, but at most half of the peak rate of the matrix units.
  const double rate = std::min(0.5 * architecture(d.arch).matrix_flops, 1.0 * t.flops_per_clock) * d.clock_hz;
  const double bytes = 2.0 * static_cast<double>(2 * x.elements + p.N * p.C * p.H() * p.W()) +
                       2.0 * static_cast<double>(p.N * p.M * p.OH() * p.OW());
  return 2 * kLaunchSeconds + static_cast<double>(busiest) * flops / rate +
         bytes / (0.7 * d.bytes_per_second);
}

// Returns the number of tiles in a chunk: as many as fit into a workspace of 256 MiB, but at least 512. Chunks that fit
// into the L2 cache need more launches, and were slower on an H200 with 50 MiB of L2 cache.
int64_t chunk_tiles(const ConvolutionProblem& p, ConvAlgorithm algorithm, int64_t tiles) {
  const int64_t side = out_of(algorithm) + 2;
  const int64_t chunk = std::max<int64_t>((int64_t{256} << 20) / (side * side * (p.C + p.M) * 4), 512);
  if (chunk >= tiles) return tiles;
  return std::min(tiles, round_up(divide_up(tiles, divide_up(tiles, chunk)), 128));  // chunks of one size
}

hip::PaddedImage image_of(const ConvolutionProblem& p) {
  to_u31(p.H() * p.W());
  return {to_i31(p.C), to_i31(p.H()), to_i31(p.W()), static_cast<int32_t>(p.pad[1]),
          static_cast<int32_t>(p.pad[2])};
}

Plan matrix_conv_plan(const ConvolutionProblem& p, const ConvChoice& choice, const DeviceFacts& device) {
  const Architecture& arch = architecture(device.arch);
  Plan plan;
  const hip::StridedTile& row = hip::row_of(hip::kStridedTiles, choice.tile);
  const hip::MatrixShape& tile = shape_of(row, arch);
  const Packed x = packed(p);
  const uint32_t pixels = to_u31(p.N * p.OH() * p.OW()), image = to_u31(x.H * x.W * x.C);
  to_u31(x.elements);
  plan.workspace = {x.elements * 2};
  const uint32_t parts = to_u31(x.elements / 16);
  hip::MatrixPackArgs pack = {};
  pack.x = input(0);
  pack.packed = workspace(0);
  pack.image = image_of(p);
  pack.total = parts;
  pack.pixels = make_divisor(x.H * x.W);
  pack.across = make_divisor(x.W);
  pack.parts = make_divisor(x.C / 16);
  plan.launch_items("matrix_pack_f16", parts, hip::kMatrixConvThreads, pack);
  hip::MatrixGemmArgs gemm = {};
  gemm.u = weights();
  gemm.packed = workspace(0);
  gemm.bias = input(2);
  gemm.residual = p.has_residual ? input(3) : no_buffer();
  gemm.y = output(0);
  gemm.M = to_i31(p.M);
  gemm.channels = static_cast<int32_t>(x.C);
  gemm.line = to_u31(x.W * x.C);
  gemm.image = image;
  gemm.pixels = pixels;
  gemm.per_image = make_divisor(p.OH() * p.OW());
  gemm.across = make_divisor(p.OW());
  gemm.act = p.act;
  Launch& launch = plan.launch(kernel_name({"matrix_gemm_", row.name, "_f16"}),
                               {to_u31(divide_up(pixels, tile.n)), to_u31(divide_up(p.M, tile.m))},
                               static_cast<uint32_t>(tile.threads(arch.wave)), gemm);
  // On NVIDIA GPUs the launch requests the memory of LARGE_SHARED (device/platform.h).
  if (arch.matrix == hip::Matrix::kMma) launch.lds = static_cast<uint32_t>(tile.lds_bytes(false));
  return plan;
}

}  // namespace

bool has_matrix_conv(bool half, const DeviceFacts& device) {
  return half && architecture(device.arch).matrix != hip::Matrix::kNone;
}

ConvChoice choose_conv(const ConvolutionProblem& p, bool half, const DeviceFacts& device,
                       ConvAlgorithm algorithm) {
  const bool matrix = algorithm == ConvAlgorithm::kMatrix;
  if (matrix && !has_matrix_conv(half, device))
    throw std::invalid_argument("no matrix units for this convolution");
  ConvChoice best{algorithm, matrix ? GemmTile::k64x64_f16 : GemmTile::k64x32_f32, 0, 0};
  // There is nothing to compute, or X is smaller than the window, which the operator refuses when it runs.
  if (p.N <= 0 || p.M <= 0 || p.OH() <= 0 || p.OW() <= 0) return best;
  best.seconds = std::numeric_limits<double>::infinity();
  if (matrix) {
    if (packed(p).elements > kMostPacked) return best;
    for (const hip::StridedTile& tile : hip::kStridedTiles) {
      const double seconds = matrix_seconds(p, device, tile);
      if (seconds < best.seconds) best = {algorithm, tile.tile, 0, seconds};
    }
    return best;
  }
  for (const hip::VectorTile& tile : hip::kVectorTiles) {
    if (tile.shape.m > 64 && p.M <= 64) continue;
    ConvChoice choice{algorithm, tile.tile, 0, 0};
    if (algorithm == ConvAlgorithm::kImplicit) {
      choice.seconds =
          kLaunchSeconds + gemm_seconds(device, tile, p.M, p.N * p.OH() * p.OW(), 9 * p.C, 1) / 0.8;
    } else {
      const TileGrid tiles = tile_grid(p, algorithm);
      choice.chunk = chunk_tiles(p, algorithm, tiles.count);
      const int64_t side = out_of(algorithm) + 2, chunks = divide_up(tiles.count, choice.chunk);
      const double bytes =
          4.0 * static_cast<double>(p.N * (p.C * p.H() * p.W() + p.M * p.OH() * p.OW())) +
          8.0 * static_cast<double>(side * side * (p.C + p.M)) * static_cast<double>(tiles.count) +
          4.0 * static_cast<double>(side * side * p.C * p.M);
      choice.seconds =
          static_cast<double>(chunks) *
              (3 * kLaunchSeconds + gemm_seconds(device, tile, p.M, choice.chunk, p.C, side * side)) +
          bytes / (0.7 * device.bytes_per_second);
    }
    if (choice.seconds < best.seconds) best = choice;
  }
  return best;
}

ConvChoice choose_conv(const ConvolutionProblem& p, bool half, const DeviceFacts& device) {
  ConvChoice best;
  best.seconds = std::numeric_limits<double>::infinity();
  for (const auto algorithm : {ConvAlgorithm::kWinograd4, ConvAlgorithm::kWinograd2, ConvAlgorithm::kImplicit,
                               ConvAlgorithm::kMatrix}) {
    if (algorithm == ConvAlgorithm::kMatrix && !has_matrix_conv(half, device)) continue;
    const ConvChoice choice = choose_conv(p, half, device, algorithm);
    if (choice.seconds < best.seconds) best = choice;
  }
  return best;
}

Plan winograd_conv_prepare_plan(const ConvolutionProblem& p, bool half, ConvAlgorithm algorithm) {
  const WeightShape w = weight_shape(p, algorithm);
  const auto M = to_i31(p.M), C = to_i31(p.C), rows = static_cast<int32_t>(w.rows);
  const int64_t total = to_u31(w.rows * w.columns);
  Plan plan;
  plan.weights = w.positions * total * (algorithm == ConvAlgorithm::kMatrix ? 2 : 4);
  const auto launch = [&](const char* kernel, uint32_t threads, auto& args) {
    args.w = input(1);
    args.u = weights();
    args.M = M;
    plan.launch_items(kernel, total, threads, args);
  };
  if (algorithm == ConvAlgorithm::kMatrix) {
    hip::MatrixFilterArgs args = {};
    args.C = C;
    args.total = to_u31(total);
    args.channels = make_divisor(w.columns / 9);
    launch("matrix_filter_f16", hip::kMatrixConvThreads, args);
  } else if (algorithm == ConvAlgorithm::kImplicit) {
    hip::ImplicitFilterArgs args = {};
    args.depth = to_i31(9 * p.C);
    args.rows = rows;
    args.columns = make_divisor(w.columns);
    launch(float_kernel("implicit_filter", half), hip::kWinogradThreads, args);
  } else {
    hip::WinogradFilterArgs args = {};
    args.C = C;
    args.rows = rows;
    args.columns = make_divisor(w.columns);
    launch(transform("filter", algorithm, half), hip::kWinogradThreads, args);
  }
  return plan;
}

namespace {

Buffer residual_of(const ConvolutionProblem& p) { return p.has_residual ? input(3) : no_buffer(); }

Plan implicit_conv_plan(const ConvolutionProblem& p, bool half, const WeightShape& w,
                        const hip::VectorTile& tile) {
  hip::ImplicitGemmArgs args = {};
  args.u = weights();
  args.x = input(0);
  args.bias = input(2);
  args.residual = residual_of(p);
  args.y = output(0);
  args.M = to_i31(p.M);
  args.image = image_of(p);
  args.rows = static_cast<int32_t>(w.rows);
  args.columns = static_cast<int32_t>(w.columns);
  args.pixels = to_u31(p.N * p.OH() * p.OW());
  args.per_image = make_divisor(p.OH() * p.OW());
  args.across = make_divisor(p.OW());
  args.act = p.act;
  return one_launch(float_kernel(kernel_name({"implicit_gemm_", tile.name}), half),
                    Grid{to_u31(divide_up(args.pixels, tile.shape.n)), to_u31(divide_up(p.M, tile.shape.m))},
                    static_cast<uint32_t>(tile.shape.threads()), args);
}

// Launches the input transform, the GEMMs and the output transform of some tiles.
void launch_tiles(Plan& plan, const ConvolutionProblem& p, ConvAlgorithm algorithm, bool half,
                  const WeightShape& w, const hip::VectorTile& tile, const hip::Tiles& tiles, bool vectors) {
  const int64_t stride = round_up(tiles.count, 4);
  hip::WinogradInputArgs in = {};
  in.x = input(0);
  in.v = workspace(0);
  in.image = image_of(p);
  in.tiles = tiles;
  in.stride = make_divisor(stride);
  plan.launch_items(transform("input", algorithm, half), to_u31(p.C * stride), hip::kWinogradThreads, in);
  hip::WinogradGemmArgs gemm = {};
  gemm.u = weights();
  gemm.v = workspace(0);
  gemm.z = workspace(1);
  gemm.M = to_i31(p.M);
  gemm.C = to_i31(p.C);
  gemm.rows = static_cast<int32_t>(w.rows);
  gemm.columns = static_cast<int32_t>(w.columns);
  gemm.stride = static_cast<int32_t>(stride);
  plan.launch(kernel_name({"winograd_gemm_", tile.name, "_f32"}),
              {to_u31(divide_up(stride, tile.shape.n)), to_u31(divide_up(p.M, tile.shape.m)),
               static_cast<uint32_t>(w.positions)},
              static_cast<uint32_t>(tile.shape.threads()), gemm);
  hip::WinogradOutputArgs out = {};
  out.z = workspace(1);
  out.bias = input(2);
  out.residual = residual_of(p);
  out.y = output(0);
  out.M = to_i31(p.M);
  out.OH = static_cast<int32_t>(p.OH());
  out.OW = static_cast<int32_t>(p.OW());
  out.tiles = tiles;
  out.stride = make_divisor(stride);
  out.vectors = vectors;
  out.act = p.act;
  plan.launch_items(transform("output", algorithm, half), to_u31(p.M * stride), hip::kWinogradThreads, out);
}

}  // namespace

Plan winograd_conv_plan(const ConvolutionProblem& p, bool half, bool aligned, const ConvChoice& choice,
                        const DeviceFacts& device) {
  Plan plan;
  const int64_t OW = p.OW();
  if (p.N * p.M * p.OH() * OW == 0) return plan;
  if (p.C == 0) throw std::invalid_argument("a convolution without input channels");
  if (choice.algorithm == ConvAlgorithm::kMatrix) return matrix_conv_plan(p, choice, device);
  const WeightShape w = weight_shape(p, choice.algorithm);
  const hip::VectorTile& tile = hip::row_of(hip::kVectorTiles, choice.tile);
  if (w.columns % tile.shape.m != 0)
    throw std::invalid_argument("the tile is too tall for these output channels");
  if (choice.algorithm == ConvAlgorithm::kImplicit) return implicit_conv_plan(p, half, w, tile);

  const TileGrid tiles = tile_grid(p, choice.algorithm);
  to_u31(tiles.count);
  hip::Tiles part = {0, 0, make_divisor(tiles.down * tiles.across), make_divisor(tiles.across)};
  const int64_t chunk = std::min(choice.chunk, tiles.count), widest = round_up(chunk, 4);
  plan.workspace = {w.positions * p.C * widest * 4, w.positions * p.M * widest * 4};
  const bool vectors = choice.algorithm == ConvAlgorithm::kWinograd4 && OW % 4 == 0 && aligned;
  for (int64_t first = 0; first < tiles.count; first += chunk) {
    part.first = static_cast<uint32_t>(first);
    part.count = static_cast<uint32_t>(std::min(chunk, tiles.count - first));
    launch_tiles(plan, p, choice.algorithm, half, w, tile, part, vectors);
  }
  return plan;
}

}  // namespace graphopt::gpu
