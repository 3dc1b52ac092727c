// Launch plans are plain data: their guarantees to the kernels are checked without a device.
#include <stdexcept>

#include "gemm/planner.h"
#include "operators/conv/winograd/args.h"
#include "operators/conv/winograd/plan.h"
#include "operators/normalization/group_norm/channels_last_args.h"
#include "operators/normalization/group_norm/op.h"
#include "operators/normalization/row_norm/args.h"
#include "operators/normalization/row_norm/op.h"
#include "operators/normalization/scale_shift/args.h"
#include "operators/normalization/scale_shift/op.h"
#include "operators/normalization/softmax/op.h"
#include "operators/reduction/reduction/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using namespace graphopt::gpu;

// The computation of hip::divide.
uint32_t divide(uint32_t n, const Divisor& d) {
  return (static_cast<uint32_t>(uint64_t{n} * d.multiplier >> 32) + n) >> d.shift;
}

TEST_CASE("divisors divide every 31 bit number") {
  std::mt19937 random(1);
  std::vector<uint32_t> divisors = {1, 2, 3, 5, 7, 9, 49, 255, 256, 257, 3136, 65535, 65536, 2147483647};
  for (int i = 0; i < 200; ++i) divisors.push_back(random() % 2147483646 + 1);
  for (const uint32_t d : divisors) {
    const Divisor divisor = make_divisor(d);
    CHECK(divisor.d == d);
    std::vector<uint32_t> numbers = {0, 1, d - 1, d, 2147483647};
    const uint32_t last = 2147483647 / d * d;  // the last multiple
    numbers.push_back(last);
    numbers.push_back(last - 1);
    for (int i = 0; i < 200; ++i) numbers.push_back(random() >> 1);
    for (const uint32_t n : numbers) CHECK(divide(n, divisor) == n / d);
  }
}

TEST_CASE("large scale shift is cut into launches that cover it") {
  const ScaleShiftProblem p{3, 1001, 1048583, false, {}};
  const Plan plan = scale_shift_plan(p, true, true);
  CHECK(plan.launches.size() > 1);
  int64_t covered = 0;
  for (const Launch& launch : plan.launches) {
    const auto args = launch.arguments<hip::ScaleShiftArgs>();
    CHECK(launch.slot(0).offset == covered * 2);
    CHECK(launch.slot(4).offset == covered * 2);
    const uint32_t total = args.total;
    CHECK(total % p.inner == 0);
    CHECK(args.first_channel == covered / p.inner % p.C);
    // 256 work-items with a vector of 8 elements each.
    CHECK(launch.grid.x == (total + 2047) / 2048);
    CHECK(args.vectors == (covered * 2 % 16 == 0));
    covered += total;
  }
  CHECK(covered == p.N * p.C * p.inner);
  // A plane that leaves no space for a whole work-group in 31 bits gets a separate launch.
  CHECK(scale_shift_plan({1, 2, 2147483647, false, {}}, true, true).launches.size() == 2);
}

// A launch has at most 2^32 - 1 work-items along x on AMD, 2^31 - 1 work-groups on NVIDIA.
void check_rows(const Plan& plan, int64_t rows, int64_t in_bytes, int64_t out_bytes) {
  int64_t covered = 0;
  for (const Launch& launch : plan.launches) {
    CHECK(uint64_t{launch.grid.x} * launch.block <= UINT32_MAX);
    CHECK(launch.grid.x <= INT32_MAX);
    CHECK(launch.slot(0).offset == covered * in_bytes);
    CHECK(launch.slot(1).offset == covered * out_bytes);
    covered += launch.grid.x;
  }
  CHECK(covered == rows);
}

