// Where tensors of a region lie, and which nodes are one.
#include <random>
#include <set>

#include "runtime/provider/arena.h"
#include "runtime/provider/partition.h"
#include "runtime/provider/pool.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using provider::ArenaLayout;
using provider::Lifetime;
using provider::PartitionNode;

bool meet(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

TEST_CASE("tensors that live at once lie apart") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lives(random() % 40);
    for (Lifetime& life : lives) {
      life.first = random() % 30;
      life.last = life.first + random() % 8;
      life.bytes = random() % 3 == 0 ? 0 : random() % 5000;
    }
    const ArenaLayout layout = provider::lay_out(lives);
    for (size_t i = 0; i < lives.size(); ++i) {
      CHECK(layout.offsets[i] % provider::kArenaAlignment == 0);
      CHECK((lives[i].bytes == 0 || layout.offsets[i] + lives[i].bytes <= layout.bytes));
      for (size_t k = 0; k < i; ++k) {
        if (lives[i].bytes == 0 || lives[k].bytes == 0 || !meet(lives[i], lives[k])) continue;
        CHECK((layout.offsets[i] + lives[i].bytes <= layout.offsets[k] ||
               layout.offsets[k] + lives[k].bytes <= layout.offsets[i]));
      }
    }
  }
}

TEST_CASE("a chain takes two of its tensors") {
  std::vector<Lifetime> lives;
  for (size_t s = 0; s < 20; ++s) lives.push_back({4096, s, s + 1});
  const ArenaLayout layout = provider::lay_out(lives);
  CHECK(layout.bytes == 2 * 4096);
  // A wide one in the middle is what the most is needed for.
  lives[10].bytes = 1 << 20;
  CHECK((provider::lay_out(lives).fullest == 10 || provider::lay_out(lives).fullest == 11));
  CHECK(provider::lay_out({}).bytes == 0);
}

TEST_CASE("blocks come in few sizes") {
  for (const size_t steps : {1, 8, 16}) {
    std::set<size_t> sizes;
    for (size_t bytes = 0; bytes <= 1 << 16; ++bytes) {
      const size_t size = provider::few_sizes(bytes, 512, steps);
      if (size < bytes || size < 512 || size % 512 != 0 ||
          (bytes > 512 * steps && (size - bytes) * steps >= 2 * bytes)) {
        FAIL("a block of " << size << " bytes for " << bytes << ", in steps of " << steps);
      }
      sizes.insert(size);
    }
    CHECK(sizes.size() <= 8 * steps);
  }
}

// None of which a power of two holds.
TEST_CASE("more bytes than any device has are refused") {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 511, (size_t{1} << 63) + 1, (size_t{1} << 60) + 1}) {
    for (const size_t steps : {1, 8, 16}) {
      CHECK_THROWS_AS(provider::few_sizes(bytes, 512, steps), gpu::OutOfMemory);
    }
  }
}

std::vector<std::vector<size_t>> regions(const std::vector<PartitionNode>& nodes) {
  return provider::find_regions(nodes);
}

TEST_CASE("a path that leaves a region ends it") {
  // a -> other -> b, and a -> b.
  CHECK(
      (regions(
           {{{"x"}, {"a"}, true}, {{"a"}, {"o"}, false}, {{"a", "o"}, {"b"}, true}, {{"b"}, {"c"}, true}}) ==
       std::vector<std::vector<size_t>>{{2, 3}}));
  CHECK((regions({{{"x"}, {"a"}, true}, {{"a"}, {"b"}, true}, {{"b"}, {"o"}, false}}) ==
         std::vector<std::vector<size_t>>{{0, 1}}));
  CHECK(regions({{{"x"}, {"a"}, true}}).empty());
  CHECK((regions({{{"", "x"}, {"a"}, true}, {{"", "a"}, {"b", ""}, true}}) ==
         std::vector<std::vector<size_t>>{{0, 1}}));
}

// Fused to one node each, the graph must still be one without cycles.
TEST_CASE("regions do not wait for each other") {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const size_t count = 4 + random() % 30;
    std::vector<PartitionNode> nodes(count);
    std::vector<std::vector<size_t>> from(count);
    for (size_t i = 0; i < count; ++i) {
      nodes[i].member = random() % 4 != 0;
      nodes[i].outputs = {std::to_string(i)};
      for (size_t k = 0; k < random() % 3 && i > 0; ++k) {
        from[i].push_back(random() % i);
        nodes[i].inputs.push_back(std::to_string(from[i].back()));
      }
    }
    std::vector<size_t> group(count);
    for (size_t i = 0; i < count; ++i) group[i] = count + i;
    const auto found = regions(nodes);
    std::set<size_t> seen;
    for (size_t r = 0; r < found.size(); ++r) {
      CHECK(found[r].size() > 1);
      CHECK(std::is_sorted(found[r].begin(), found[r].end()));
      for (const size_t i : found[r]) {
        CHECK(nodes[i].member);
        CHECK(seen.insert(i).second);
        group[i] = r;
      }
    }
    // Takes what is ready until nothing is.
    std::set<size_t> done;
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t g = 0; g < 2 * count; ++g) {
        if (done.count(g) > 0) continue;
        bool ready = false, waits = false;
        for (size_t i = 0; i < count; ++i) {
          if (group[i] != g) continue;
          ready = true;
          for (const size_t k : from[i]) waits = waits || (group[k] != g && done.count(group[k]) == 0);
        }
        if (ready && !waits) progress = done.insert(g).second || progress;
      }
    }
    CHECK(done.size() == std::set<size_t>(group.begin(), group.end()).size());
  }
}

}  // namespace
}  // namespace graphopt::test
