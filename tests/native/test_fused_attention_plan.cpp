// The distribution of FusedAttention over work-groups: rows, splits of the keys, workspace, refusals.
#include <stdexcept>

#include "device/traits.h"
#include "operators/attention/attention/args.h"
#include "operators/attention/attention/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using namespace graphopt::gpu;
using hip::AttentionRows;

// Returns B x H contiguous heads of [S, D] and [T, D].
AttentionProblem problem(int64_t B, int64_t H, int64_t S, int64_t T, int64_t D) {
  AttentionProblem p;
  p.B = B;
  p.H = H;
  p.S = S;
  p.T = T;
  p.D = p.Dv = D;
  p.group = 1;
  p.q = p.o = {H * S * D, S * D, D, 1};
  p.k = p.v = {H * T * D, T * D, D, 1};
  p.scale = 0.125f;
  return p;
}

Plan plan_on(const char* arch, const AttentionProblem& p, bool half) {
  return fused_attention_plan(p, half, true, typical_facts(arch));
}

const Launch& attention_of(const Plan& plan) {
  for (const Launch& launch : plan.launches) {
    const std::string name = launch.kernel;
    if (name.find("combine") == std::string::npos && name.find("nonfinite") == std::string::npos)
      return launch;
  }
  throw std::runtime_error("no attention kernel");
}

hip::AttentionSizes sizes_of(const Launch& launch) {
  return launch.arguments<hip::AttentionArgs>().layout.sizes;
}

bool has(const Plan& plan, const std::string& part) {
  return std::any_of(plan.launches.begin(), plan.launches.end(), [&](const Launch& launch) {
    return std::string(launch.kernel).find(part) != std::string::npos;
  });
}

