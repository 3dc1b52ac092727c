// The memory layout of a region's tensors, and the partition of nodes into regions.
#include <algorithm>
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

size_t needed_at(const std::vector<Lifetime>& lifetimes, size_t step) {
  size_t bytes = 0;
  for (const Lifetime& lifetime : lifetimes) {
    if (lifetime.first <= step && step <= lifetime.last) bytes += provider::arena_bytes(lifetime.bytes);
  }
  return bytes;
}

TEST_CASE("tensors with overlapping lifetimes do not overlap in memory") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lifetimes(random() % 40);
    for (Lifetime& lifetime : lifetimes) {
      lifetime.first = random() % 30;
      lifetime.last = lifetime.first + random() % 8;
      lifetime.bytes = random() % 3 == 0 ? 0 : random() % 5000;
    }
    const ArenaLayout layout = provider::lay_out(lifetimes);
    size_t most = 0;
    for (size_t step = 0; step < 40; ++step) most = std::max(most, needed_at(lifetimes, step));
    CHECK(needed_at(lifetimes, layout.peak_step) == most);
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      CHECK(layout.offsets[i] % provider::kArenaAlignment == 0);
      CHECK((lifetimes[i].bytes == 0 || layout.offsets[i] + lifetimes[i].bytes <= layout.bytes));
      for (size_t k = 0; k < i; ++k) {
        if (lifetimes[i].bytes == 0 || lifetimes[k].bytes == 0 || !meet(lifetimes[i], lifetimes[k])) continue;
        CHECK((layout.offsets[i] + lifetimes[i].bytes <= layout.offsets[k] ||
               layout.offsets[k] + lifetimes[k].bytes <= layout.offsets[i]));
      }
    }
  }
}

TEST_CASE("a chain takes two of its tensors") {
  std::vector<Lifetime> lifetimes;
  for (size_t s = 0; s < 20; ++s) lifetimes.push_back({4096, s, s + 1});
  const ArenaLayout layout = provider::lay_out(lifetimes);
  CHECK(layout.bytes == 2 * 4096);
  // A wide tensor in the middle decides the size.
  lifetimes[10].bytes = 1 << 20;
  CHECK((provider::lay_out(lifetimes).peak_step == 10 || provider::lay_out(lifetimes).peak_step == 11));
  CHECK(provider::lay_out({}).bytes == 0);
}

TEST_CASE("blocks come in few sizes") {
  for (const size_t steps : {1, 8, 16}) {
    std::set<size_t> sizes;
    for (size_t bytes = 0; bytes <= 1 << 16; ++bytes) {
      const size_t size = provider::size_class(bytes, 512, steps);
      if (size < bytes || size < 512 || size % 512 != 0 ||
          (bytes > 512 * steps && (size - bytes) * steps >= 2 * bytes)) {
        FAIL("a block of " << size << " bytes for " << bytes << ", in steps of " << steps);
      }
      sizes.insert(size);
    }
    CHECK(sizes.size() <= 8 * steps);
  }
}

// The next power of two exceeds size_t or any device.
TEST_CASE("more bytes than any device has are refused") {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 511, (size_t{1} << 63) + 1, (size_t{1} << 60) + 1}) {
    for (const size_t steps : {1, 8, 16}) {
      CHECK_THROWS_AS(provider::size_class(bytes, 512, steps), gpu::OutOfMemory);
    }
  }
}

using Regions = std::vector<std::vector<size_t>>;

Regions regions(const std::vector<PartitionNode>& nodes, const std::vector<std::string>& outputs = {}) {
  return provider::find_regions(nodes, outputs);
}

