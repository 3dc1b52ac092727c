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

class ExampleNode final : public NodeInGraph {
 public:
  ExampleNode(const char* type, const std::vector<std::string>& reads, const char* makes,
              const std::map<std::string, int64_t>& attributes = {})
      : attributes_(attributes) {
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

  std::optional<Tensor> constant(size_t) const override { return std::nullopt; }
  std::optional<AttributeValue> find(const char* name, AttributeType type) const override {
    const auto found = attributes_.find(name);
    const bool known = type == AttributeType::kInt && found != attributes_.end();
    return known ? std::optional<AttributeValue>(found->second) : std::nullopt;
  }

 private:
  std::map<std::string, int64_t> attributes_;
};

TEST_CASE("claims of the example graph") {
  const std::string shape = "it computes a shape", read = "its output is read on the host",
                    few = "fewer than 2 adjacent nodes, not worth the copies";
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
  CHECK(provider::choose(claims, nodes, {"", {"q", "z", "r", "g"}}, {}) == expected);
}

}  // namespace
}  // namespace graphopt::test
