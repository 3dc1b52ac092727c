// Nodes that the provider claims: the example at the top of runtime/provider/claims.cpp.
#include <map>
#include <set>

#include "operators/kernels.h"
#include "runtime/provider/claims.h"
#include "testing.h"

namespace graphopt::test {
namespace {

// Values by name: graph inputs, constants, and results of nodes. -1: any size.
const std::map<std::string, Value>& values() {
  const auto integers = [](const Shape& shape) { return Value{true, ElementType::kInt64, shape}; };
  const auto floats = [](const Shape& shape) { return Value{true, ElementType::kFloat, shape}; };
  static const std::map<std::string, Value> all = {
      {"ids", integers({-1, -1})},
      {"boxes", floats({-1, 2})},
      {"lengths", integers({-1})},
      {"scale", floats({})},
      {"table", floats({1000, 64})},
      {"zero", integers({1})},
      {"one", integers({1})},
      {"width", integers({1})},
      {"e", floats({-1, -1, 64})},
      {"s", integers({2})},
      {"d", floats({2})},
      {"q", floats({-1, 2})},
      {"l", integers({1})},
      {"t", integers({2})},
      {"y", floats({-1, 64})},
      {"k", integers({1})},
      {"z", floats({-1, 64})},
      {"r", floats({})},
      {"g", {true, ElementType::kBool, Shape{-1, -1}}},
  };
  return all;
}
const std::set<std::string> kConstants = {"table", "zero", "one", "width"};

// A node with integer attributes; lists of integers have two equal elements.
class TestNode : public NodeInGraph {
 public:
  std::optional<Tensor> constant(size_t) const override { return std::nullopt; }
  std::optional<AttributeValue> find(const char* name, AttributeType type) const override {
    const auto found = attributes_.find(name);
    if (found == attributes_.end()) return std::nullopt;
    if (type == AttributeType::kInt) return found->second;
    if (type == AttributeType::kInts) return std::vector<int64_t>(2, found->second);
    return std::nullopt;
  }

 protected:
  explicit TestNode(std::map<std::string, int64_t> attributes) : attributes_(std::move(attributes)) {}