PartitionNode member(std::vector<std::string> inputs, std::string output,
                     std::vector<std::string> on_host = {}) {
  return {std::move(inputs), {std::move(output)}, true, false, std::move(on_host)};
}
PartitionNode other(std::vector<std::string> inputs, std::string output) {
  return {std::move(inputs), {std::move(output)}};
}
// Returns a node of shape arithmetic; one without `on_host` inputs is a Shape.
PartitionNode host_node(std::vector<std::string> inputs, std::string output,
                        std::vector<std::string> on_host = {}) {
  return {std::move(inputs), {std::move(output)}, false, true, std::move(on_host)};
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

TEST_CASE("shape arithmetic is computed in the region that reads it") {
  const std::vector<PartitionNode> nodes = {member({"x"}, "a"), host_node({"a"}, "s"),
                                            host_node({"s"}, "t", {"s"}), member({"a", "t"}, "b", {"t"}),
                                            member({"b", "t"}, "c")};
  CHECK((regions(nodes) == Regions{{0, 1, 2, 3, 4}}));
  // ONNX Runtime needs access to graph outputs and to inputs of other nodes.
  CHECK(regions(nodes, {"t"}).empty());
  std::vector<PartitionNode> read = nodes;
  read.push_back(other({"t"}, "o"));
  CHECK(regions(read).empty());
  // t has no reader, but is computed with the region.
  CHECK((regions({member({"x"}, "a"), host_node({"a"}, "s"), member({"a"}, "b"),
                  host_node({"s"}, "t", {"s"})}) == Regions{{0, 1, 2, 3}}));
  CHECK(regions({host_node({"x"}, "s"), host_node({"s"}, "t", {"s"})}).empty());
  // The input of the shape arithmetic is the result of a node outside.
  CHECK(
      (regions({other({"x"}, "o"), member({"x"}, "a"), host_node({"o"}, "t", {"o"}),
                member({"a", "t"}, "b", {"t"}), member({"b"}, "c"), member({"c"}, "d")}) == Regions{{4, 5}}));
}

TEST_CASE("a shape belongs to the region of its later reader") {
  // a -> other -> b, with the shape of x: region 1 computes it.
  CHECK(
      (regions({host_node({"x"}, "s"), host_node({"s"}, "t", {"s"}), member({"x"}, "a"), member({"a"}, "a2"),
                other({"a2"}, "o"), member({"o", "t"}, "b", {"t"})}) == Regions{{2, 3}, {0, 1, 5}}));
  // Both regions read s, so it is in neither.
  CHECK((regions({host_node({"x"}, "s"), member({"x", "s"}, "a", {"s"}), member({"a"}, "a2"),
                  member({"a2"}, "a3"), other({"a3"}, "o"), member({"o", "s"}, "b", {"s"}),
                  member({"b"}, "c"), member({"c"}, "d")}) == Regions{{2, 3}, {6, 7}}));
}

TEST_CASE("lengths of a mask are computed in a separate region") {
  PartitionNode sum = member({"mask"}, "sum"), attention = member({"q", "last"}, "y");
  sum.reduces = true;
  attention.lengths = {"last"};
  const std::vector<PartitionNode> nodes = {member({"ids"}, "q"), sum, member({"sum"}, "last"), attention,
                                            member({"y", "last"}, "z")};
  std::vector<PartitionNode> only = nodes;
  only.back().inputs = {"y"};
  CHECK((regions(only) == Regions{{1, 2}, {0, 3, 4}}));
  // Another node reads the lengths.
  CHECK((regions(nodes) == Regions{{0, 1, 2, 3, 4}}));
  CHECK((regions(only, {"last", "z"}) == Regions{{0, 1, 2, 3, 4}}));
  // The mask is the result of another node.
  std::vector<PartitionNode> computed = only;
  computed[1].inputs = {"q"};
  CHECK((regions(computed) == Regions{{0, 1, 2, 3, 4}}));
  // A given length is only converted.
  std::vector<PartitionNode> given = only;
  given[1].reduces = false;
  CHECK((regions(given) == Regions{{0, 1, 2, 3, 4}}));
}

// After each region is fused to one node, the graph must still be acyclic.
TEST_CASE("regions do not wait for each other") {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const size_t count = 4 + random() % 30;
    std::vector<PartitionNode> nodes(count);
    std::vector<std::vector<size_t>> from(count);
    for (size_t i = 0; i < count; ++i) {
      nodes[i].computed_on_host = random() % 4 == 0;
      nodes[i].member = !nodes[i].computed_on_host && random() % 4 != 0;
      nodes[i].outputs = {std::to_string(i)};
      for (size_t k = 0; k < random() % 3 && i > 0; ++k) {
        from[i].push_back(random() % i);
        nodes[i].inputs.push_back(std::to_string(from[i].back()));
        if (random() % 2 == 0) nodes[i].on_host.push_back(nodes[i].inputs.back());
      }
    }
    const std::string output = std::to_string(count - 1 - random() % 3);
    std::vector<size_t> group(count);
    for (size_t i = 0; i < count; ++i) group[i] = count + i;
    const auto found = regions(nodes, {output});
    std::set<size_t> seen;
    for (size_t r = 0; r < found.size(); ++r) {
      CHECK(found[r].size() > 1);
      CHECK(std::is_sorted(found[r].begin(), found[r].end()));
      for (const size_t i : found[r]) {
        CHECK((nodes[i].member || nodes[i].computed_on_host));
        CHECK(seen.insert(i).second);
        group[i] = r;
      }
    }
    // Shape arithmetic stays in the region of its readers, and host inputs are computed in their region.
    for (size_t i = 0; i < count; ++i) {
      if (group[i] >= count) continue;
      CHECK((!nodes[i].computed_on_host || std::to_string(i) != output));
      for (const std::string& name : nodes[i].on_host) {
        CHECK((nodes[std::stoul(name)].computed_on_host && group[std::stoul(name)] == group[i]));
      }
      for (size_t reader = 0; nodes[i].computed_on_host && reader < count; ++reader) {
        const bool reads = std::count(from[reader].begin(), from[reader].end(), i) > 0;
        CHECK((!reads || group[reader] == group[i]));
      }
    }
    // Topological sort: executes ready groups until there are none.
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