TEST_CASE("rows beyond one launch are split") {
  for (const char* arch : {"gfx90a", "gfx1100", "sm_90"}) {
    const DeviceFacts device = typical_facts(arch);
    for (const int64_t rows : {int64_t{1} << 22, (int64_t{1} << 24) + 3, INT64_C(2147483647)}) {
      check_rows(reduce_plan({{rows, 600}, {false, true}, Reduction::kMean, ElementType::kHalf}, true), rows,
                 1200, 2);
      int64_t short_rows = 0;
      for (const Launch& launch :
           reduce_plan({{rows, 7}, {false, true}, Reduction::kMean, ElementType::kHalf}, true).launches) {
        const auto args = launch.arguments<hip::ReduceRowsArgs>();
        CHECK(uint64_t{launch.grid.x} * launch.block <= UINT32_MAX);
        CHECK(launch.grid.x <= INT32_MAX);
        CHECK(launch.slot(0).offset == short_rows * 14);
        CHECK(launch.slot(1).offset == short_rows * 2);
        CHECK(uint64_t{launch.grid.x} * (launch.block / args.row_items) >= args.rows);
        short_rows += args.rows;
      }
      CHECK(short_rows == rows);
      check_rows(softmax_plan(rows, 4096, 1, AxisFunction::kSoftmax, false, true, device), rows, 16384,
                 16384);
      for (const bool aligned : {true, false}) {
        const Plan plan = row_norm_plan({rows, 64, 1e-5f, true}, false, aligned, device);
        int64_t covered = 0;
        for (const Launch& launch : plan.launches) {
          const auto args = launch.arguments<hip::RowNormArgs>();
          CHECK(uint64_t{launch.grid.x} * launch.block <= UINT32_MAX);
          CHECK(launch.slot(0).offset == covered * 256);
          CHECK(args.D == 64);
          CHECK(uint64_t{launch.grid.x} * (aligned ? args.group_rows : 1) >= args.count);
          covered += args.count;
        }
        CHECK(covered == rows);
      }
    }
  }
}

TEST_CASE("unaligned pointers take the scalar path") {
  const Plan plan = scale_shift_plan({1, 4, 64, false, {}}, false, false);
  CHECK(plan.launches[0].arguments<hip::ScaleShiftArgs>().vectors == 0);
  const DeviceFacts device = typical_facts("gfx1100");
  CHECK(std::string(
            row_norm_plan({8, 64, 1e-5f, false, false, false}, false, false, device).launches[0].kernel) ==
        "row_norm_any_f32");
  CHECK(group_norm_plan({1, 8, 64, 2, 1e-5f, {}}, false, false, device).launches.size() == 2);
}

GroupNormProblem channels_last(int64_t N, int64_t C, int64_t pixels, int64_t groups) {
  return {N, C, pixels, groups, 1e-5f, {}, true};
}

TEST_CASE("a group norm in channels last has each pixel and channel in one work-group") {
  const DeviceFacts device = typical_facts("sm_90");
  std::mt19937 random(5);
  const auto check_tiles = [](const hip::GroupNormTiles& t, const Launch& launch, int64_t N, int64_t C,
                              int64_t pixels, uint32_t groups) {
    const bool wide = std::string(launch.kernel).find("_8_") != std::string::npos;
    const int64_t size = wide ? 8 : 1, width = t.columns.d * size, slabs = t.slabs.d, blocks = t.blocks.d;
    CHECK(launch.grid.x == N * slabs * blocks);
    CHECK((slabs - 1) * t.slab < pixels);
    CHECK(pixels <= slabs * t.slab);
    CHECK((blocks - 1) * width < C);
    CHECK(C <= blocks * width);
    CHECK(width <= hip::kGroupNormChannelsLastWidth);
    CHECK(int64_t{t.rounds} * hip::kGroupNormChannelsLastSteps * t.rows >= t.slab);
    // Each channel of a pack has a row that merges it.
    CHECK(int64_t{t.rows} * t.columns.d <= hip::kGroupNormChannelsLastThreads);
    CHECK(int64_t{t.rows} >= size);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = block * width, last = std::min(C, first + width) - 1;
      CHECK(last / t.group_channels.d - first / t.group_channels.d < groups);
    }
  };
  for (int i = 0; i < 3000; ++i) {
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint32_t>(n)) + 1;
    };
    const int64_t N = below(4), groups = below(i % 3 == 0 ? 64 : 8),
                  C = groups * below(i % 2 == 0 ? 12 : 300), pixels = below(i % 5 == 0 ? 70000 : 400);
    const Plan plan = group_norm_plan(channels_last(N, C, pixels, groups), true, i % 7 != 0, device);
    if (plan.launches.size() == 1) {
      const auto args = plan.launches[0].arguments<hip::GroupNormChannelsLastArgs>();
      check_tiles(args.tiles, plan.launches[0], N, C, pixels, hip::kGroupNormChannelsLastGroups);
      const bool wide = std::string(plan.launches[0].kernel) == "group_norm_channels_last_8_f16";
      CHECK(args.tiles.slabs.d == 1);
      CHECK(args.tiles.columns.d * (wide ? 8 : 1) % (C / groups) == 0);
      continue;
    }
    const auto stats = plan.launches[0].arguments<hip::GroupNormChannelsLastStatsArgs>();
    const auto apply = plan.launches[1].arguments<hip::GroupNormChannelsLastApplyArgs>();
    check_tiles(stats.tiles, plan.launches[0], N, C, pixels, stats.groups);
    check_tiles(apply.tiles, plan.launches[1], N, C, pixels, apply.groups);
    CHECK(stats.groups == apply.groups);
    CHECK(int64_t{stats.groups} <= hip::kGroupNormChannelsLastGroups);
    CHECK(plan.workspace[0] == int64_t{plan.launches[0].grid.x} * stats.groups * 8);
  }
  CHECK_THROWS_AS(group_norm_plan(channels_last(1, 8, int64_t{1} << 28, 2), true, true, device),
                  std::invalid_argument);
}

