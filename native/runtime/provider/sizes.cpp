#include "runtime/provider/sizes.h"

#include <set>
#include <string_view>

#include "operators/table.h"
#include "operators/window.h"

namespace graphopt::provider {
namespace {

using abi::GraphNode;

bool is_ours(const GraphNode& node, std::string_view base) {
  return node.domain() == kDomain && node.op.compare(0, base.size(), base) == 0;
}

// Returns true if the first output has the shape of the first input.
bool keeps_shape(const GraphNode& node) {
  static const std::set<std::string> kSame = {"BatchNormalization",
                                              "Cast",
                                              "Clip",
                                              "Elu",
                                              "Gelu",
                                              "GroupNormalization",
                                              "HardSigmoid",
                                              "HardSwish",
                                              "Identity",
                                              "LeakyRelu",
                                              "Relu",
                                              "Sigmoid",
                                              "Softplus",
                                              "Tanh",
                                              "InstanceNormalization"};
  if (node.domain().empty()) return kSame.count(node.op) > 0;
  return is_ours(node, "ScaleShift") || is_ours(node, "FusedGroupNorm");
}

bool broadcasts(const GraphNode& node) {
  static const std::set<std::string> kBinary = {"Add", "Div", "Max", "Min", "Mul", "PRelu", "Sub"};
  return node.domain().empty() && kBinary.count(node.op) > 0 && node.input_names().size() == 2;
}

bool is_convolution(const GraphNode& node) {
  if (is_ours(node, "FusedConvTranspose")) return false;
  return (node.domain().empty() && node.op == "Conv") || is_ours(node, "FusedConv") ||
         is_ours(node, "WinogradConv");
}

}  // namespace

Sizes::Sizes(const std::vector<GraphNode>& nodes) {
  for (const GraphNode& node : nodes) {
    if (Dims dims = output(node); !dims.empty()) inferred_[node.output_names()[0]] = std::move(dims);
  }
}

bool Sizes::have_equal_shapes(const GraphNode& node) const {
  const Dims a = input(node, 0);
  return !a.empty() && a == input(node, 1);
}

Sizes::Dims Sizes::input(const GraphNode& node, size_t i) const {
  if (!node.has_input(i) || !node.inputs[i].shape) return {};
  const Shape& shape = *node.inputs[i].shape;
  const std::string& name = node.input_names()[i];
  const auto inferred = inferred_.find(name);
  Dims dims = node.symbols(i);
  for (size_t d = 0; d < shape.rank(); ++d) {
    if (shape[d] >= 0) {
      dims[d] = std::to_string(shape[d]);
    } else if (dims[d].empty()) {
      const bool known = inferred != inferred_.end() && inferred->second.size() == shape.rank();
      dims[d] = known ? inferred->second[d] : "dim " + std::to_string(d) + " of " + name;
    }
  }
  return dims;
}

Sizes::Dims Sizes::output(const GraphNode& node) const {
  Dims x = input(node, 0);
  if (x.empty() || keeps_shape(node)) return x;
  if (broadcasts(node)) {
    Dims y = input(node, 1);
    if (y.size() > x.size()) std::swap(x, y);
    if (y.empty()) return {};
    for (size_t d = 0; d < y.size(); ++d) {
      std::string& to = x[x.size() - y.size() + d];
      if (to == "1") to = y[d];
      if (to != y[d] && y[d] != "1") return {};
    }
    return x;
  }
  const auto& w = node.inputs.size() > 1 ? node.inputs[1].shape : std::optional<Shape>();
  if (!is_convolution(node) || !w || w->rank() != x.size() || x.size() < 3 || (*w)[0] < 0) return {};
  const Window window(node);
  if (window.auto_pad() != "NOTSET") return {};
  try {
    window.check(x.size() - 2, {w->data() + 2, w->data() + w->rank()});
  } catch (const Error&) {
    return {};  // kernel creation reports the error
  }
  x[1] = std::to_string((*w)[0]);
  for (size_t i = 0; i < x.size() - 2; ++i) {
    const Window::Padding pads = window.pads(i);
    const int64_t growth = pads.begin + pads.end - window.span(i, (*w)[2 + i]), stride = window.stride(i);
    if (stride == 1 && growth == -1) continue;
    x[2 + i] = "((" + x[2 + i] + ")+" + std::to_string(growth) + ")/" + std::to_string(stride) + "+1";
  }
  return x;
}

}  // namespace graphopt::provider
