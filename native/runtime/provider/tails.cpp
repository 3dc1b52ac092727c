#include "runtime/provider/tails.h"

#include <limits>
#include <optional>

#include "blocks/half.h"
#include "operators/elementwise/activation/op.h"
#include "runtime/provider/sizes.h"

namespace graphopt::provider {
namespace {

using abi::GraphNode;

// Returns the value of a constant input with one element.
std::optional<float> number(const GraphNode& node, size_t i) {
  const auto value = node.constant(i);
  if (!value || value->shape.elements() != 1) return std::nullopt;
  if (value->type == ElementType::kFloat) return *value->as<float>();
  if (value->type == ElementType::kHalf) return static_cast<float>(*value->as<half>());
  return std::nullopt;
}

// Returns a limit of Clip; nothing if it is unknown.
std::optional<float> limit(const GraphNode& node, size_t i, float absent) {
  return node.has_input(i) ? number(node, i) : absent;
}

constexpr size_t kUnknown = static_cast<size_t>(-1);

// Returns the rank of PRelu's slopes; kUnknown if the shape of X or of the slopes is unknown.
size_t slope_axes(const GraphNode& node) {
  const bool known = node.has_input(1) && node.inputs[0].shape && node.inputs[1].shape;
  return known ? node.inputs[1].shape->rank() : kUnknown;
}

}  // namespace

std::optional<Activation> activation_of(const GraphNode& node) {
  using A = ActivationKind;
  if (node.domain() == kDomain) {
    for (const ActivationOp& op : ActivationOp::all()) {
      if (node.op == op.name()) return Activation{op.kind()};
    }
  }
  if (!node.domain().empty()) return std::nullopt;
  if (node.op == "Relu") return Activation{A::kRelu};
  if (node.op == "LeakyRelu") return Activation{A::kLeakyRelu, node.get_float("alpha", 0.01f)};
  if (node.op == "Sigmoid") return Activation{A::kSigmoid};
  if (node.op == "Tanh") return Activation{A::kTanh};
  if (node.op == "HardSwish") return Activation{A::kHardSwish};
  if (node.op == "Gelu") {
    return Activation{node.get_string("approximate", "none") == "tanh" ? A::kGeluTanh : A::kGelu};
  }
  if (node.op == "HardSigmoid") {
    return Activation{A::kHardSigmoid, node.get_float("alpha", 0.2f), node.get_float("beta", 0.5f)};
  }
  if (node.op == "Clip") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const auto low = limit(node, 1, -kInfinity), high = limit(node, 2, kInfinity);
    if (low && high) return Activation{A::kClip, *low, *high};
  }
  if (node.op == "PRelu") {
    const size_t axes = slope_axes(node);
    if (axes == kUnknown || axes > node.inputs[0].shape->rank()) return std::nullopt;
    if (const auto slope = number(node, 1)) return Activation{A::kLeakyRelu, *slope};
  }
  return std::nullopt;
}

namespace {

// Returns true for PRelu of X [N, C, D1.., Dk] with slopes [C, 1.., 1] or [1, C, 1.., 1], one for each channel.
bool has_slope_per_channel(const GraphNode& node) {
  if (node.op != "PRelu" || !node.domain().empty() || node.inputs[0].type != node.inputs[1].type)
    return false;
  const size_t axes = slope_axes(node);
  if (axes == kUnknown) return false;
  const Shape &x = *node.inputs[0].shape, &slope = *node.inputs[1].shape;
  if (x.rank() < 3 || x[1] < 0 || (axes != x.rank() && axes + 1 != x.rank())) return false;
  const size_t channels = axes + 1 - x.rank();
  for (size_t i = 0; i < axes; ++i) {
    if (slope[i] != (i == channels ? x[1] : 1)) return false;
  }
  return true;
}

// Finds one fusion at a time.
class TailSearch {
 public:
  explicit TailSearch(const RegionGraph& graph)
      : graph_(graph), nodes_(graph.nodes()), used_(nodes_.size()), sizes_(nodes_) {}

  std::optional<Fusion> from(size_t head) {
    if (used_[head] || nodes_[head].output_names().size() != 1) return std::nullopt;
    Fusion found;
    found.head = head;
    std::string value = nodes_[head].output_names()[0];
    add_sum(found, value);
    add_activation(found, value);
    if (found.others.empty()) return std::nullopt;
    used_[head] = true;
    for (const size_t i : found.others) used_[i] = true;
    return found;
  }

 private:
  void add_sum(Fusion& found, std::string& value) {
    const std::vector<size_t>& by = graph_.private_readers(value);
    if (by.size() != 1 || used_[by[0]]) return;
    const GraphNode& sum = nodes_[by[0]];
    if (sum.op != "Add" || !sum.domain().empty() || sum.inputs[0].type != sum.inputs[1].type ||
        !sizes_.have_equal_shapes(sum)) {
      return;
    }
    found.sum = by[0];
    found.residual = sum.input_names()[0] == value ? 1 : 0;
    found.tail.has_residual = true;
    found.others.push_back(by[0]);
    value = sum.output_names()[0];
  }

  void add_activation(Fusion& found, std::string& value) {
    const std::vector<size_t>& by = graph_.private_readers(value);
    if (by.size() == 1 && !used_[by[0]]) {
      const GraphNode& node = nodes_[by[0]];
      if (node.input_names()[0] != value) return;
      if (const auto act = activation_of(node)) {
        found.tail.act = *act;
      } else if (has_slope_per_channel(node)) {
        found.tail.has_slopes = true;
        found.prelu = by[0];
      } else {
        return;
      }
      found.others.push_back(by[0]);
      return;
    }
    // x sigmoid(x)
    if (by.size() != 2 || used_[by[0]] || used_[by[1]]) return;
    const GraphNode &gate = nodes_[by[0]], &multiply = nodes_[by[1]];
    if (gate.op != "Sigmoid" || multiply.op != "Mul" || !gate.domain().empty() || !multiply.domain().empty())
      return;
    const std::string& factor = gate.output_names()[0];
    if (graph_.private_readers(factor) != std::vector<size_t>{by[1]}) return;
    found.tail.act.kind = ActivationKind::kSilu;
    found.others.insert(found.others.end(), by.begin(), by.end());
  }

  const RegionGraph& graph_;
  const std::vector<GraphNode>& nodes_;
  std::vector<bool> used_;
  Sizes sizes_;
};

}  // namespace

std::vector<Fusion> find_tails(const RegionGraph& graph,
                               const std::function<bool(const GraphNode&)>& can_fuse_tail) {
  const std::vector<GraphNode>& nodes = graph.nodes();
  TailSearch search(graph);
  std::vector<Fusion> found;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!can_fuse_tail(nodes[i])) continue;
    if (auto fusion = search.from(i)) found.push_back(std::move(*fusion));
  }
  return found;
}

}  // namespace graphopt::provider