TEST_CASE("group norms in channels last fill the device") {
  const DeviceFacts device = typical_facts("sm_90");
  const auto launches = [&](int64_t N, int64_t C, int64_t pixels) {
    const Plan plan = group_norm_plan(channels_last(N, C, pixels, 32), true, true, device);
    if (plan.launches.size() > 1)
      CHECK(plan.launches[0].grid.x >= static_cast<uint32_t>(device.compute_units));
    return plan.launches.size();
  };
  CHECK(launches(1, 320, 4096) == 2);
  CHECK(launches(8, 320, 4096) == 2);
  CHECK(launches(2, 640, 1024) == 2);
  CHECK(launches(1, 128, 262144) == 2);
  CHECK(launches(1, 1280, 64) == 1);
  CHECK(launches(8, 1280, 256) == 1);
}

TEST_CASE("empty tensors launch nothing") {
  const DeviceFacts device = typical_facts("gfx942");
  CHECK(scale_shift_plan({0, 4, 64, false, {}}, false, true).launches.empty());
  CHECK(group_norm_plan({0, 8, 64, 2, 1e-5f, {}}, false, true, device).launches.empty());
  CHECK(group_norm_plan(channels_last(1, 8, 0, 2), true, true, device).launches.empty());
  CHECK(row_norm_plan({0, 64, 1e-5f, false, false, false}, false, true, device).launches.empty());
  const ConvolutionProblem p = convolution_3x3(0, 3, 8, 8, 4, {1, 1, 1, 1});
  CHECK(winograd_conv_plan(p, false, true, choose_conv(p, false, device), device).launches.empty());
}

TEST_CASE("a convolution smaller than its window is left to the operator to refuse") {
  for (const bool half : {false, true}) {
    for (const int64_t W : {0, 1}) {
      CHECK(choose_conv(convolution_3x3(4, 1, 3, W, 1, {0, 0, 0, 0}), half, typical_facts("sm_90")).chunk ==
            0);
    }
  }
}