 private:
  std::map<std::string, int64_t> attributes_;
};

class ExampleNode final : public TestNode {
 public:
  ExampleNode(const char* type, const std::vector<std::string>& reads, const char* makes,
              std::map<std::string, int64_t> attributes = {})
      : TestNode(std::move(attributes)) {
    op = type;
    version = 13;
    for (const std::string& name : reads) {
      input_names_.push_back(name);
      inputs.push_back(values().at(name));
      constant_.push_back(kConstants.count(name) > 0);
    }
    output_names_ = {makes};
    outputs = {values().at(makes)};
  }
};

TEST_CASE("claims of the example graph") {
  const std::string shape = "it computes a shape", read = "its output is read on the host",
                    few = "fewer than 2 adjacent nodes (min_nodes)";
  const std::vector<std::pair<ExampleNode, std::string>> graph = {
      {{"Gather", {"table", "ids"}, "e"}, ""},  {{"Shape", {"ids"}, "s"}, ""},
      {{"Cast", {"s"}, "d", {{"to", 1}}}, ""},  {{"Div", {"boxes", "d"}, "q"}, ""},
      {{"Gather", {"s", "one"}, "l"}, shape},   {{"Concat", {"l", "width"}, "t", {{"axis", 0}}}, shape},
      {{"Reshape", {"e", "t"}, "y"}, ""},       {{"ReduceMax", {"lengths"}, "k", {{"keepdims", 1}}}, read},
      {{"Slice", {"y", "zero", "k"}, "z"}, ""}, {{"Sqrt", {"scale"}, "r"}, few},
      {{"Equal", {"ids", "ids"}, "g"}, ""},
  };
  std::vector<const NodeInGraph*> nodes;
  std::vector<std::string> expected;
  for (const auto& [node, refusal] : graph) {
    nodes.push_back(&node);
    expected.push_back(refusal);
  }
  const provider::Claims claims(provider_claims());
  CHECK(provider::choose(claims, nodes, {"", {"q", "z", "r", "g"}}, {2, {}}) == expected);
}

// The only node of a graph: its inputs are inputs of the graph or constants.
class LoneNode final : public TestNode {
 public:
  LoneNode(const char* domain, const char* type, int since, std::vector<Value> reads,
           std::vector<Value> makes, std::map<std::string, int64_t> attributes = {})
      : TestNode(std::move(attributes)) {
    op = type;
    domain_ = domain;
    version = since;
    inputs = std::move(reads);
    outputs = std::move(makes);
    for (size_t i = 0; i < inputs.size(); ++i) {
      input_names_.push_back(inputs[i].present ? "x" + std::to_string(i) : "");
      constant_.push_back(false);
    }
    for (size_t i = 0; i < outputs.size(); ++i) output_names_.push_back("y" + std::to_string(i));
  }
  LoneNode&& with_constants(size_t first) && {
    for (size_t i = first; i < constant_.size(); ++i) constant_[i] = true;
    return std::move(*this);
  }
};

std::string refusal(const LoneNode& node, size_t min_nodes = 0) {
  const provider::Claims claims(provider_claims());
  CHECK(claims.refuse(node).empty());
  return provider::choose(claims, {&node}, {"", node.output_names()}, {min_nodes, {}})[0];
}

TEST_CASE("a node is on the device if its estimated time there, with copies, is below its time on the CPU") {
  const auto floats = [](const Shape& shape) { return Value{true, ElementType::kFloat, shape}; };
  const auto halves = [](const Shape& shape) { return Value{true, ElementType::kHalf, shape}; };
  const Value ints = {true, ElementType::kInt32, Shape{1}}, none;
  // 1.8 G multiply-adds and 26 MB of copies.
  const Value image = floats({1, 64, 224, 224});
  CHECK(refusal(LoneNode("", "Conv", 11, {image, floats({64, 64, 3, 3})}, {image}).with_constants(1)) == "");
  // The copies move as many bytes as the node itself.
  const Value million = floats({1000, 1000});
  const std::string sqrt = refusal({"", "Sqrt", 13, {million}, {million}});
  CHECK(sqrt == "the node takes an estimated 741 us on the device with copies, 269 us on the CPU");
  CHECK(refusal({"", "Sqrt", 13, {million}, {million}}, 1) == "");
  CHECK(refusal({"", "Sqrt", 13, {million}, {million}}, 2) == "fewer than 2 adjacent nodes (min_nodes)");
  // The query of one token attends to 131,072 or 16 keys of a cache that is kept on the device.
  const auto attention = [&](int64_t keys) {
    const Value q = halves({1, 1, 4096}), k = halves({1, 1, 1024}), cache = halves({1, 8, keys, 128});
    return LoneNode("com.microsoft", "GroupQueryAttention", 1, {q, k, k, cache, cache, ints, ints},
                    {q, cache, cache}, {{"num_heads", 32}, {"kv_num_heads", 8}});
  };
  CHECK(refusal(attention(131072)) == "");
  CHECK(refusal(attention(16)) != "");
  // An unknown dim counts as 128, an unknown first dim as 1.
  const auto product = [&](int64_t k) {
    const Value x = floats({-1, -1, k});
    return LoneNode("", "MatMul", 13, {x, floats({k, k})}, {x}).with_constants(1);
  };
  CHECK(refusal(product(2048)) == "");
  CHECK(refusal(product(64)) != "");
}

// Node `number` of a chain: reads "v<number>" and writes "v<number + 1>".
class ChainNode final : public TestNode {
 public:
  ChainNode(const char* type, const Value& value, size_t number) : TestNode({}) {
    op = type;
    version = 13;
    inputs = outputs = {value};
    input_names_ = {"v" + std::to_string(number)};
    output_names_ = {"v" + std::to_string(number + 1)};
    constant_ = {false};
  }
};

// Returns the refusal of the first node of a chain that is a subgraph of a node.
std::string refusal_in_subgraph(const Value& value, size_t count, size_t min_nodes = 0) {
  std::vector<ChainNode> chain;
  for (size_t i = 0; i < count; ++i) chain.emplace_back("Sqrt", value, i);
  std::vector<const NodeInGraph*> nodes;
  for (const ChainNode& node : chain) nodes.push_back(&node);
  const provider::Claims claims(provider_claims());
  return provider::choose(claims, nodes, {"Loop", {chain.back().output_names()[0]}}, {min_nodes, {}})[0];
}

TEST_CASE("a subgraph is on the device unless the CPU is faster even with copies of its inputs and outputs") {
  const Value number = {true, ElementType::kFloat, Shape{1}};
  const Value million = {true, ElementType::kFloat, Shape{1000, 1000}};
  CHECK(refusal_in_subgraph(number, 10) == "");
  CHECK(refusal_in_subgraph(number, 20) ==
        "the subgraph takes an estimated 80 us on the device, 70 us on the CPU with copies");
  CHECK(refusal_in_subgraph(number, 20, 1) == "");
  CHECK(refusal_in_subgraph(million, 20) == "");
}

}  // namespace
}  // namespace graphopt::test