template <class Call>
bool refused(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

TEST_CASE("attention kernel is that of the head and the options") {
  CHECK(std::string(attention_of(plan_on("gfx942", problem(1, 1, 64, 64, 40), true)).kernel) ==
        "fused_attention_plain_64_f16");
  CHECK(std::string(attention_of(plan_on("gfx942", problem(1, 1, 64, 64, 65), true)).kernel) ==
        "fused_attention_plain_128_f16");
  CHECK(std::string(attention_of(plan_on("gfx942", problem(1, 1, 64, 64, 256), false)).kernel) ==
        "fused_attention_plain_256_f32");
  // The wider of the heads of K and of V decides.
  AttentionProblem p = problem(1, 1, 64, 64, 64);
  p.Dv = 200;
  CHECK(has(plan_on("gfx942", p, true), "plain_256"));
  for (int option = 0; option < 4; ++option) {
    p = problem(1, 1, 64, 64, 64);
    if (option == 0) p.has_bias = true;
    if (option == 1) p.has_mask = true;
    if (option == 2) p.softcap = 30;
    if (option == 3) p.scale = -1;
    CHECK(!has(plan_on("gfx942", p, true), "plain"));
  }
}

TEST_CASE("attention takes many rows where they fill the device") {
  const auto many = [](const char* arch, const AttentionProblem& p, bool half = false) {
    return has(plan_on(arch, p, half), "many");
  };
  for (const char* arch : {"sm_90", "gfx1100", "gfx1201"}) {
    CHECK(many(arch, problem(8, 16, 2048, 2048, 128)));
    CHECK(many(arch, problem(8, 16, 2048, 2048, 64)));
    // Half as many work-groups would leave most of the device idle.
    CHECK(!many(arch, problem(1, 8, 128, 128, 128)));
    CHECK(!many(arch, problem(1, 8, 128, 128, 64)));
    // This head size has one kernel only, and float16 uses the matrix units.
    CHECK(!many(arch, problem(8, 16, 2048, 2048, 256)));
    CHECK(!many(arch, problem(8, 16, 2048, 2048, 128), true));
  }
  CHECK(!many("gfx942", problem(8, 16, 2048, 2048, 128)));
  // The busiest of 132 units gets three of 288 work-groups. With work-groups of half that size it gets five
  // of 576, which is less work.
  CHECK(!many("sm_90", problem(8, 12, 384, 384, 64)));
  // In float16 only heads of at most 64 elements have this kernel, on NVIDIA's matrix units.
  CHECK(has(plan_on("sm_90", problem(8, 8, 4096, 4096, 64), true), "plain_many_64_f16"));
  CHECK(has(plan_on("sm_90", problem(8, 8, 4096, 4096, 48), true), "plain_many_48_f16"));
  CHECK(!many("sm_90", problem(8, 12, 384, 384, 64), true));
  CHECK(!many("gfx1100", problem(8, 8, 4096, 4096, 64), true));
  CHECK(!many("gfx942", problem(8, 8, 4096, 4096, 64), true));
  AttentionProblem p = problem(8, 8, 4096, 4096, 64);
  p.has_bias = true;
  CHECK(!many("sm_90", p, true));
}

TEST_CASE("attention splits keys within a work-group if a unit has only one") {
  // 128 and 96 work-groups of 128 rows on 132 units.
  CHECK(has(plan_on("sm_90", problem(1, 16, 1024, 1024, 128), true), "plain_ping_pong_128_f16"));
  CHECK(has(plan_on("sm_90", problem(1, 12, 1024, 1024, 80), true), "plain_ping_pong_96_f16"));
  CHECK(has(plan_on("sm_90", problem(1, 16, 1024, 1024, 64), true), "plain_ping_pong_64_f16"));
  CHECK(has(plan_on("sm_90", problem(1, 16, 1024, 1024, 40), true), "plain_ping_pong_64_f16"));
  // 64 work-groups: two splits give one work-group for each unit.
  const Plan split = plan_on("sm_90", problem(1, 8, 1024, 1024, 128), true);
  CHECK(has(split, "plain_ping_pong_128_f16"));
  CHECK(attention_of(split).grid.x == 128);
  CHECK(split.launches.size() == 2);
  // No split: two work-groups for a unit, few keys, few rows, an operation between the GEMMs, another device.
  CHECK(has(plan_on("sm_90", problem(2, 16, 1024, 1024, 128), true), "plain_128_f16"));
  CHECK(has(plan_on("sm_90", problem(8, 8, 1024, 1024, 80), true), "plain_96_f16"));
  CHECK(has(plan_on("sm_90", problem(1, 16, 1024, 128, 128), true), "plain_128_f16"));
  CHECK(has(plan_on("sm_90", problem(1, 16, 20, 4096, 128), true), "plain_128_f16"));
  CHECK(has(plan_on("sm_90", problem(1, 12, 512, 512, 64), true), "plain_64_f16"));
  AttentionProblem p = problem(1, 16, 1024, 1024, 128);
  CHECK(has(plan_on("gfx942", p, true), "plain_128_f16"));
  p.has_bias = true;
  CHECK(!has(plan_on("sm_90", p, true), "ping_pong"));
}

TEST_CASE("attention pairs long and short work-groups of a causal problem") {
  // 256 work-groups of 64 rows on 132 units.
  const auto causal = [](int64_t S, int64_t T, int64_t D) {
    AttentionProblem p = problem(1, 32, S, T, D);
    p.causal = true;
    return p;
  };
  CHECK(has(plan_on("sm_90", problem(1, 32, 512, 512, 128), true), "plain_ping_pong_128_f16"));
  const Plan paired = plan_on("sm_90", causal(512, 512, 128), true);
  CHECK(has(paired, "plain_pairs_128_f16"));
  CHECK(attention_of(paired).grid.x == 256);
  CHECK(has(plan_on("sm_90", causal(512, 512, 80), true), "plain_pairs_96_f16"));
  // One or three work-groups on a unit, work-groups with nearly the same number of keys, another device.
  CHECK(!has(plan_on("sm_90", causal(256, 256, 128), true), "pairs"));
  CHECK(!has(plan_on("sm_90", causal(640, 640, 128), true), "pairs"));
  CHECK(!has(plan_on("sm_90", causal(512, 1032, 128), true), "pairs"));
  CHECK(!has(plan_on("gfx942", causal(512, 512, 128), true), "pairs"));
}

TEST_CASE("attention copies whole vectors beside the work items") {
  // 36 elements are not a multiple of 8: on NVIDIA the kernel that loads arbitrary rows is used.
  CHECK(has(plan_on("sm_90", problem(1, 8, 128, 128, 40), true), "plain_64_f16"));
  CHECK(std::string(attention_of(plan_on("sm_90", problem(1, 8, 128, 128, 36), true)).kernel) ==
        "fused_attention_64_f16");
  CHECK(has(plan_on("gfx942", problem(1, 8, 128, 128, 36), true), "plain_64_f16"));
  // K without elements has no vector that could be read.
  AttentionProblem empty = problem(1, 8, 128, 128, 64);
  empty.D = 0;
  CHECK(std::string(attention_of(plan_on("sm_90", empty, true)).kernel) == "fused_attention_64_f16");
}

TEST_CASE("attention reads keys of few rows with one work group a unit") {
  // 128 heads on 132 units: splits would only add a merge.
  CHECK(plan_on("sm_90", problem(8, 16, 1, 16384, 128), true).launches.size() == 1);
  CHECK(attention_of(plan_on("sm_90", problem(1, 16, 1, 16384, 128), true)).grid.x == 16 * 8);
  CHECK(attention_of(plan_on("sm_90", problem(1, 16, 4, 16384, 128), true)).grid.x == 16 * 8);
}

TEST_CASE("attention work groups cover all rows") {
  for (const Architecture& arch : kArchitectures) {
    for (const int64_t D : {64, 128, 256}) {
      for (const bool half : {false, true}) {
        const bool matrix = half ? arch.matrix != hip::Matrix::kNone : arch.matrix_f32;
        const DeviceFacts facts = typical_facts(arch.name);
        for (const AttentionRows rows :
             {AttentionRows::kFew, AttentionRows::kMany, AttentionRows::kPingPong}) {
          const bool copies = arch.matrix == hip::Matrix::kMma;
          const int element = half ? 2 : 4;
          const bool has_many =
              hip::attention_has_many(matrix, arch.wave, copies, static_cast<int>(D), true, element);
          if (rows == AttentionRows::kMany && !has_many) continue;
          if (rows == AttentionRows::kPingPong &&
              !hip::attention_has_ping_pong(matrix, copies, static_cast<int>(D), true, element))
            continue;
          // No splits: as many heads as there are compute units.
          const AttentionProblem p = problem(1, facts.compute_units, 1000, 70, D);
          const hip::AttentionShape shape = hip::attention_shape(matrix, arch.wave, kernel_lds(arch),
                                                                 static_cast<int>(D), element, true, rows);
          const Plan plan = fused_attention_plan(p, half, true, facts, rows);
          CHECK(plan.launches.size() == 1);
          CHECK(plan.workspace.empty());
          const Launch& launch = plan.launches[0];
          CHECK(launch.grid.x == p.H * divide_up(p.S, shape.block_rows()));
          CHECK(launch.block == static_cast<uint32_t>(shape.all_waves() * arch.wave));
          CHECK(launch.block <= 256);
          const int lds = shape.lds_bytes(matrix, copies, matrix && copies, element);
          CHECK(lds <= arch.lds_bytes);
          CHECK((!copies || launch.lds == static_cast<uint32_t>(lds)));
        }
      }
    }
  }
}

TEST_CASE("attention has no kernel that needs scratch memory on GCN") {
  const AttentionProblem p = problem(8, 16, 4096, 4096, 128);
  CHECK(std::string(attention_of(plan_on("gfx1030", p, false)).kernel) ==
        "fused_attention_plain_many_128_f32");
  CHECK(std::string(attention_of(plan_on("gfx900", p, false)).kernel) == "fused_attention_plain_128_f32");
  const AttentionProblem narrow = problem(8, 16, 4096, 4096, 64);
  CHECK(std::string(attention_of(plan_on("gfx900", narrow, false)).kernel) ==
        "fused_attention_plain_many_64_f32");
}

TEST_CASE("attention splits the keys when there are few rows") {
  const DeviceFacts facts = typical_facts("gfx942");
  const hip::AttentionShape shape = hip::attention_shape(true, 64, 65536, 128, 2, true, AttentionRows::kFew);
  for (const int64_t S : {1, 16}) {  // by the kernel for few rows, and by the one for whole blocks
    const AttentionProblem p = problem(1, 8, S, 4096, 128);
    const Plan plan = plan_on("gfx942", p, true);
    CHECK(plan.launches.size() == 2);
    CHECK(has(plan, "combine"));
    const Launch& launch = attention_of(plan);
    CHECK((std::string(launch.kernel) == "fused_attention_few_one_128_f16") == (S == 1));
    const auto splits = launch.grid.x / 8;
    CHECK(splits > 1);
    CHECK(launch.grid.x == 8 * splits);
    // Splits of whole blocks of keys that together cover all keys; none is empty.
    const auto sizes = sizes_of(launch);
    CHECK(sizes.T == 4096);
    CHECK(sizes.split_keys % shape.keys == 0);
    CHECK(int64_t{sizes.split_keys} * splits >= p.T);
    CHECK(int64_t{sizes.split_keys} * (splits - 1) < p.T);
    // The unnormalized O of each split, and two values for each row.
    const int64_t rows = S == 1 ? hip::kAttentionFewRows : shape.block_rows();
    const int64_t partial_rows = int64_t{8} * splits * rows;
    CHECK(plan.workspace == std::vector<int64_t>({partial_rows * 128 * 4, partial_rows * 2 * 4}));
  }
  // Few keys are not split, and neither are problems that fill the device.
  CHECK(plan_on("gfx942", problem(1, 8, 1, 64, 128), true).launches.size() == 1);
  CHECK(plan_on("gfx942", problem(facts.compute_units, 3, 1, 4096, 128), true).launches.size() == 1);
}

TEST_CASE("a decoder's launches fill the device whatever the lengths are") {
  for (const char* arch : {"sm_90", "gfx942", "gfx1100"}) {
    const DeviceFacts facts = typical_facts(arch);
    AttentionProblem p = problem(1, 32, 1, 131072, 128);
    p.group = 4;
    p.k = p.v = {8 * p.T * p.D, p.T * p.D, p.D, 1};
    p.has_seqlens_k = true;
    const Plan plan = plan_on(arch, p, true);
    CHECK(plan.launches.size() == 2);
    const Launch& launch = attention_of(plan);
    CHECK(std::string(launch.kernel) == "fused_attention_few_128_f16");
    // One more split of the 8 key heads would not fit.
    CHECK(launch.grid.x + 8 > static_cast<uint32_t>(facts.compute_units));
    // A window needs as many work-groups as its keys, not as the buffer.
    p.window = true;
    p.left = 1023;
    CHECK(attention_of(plan_on(arch, p, true)).grid.x <= 8 * 1024 / 64);
  }
}

TEST_CASE("attention looks for values that are not finite only where they matter") {
  AttentionProblem p = problem(2, 1000, 64, 1100, 64);
  CHECK(!has(plan_on("gfx1100", p, true), "nonfinite"));
  p.guard = true;
  Plan plan = plan_on("gfx1100", p, true);
  CHECK(plan.launches.size() == 2);
  CHECK(std::string(plan.launches[0].kernel) == "fused_attention_nonfinite_f16");
  const int64_t parts = divide_up(p.T, hip::kAttentionNonfiniteKeys);
  CHECK(plan.workspace == std::vector<int64_t>({p.B * p.H * parts * p.Dv * 4}));
  CHECK(plan.launches[0].grid.x == p.B * p.H * parts);
  // The kernels with a mask search themselves, unless the keys are split.
  p.has_mask = true;
  CHECK(!has(plan_on("gfx1100", p, true), "nonfinite"));
  p.B = p.H = 1;
  p.S = 64;
  CHECK(has(plan_on("gfx1100", p, true), "nonfinite"));
  p = problem(2, 1000, 64, 1100, 64);
  p.causal = true;
  CHECK(has(plan_on("gfx1100", p, true), "nonfinite"));
  // One query sees every key. A finite mask value gives hidden keys a probability, so they are read.
  p.S = 1;
  CHECK(!has(plan_on("gfx1100", p, true), "nonfinite"));
  p.S = 64;
  p.has_mask = true;
  p.mask_value = -1e4f;
  CHECK(!has(plan_on("gfx1100", p, true), "nonfinite"));
}

TEST_CASE("attention plan of nothing is empty") {
  CHECK(plan_on("gfx1100", problem(0, 8, 64, 64, 64), false).launches.empty());
  CHECK(plan_on("gfx1100", problem(1, 8, 0, 64, 64), false).launches.empty());
  // Without keys O is still written.
  CHECK(plan_on("gfx1100", problem(1, 8, 64, 0, 64), false).launches.size() == 1);
}

TEST_CASE("attention plan refuses sizes that its integers cannot hold") {
  CHECK(refused([] { plan_on("gfx1100", problem(1, 1, 8, 8, 257), true); }));
  CHECK(!refused([] { plan_on("gfx1100", problem(1, 1, 8, 8, 256), true); }));
  CHECK(refused([] { plan_on("gfx1100", problem(1, 1, int64_t{1} << 31, 8, 8), true); }));
  CHECK(refused([] { plan_on("gfx1100", problem(1, 1, 8, int64_t{1} << 31, 8), true); }));
  AttentionProblem p = problem(1, 1, 8, 8, 8);
  p.k.row = int64_t{1} << 31;
  CHECK(refused([&] { plan_on("gfx1100", p, true); }));
  CHECK(refused([] { plan_on("gfx000", problem(1, 1, 8, 8, 8), true); }));
}

TEST_CASE("attention reads vectors only where rows are whole vectors") {
  const auto flags = [](const AttentionProblem& p, bool aligned) {
    const Launch launch = attention_of(fused_attention_plan(p, true, aligned, typical_facts("gfx1100")));
    return launch.arguments<hip::AttentionArgs>().layout.scores.flags &
           (hip::kAttentionVectorQ | hip::kAttentionVectorK | hip::kAttentionVectorV |
            hip::kAttentionVectorO);
  };
  const AttentionProblem p = problem(2, 3, 65, 33, 64);
  CHECK(flags(p, true) ==
        (hip::kAttentionVectorQ | hip::kAttentionVectorK | hip::kAttentionVectorV | hip::kAttentionVectorO));
  CHECK(flags(p, false) == 0);
  CHECK(flags(problem(2, 3, 65, 33, 60), true) == 0);
  AttentionProblem transposed = p;
  transposed.k.row = 1;
  transposed.k.col = 33;
  CHECK((flags(transposed, true) & hip::kAttentionVectorK) == 0);
}

}  // namespace
}  // namespace graphopt::test