TEST_CASE("large float16 convolutions run on matrix units") {
  const auto algorithm = [](const char* arch, bool half, int64_t N, int64_t C, int64_t H) {
    return choose_conv(convolution_3x3(N, C, H, H, C, {1, 1, 1, 1}), half, typical_facts(arch)).algorithm;
  };
  for (const char* arch : {"sm_90", "gfx942", "gfx1201"}) {
    CHECK(algorithm(arch, true, 32, 320, 64) == ConvAlgorithm::kMatrix);
    CHECK(algorithm(arch, false, 32, 320, 64) != ConvAlgorithm::kMatrix);
  }
  CHECK(algorithm("gfx1030", true, 32, 320, 64) != ConvAlgorithm::kMatrix);
  // X in channels-last layout would need 5 GiB.
  CHECK(algorithm("sm_90", true, 32, 320, 512) != ConvAlgorithm::kMatrix);
  bool refused = false;
  try {
    choose_conv(convolution_3x3(1, 8, 8, 8, 8, {1, 1, 1, 1}), true, typical_facts("gfx1030"),
                ConvAlgorithm::kMatrix);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

TEST_CASE("convolution on the matrix units covers pixels filters and its workspace") {
  ConvolutionProblem p = convolution_3x3(3, 33, 10, 12, 130, {1, 2, 0, 1});
  p.has_residual = true;
  for (const char* arch : {"sm_90", "gfx942", "gfx1100"}) {
    const DeviceFacts device = typical_facts(arch);
    for (const hip::StridedTile& tile : hip::kStridedTiles) {
      const Plan plan = winograd_conv_plan(p, true, true, {ConvAlgorithm::kMatrix, tile.tile, 0, 0}, device);
      const int64_t side = tile.wave64.m;
      CHECK(plan.launches.size() == 2);
      // Including padding, with channels in whole steps of 32.
      CHECK(plan.workspace == std::vector<int64_t>({3 * 11 * 15 * 64 * 2}));
      CHECK(plan.launches[0].grid.x == divide_up(3 * 11 * 15 * 64 / 16, 256));
      const Launch& product = plan.launches[1];
      CHECK(product.grid.x == divide_up(3 * 9 * 13, side));
      CHECK(product.grid.y == divide_up(130, side));
      CHECK(product.block % static_cast<uint32_t>(device.wave) == 0);
      CHECK(product.block <= 256);
      CHECK((product.lds > 0) == (device.arch == "sm_90"));
    }
  }
  CHECK(winograd_conv_prepare_plan(p, true, ConvAlgorithm::kMatrix).weights == 256 * 9 * 64 * 2);
}

TEST_CASE("convolution chunks cover all tiles within the workspace") {
  for (const char* arch : {"gfx90a", "gfx942", "gfx1100", "sm_90"}) {
    const DeviceFacts device = typical_facts(arch);
    for (const int64_t N : {1, 3, 64}) {
      const ConvolutionProblem p = convolution_3x3(N, 64, 225, 223, 96, {1, 1, 1, 1});
      const ConvChoice choice = choose_conv(p, false, device, ConvAlgorithm::kWinograd4);
      const Plan plan = winograd_conv_plan(p, false, true, choice, device);
      CHECK(plan.launches.size() % 3 == 0);
      uint32_t next = 0;
      for (size_t i = 0; i < plan.launches.size(); i += 3) {
        const auto args = plan.launches[i].arguments<hip::WinogradInputArgs>();
        const hip::Tiles& tiles = args.tiles;
        const uint32_t stride = args.stride.d;
        CHECK(tiles.first == next);
        CHECK(stride % 4 == 0);
        CHECK(stride >= tiles.count);
        CHECK(36 * 64 * int64_t{stride} * 4 <= plan.workspace[0]);
        CHECK(36 * 96 * int64_t{stride} * 4 <= plan.workspace[1]);
        next += tiles.count;
      }
      CHECK(next == N * 57 * 56);
      CHECK(plan.workspace[0] + plan.workspace[1] < int64_t{300} << 20);
    }
  }
}

TEST_CASE("a GEMM tile without a kernel for the target has no cost") {
  using hip::Targets;
  hip::AlignedTile tile = hip::kAlignedTiles[0];
  const auto has_cost = [&](Targets targets, bool copies_to_lds) {
    tile.dense_kernels = targets;
    return dense_cost(tile, tile.copies_to_lds, copies_to_lds).has_value();
  };
  for (const bool copies_to_lds : {false, true}) {
    CHECK(!has_cost(Targets::kNone, copies_to_lds));
    CHECK(has_cost(Targets::kAll, copies_to_lds));
    CHECK(has_cost(Targets::kCopiesToLds, copies_to_lds) == copies_to_lds);
    CHECK(has_cost(Targets::kThroughRegisters, copies_to_lds) == !copies_to_lds);
  }
}

TEST_CASE("a slot holds a buffer and arguments keep their type") {
  hip::ScaleShiftArgs args = {};
  const Buffer part = {Role::kInput, 3, (int64_t{1} << 46) + 6};
  args.shift = part;
  args.y = output(7);
  Launch launch("scale_shift_f32", {}, 256, args);
  CHECK(launch.slots == 5);
  CHECK(launch.slot(0).role == Role::kNull);
  CHECK(args.x.address == nullptr);
  CHECK(launch.slot(2).role == Role::kInput);
  CHECK(launch.slot(2).index == 3);
  CHECK(launch.slot(2).offset == part.offset);
  CHECK(launch.slot(4).role == Role::kOutput);
  CHECK(launch.slot(4).index == 7);
  CHECK(launch.slot(4).offset == 0);
  launch.set_slot(0, workspace(1));
  CHECK(launch.slot(0).role == Role::kWorkspace);
  CHECK(launch.slot(0).index == 1);
  bool refused = false;
  try {
    launch.arguments<hip::WinogradInputArgs>();
  } catch (const std::logic_error&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace
}  // namespace graphopt::test
