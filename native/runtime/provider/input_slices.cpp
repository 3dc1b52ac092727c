#include "runtime/provider/input_slices.h"

#include <algorithm>
#include <optional>
#include <set>

#include "operators/input_slice.h"
#include "operators/kernel_bases.h"

namespace graphopt::provider {
namespace {

using abi::GraphNode;

// An input of a node that is a slice of input 0 of another node.
struct Found {
  InputSlice slice;
  const GraphNode* source = nullptr;
  std::vector<size_t> path;  // the nodes that compute the slice
};

// A node that reads the whole tensors instead of their slices. InputSlice::kAttributes describe the slices.
class SlicingNode final : public NodeInGraph {
 public:
  SlicingNode(const GraphNode& node, std::vector<std::optional<Found>> found)
      : node_(node), found_(std::move(found)) {
    op = node.op;
    name = node.name;
    version = node.version;
    domain_ = node.domain();
    inputs = node.inputs;
    outputs = node.outputs;
    input_names_ = node.input_names();
    output_names_ = node.output_names();
    for (size_t i = 0; i < inputs.size(); ++i) {
      constant_.push_back(node.is_constant(i));
      if (i >= found_.size() || !found_[i]) continue;
      inputs[i] = found_[i]->source->inputs[0];
      input_names_[i] = found_[i]->source->input_names()[0];
      constant_[i] = found_[i]->source->is_constant(0);
    }
  }

  std::optional<Tensor> constant(size_t i) const override {
    return i < found_.size() && found_[i] ? found_[i]->source->constant(0) : node_.constant(i);
  }
  std::optional<AttributeValue> find(const char* key, AttributeType type) const override {
    for (size_t i = 0; i < found_.size(); ++i) {
      if (std::string(key) != InputSlice::kAttributes[i]) continue;
      if (!found_[i] || type != AttributeType::kInts) return std::nullopt;
      const InputSlice& slice = found_[i]->slice;
      std::vector<int64_t> values = {slice.axis, slice.index};
      values.insert(values.end(), slice.axes.begin(), slice.axes.end());
      values.insert(values.end(), slice.shape.begin(), slice.shape.end());
      return values;
    }
    return node_.find(key, type);
  }
  std::optional<Number> find_number(const char* key) const override { return node_.find_number(key); }

 private:
  const GraphNode& node_;
  const std::vector<std::optional<Found>> found_;
};

bool is_op(const GraphNode& node, const char* op) { return node.op == op && node.domain().empty(); }

// Returns the elements of a constant input of integers; nothing if the input is something else.
std::optional<std::vector<int64_t>> integers(const GraphNode& node, size_t i) {
  if (!node.has_input(i) || !node.is_constant(i)) return std::nullopt;
  const std::optional<Tensor> value = node.constant(i);
  if (!value) return std::nullopt;
  const int64_t count = value->shape.elements();
  if (value->type == ElementType::kInt64) {
    const auto* first = value->as<const int64_t>();
    return std::vector<int64_t>(first, first + count);
  }
  if (value->type != ElementType::kInt32) return std::nullopt;
  const auto* first = value->as<const int32_t>();
  return std::vector<int64_t>(first, first + count);
}

// The same for a constant with one element.
std::optional<int64_t> integer(const GraphNode& node, size_t i) {
  const std::optional<std::vector<int64_t>> values = integers(node, i);
  return values && values->size() == 1 ? std::optional(values->front()) : std::nullopt;
}

// The constant arguments of a Slice of one axis with step 1; negative numbers count from the end.
struct Span {
  int64_t axis, start, end;
};
std::optional<Span> span_of_slice(const GraphNode& node) {
  const std::optional<int64_t> start = integer(node, 1), end = integer(node, 2), axis = integer(node, 3);
  if (!start || !end || !axis || (node.has_input(4) && integer(node, 4) != 1)) return std::nullopt;
  return Span{*axis, *start, *end};
}

class InputSliceSearch {
 public:
  explicit InputSliceSearch(const RegionGraph& graph) : graph_(graph), nodes_(graph.nodes()) {}

  // Returns the slice of an input of another node that equals this value; nothing if there is none.
  std::optional<Found> slice_of(const std::string& value) const {
    Found found;
    std::string name = value;
    std::optional<int64_t> squeezed;
    const GraphNode* node = writer(name, found);
    if (node != nullptr && is_op(*node, "Reshape")) return part_of_last_axis(*node, found);
    if (node != nullptr && is_op(*node, "Squeeze")) {
      squeezed = axis_of_squeeze(*node);
      if (!squeezed) return std::nullopt;
      name = node->input_names()[0];
      node = writer(name, found);
    }
    if (node == nullptr || !node->has_input(0) || !node->inputs[0].shape) return std::nullopt;
    const auto rank = static_cast<int64_t>(node->inputs[0].shape->rank());
    const auto selected = squeezed ? part_of_size_one(*node, name) : index_of_gather(*node);
    if (rank < 3 || !selected) return std::nullopt;
    const auto positive = [&](int64_t axis) { return axis < 0 ? axis + rank : axis; };
    found.slice.axis = positive(selected->first);
    found.slice.index = selected->second;
    if (squeezed && positive(*squeezed) != found.slice.axis) return std::nullopt;
    for (int64_t i = 0; i < rank; ++i) {
      if (i != found.slice.axis) found.slice.axes.push_back(i);
    }
    found.source = node;
    found.slice.shape.assign(static_cast<size_t>(rank), 0);
    if (!is_last_kept(found.slice)) return std::nullopt;
    return before_transpose(found).value_or(found);
  }

  // Returns the nodes of `path` whose results only `inputs` and other returned nodes read.
  std::set<size_t> unused(const std::set<size_t>& path,
                          const std::set<std::pair<size_t, size_t>>& inputs) const {
    std::set<size_t> found;
    for (auto at = path.rbegin(); at != path.rend(); ++at) {
      const std::vector<std::string>& names = nodes_[*at].output_names();
      const bool is_unused = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
        const std::vector<size_t>& readers = graph_.readers(name);
        return !graph_.is_output(name) && std::all_of(readers.begin(), readers.end(), [&](size_t reader) {
          return found.count(reader) > 0 || reads_only_as(inputs, reader, name);
        });
      });
      if (is_unused) found.insert(*at);
    }
    return found;
  }

 private:
  // Returns whether all inputs of a node that read a value are among `inputs`.
  bool reads_only_as(const std::set<std::pair<size_t, size_t>>& inputs, size_t node,
                     const std::string& value) const {
    const std::vector<std::string>& names = nodes_[node].input_names();
    for (size_t k = 0; k < names.size(); ++k) {
      if (names[k] == value && inputs.count({node, k}) == 0) return false;
    }
    return true;
  }

  // Returns the node that writes a value, and adds it to the path; null if the region does not write the value.
  const GraphNode* writer(const std::string& value, Found& found) const {
    const std::optional<size_t> at = graph_.writer(value);
    if (!at) return nullptr;
    found.path.push_back(*at);
    return &nodes_[*at];
  }

  // Returns true if the slice keeps the last axis of the tensor as its last axis, along which kernels read vectors.
  static bool is_last_kept(const InputSlice& slice) {
    return slice.axes.back() == static_cast<int64_t>(slice.axes.size());
  }

  // Returns the same slice of the input of a Transpose; nothing if there is no Transpose, or if it moves the last axis.
  std::optional<Found> before_transpose(Found found) const {
    const GraphNode* transpose = writer(found.source->input_names()[0], found);
    if (transpose == nullptr || !is_op(*transpose, "Transpose")) return std::nullopt;
    const std::vector<int64_t> perm = transpose->get_ints("perm", {});
    if (perm.size() != found.slice.axes.size() + 1 || !is_permutation(perm)) return std::nullopt;
    found.slice.axis = perm[static_cast<size_t>(found.slice.axis)];
    for (int64_t& axis : found.slice.axes) axis = perm[static_cast<size_t>(axis)];
    found.source = transpose;
    return is_last_kept(found.slice) ? std::optional(found) : std::nullopt;
  }

  // Returns the slice for a Reshape that splits the last axis of a part of a tensor. The tensor's last axis must be
  // known to consist of parts of this size.
  std::optional<Found> part_of_last_axis(const GraphNode& reshape, Found found) const {
    const std::optional<std::vector<int64_t>> target = integers(reshape, 1);
    const GraphNode* node = &reshape;
    std::string name;
    while (node != nullptr && is_op(*node, "Reshape")) {
      name = node->input_names()[0];
      node = writer(name, found);
    }
    if (node == nullptr || !target) return std::nullopt;
    const auto part = part_of_axis(*node, name);
    if (!part) return std::nullopt;
    const auto& [index, parts, size] = *part;
    // The last axes of the target that together have the part's size.
    size_t first = target->size();
    int64_t product = 1;
    while (first > 0 && (*target)[first - 1] > 0 && product < size) product *= (*target)[--first];
    const auto others = target->begin() + static_cast<ptrdiff_t>(first);
    if (product != size || first == target->size() || std::find(target->begin(), others, 0) != others) {
      return std::nullopt;
    }
    found.slice.axis = static_cast<int64_t>(first);
    found.slice.index = index;
    found.slice.shape = *target;
    found.slice.shape.insert(found.slice.shape.begin() + static_cast<ptrdiff_t>(first), parts);
    for (size_t i = 0; i <= target->size(); ++i) {
      if (i != first) found.slice.axes.push_back(static_cast<int64_t>(i));
    }
    found.source = node;
    return found;
  }

  // One of several parts of equal size along an axis.
  struct Part {
    int64_t index, parts, size;
  };
  // Returns the part of the last axis that a Split or Slice returns.
  static std::optional<Part> part_of_axis(const GraphNode& node, const std::string& output) {
    if (!node.has_input(0) || !node.inputs[0].shape || node.inputs[0].shape->rank() == 0) return std::nullopt;
    const Shape& shape = *node.inputs[0].shape;
    const auto last = static_cast<int64_t>(shape.rank()) - 1;
    const int64_t all = shape[shape.rank() - 1];
    const auto is_last = [&](int64_t axis) { return axis == last || axis == -1; };
    if (is_op(node, "Slice")) {
      const std::optional<Span> span = span_of_slice(node);
      if (!span || !is_last(span->axis) || span->start < 0) return std::nullopt;
      const int64_t size = std::min(span->end, all) - span->start;
      if (size <= 0 || span->start % size != 0 || all % size != 0) return std::nullopt;
      return Part{span->start / size, all / size, size};
    }
    if (!is_op(node, "Split") || !is_last(node.get_int("axis", 0))) return std::nullopt;
    const std::vector<std::string>& names = node.output_names();
    const auto parts = static_cast<int64_t>(names.size());
    for (const Value& part : node.outputs) {
      if (!part.shape || part.shape->rank() != shape.rank() || all <= 0) return std::nullopt;
      if ((*part.shape)[shape.rank() - 1] * parts != all) return std::nullopt;
    }
    const auto which = std::find(names.begin(), names.end(), output) - names.begin();
    return Part{static_cast<int64_t>(which), parts, all / parts};
  }

  static std::optional<int64_t> axis_of_squeeze(const GraphNode& node) {
    if (node.has_input(1)) return integer(node, 1);
    const std::vector<int64_t> axes = node.get_ints("axes", {});
    return axes.size() == 1 ? std::optional(axes[0]) : std::nullopt;
  }

  // Returns the axis and the index of a Gather of one index.
  static std::optional<std::pair<int64_t, int64_t>> index_of_gather(const GraphNode& node) {
    if (!is_op(node, "Gather") || !node.has_input(1) || !node.is_constant(1)) return std::nullopt;
    const std::optional<Tensor> indices = node.constant(1);
    const std::optional<int64_t> index = integer(node, 1);
    if (!index || indices->shape.rank() != 0) return std::nullopt;
    return std::pair(node.get_int("axis", 0), *index);
  }

  // Returns the axis of a Slice or Split and the index of its output, if the output has size 1 along this axis.
  static std::optional<std::pair<int64_t, int64_t>> part_of_size_one(const GraphNode& node,
                                                                     const std::string& output) {
    if (is_op(node, "Slice")) {
      const std::optional<Span> span = span_of_slice(node);
      if (!span || span->end != span->start + 1 || span->end == 0) return std::nullopt;
      return std::pair(span->axis, span->start);
    }
    if (!is_op(node, "Split")) return std::nullopt;
    const std::vector<std::string>& names = node.output_names();
    const auto which = std::find(names.begin(), names.end(), output) - names.begin();
    const int64_t axis = node.get_int("axis", 0);
    for (const Value& part : node.outputs) {
      if (!part.present || !part.shape || part.shape->rank() == 0) return std::nullopt;
      const auto rank = static_cast<int64_t>(part.shape->rank());
      if ((*part.shape)[static_cast<size_t>(axis < 0 ? axis + rank : axis)] != 1) return std::nullopt;
    }
    return std::pair(axis, static_cast<int64_t>(which));
  }

  const RegionGraph& graph_;
  const std::vector<GraphNode>& nodes_;
};

}  // namespace

std::vector<Replacement> find_input_slices(const RegionGraph& graph,
                                           const std::function<size_t(const NodeInGraph&)>& slices) {
  const std::vector<GraphNode>& nodes = graph.nodes();
  const InputSliceSearch search(graph);
  std::vector<Replacement> replacements;
  std::set<size_t> path;
  std::set<std::pair<size_t, size_t>> inputs;
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::vector<std::optional<Found>> found(std::min(slices(nodes[i]), InputSlice::kInputs));
    bool any = false;
    for (size_t k = 0; k < found.size(); ++k) {
      found[k] = search.slice_of(nodes[i].input_names()[k]);
      if (!found[k]) continue;
      any = true;
      path.insert(found[k]->path.begin(), found[k]->path.end());
      inputs.emplace(i, k);
    }
    if (any) replacements.push_back({{i}, std::make_unique<SlicingNode>(nodes[i], std::move(found))});
  }
  if (replacements.empty()) return replacements;
  // The first replacement also removes the unused nodes.
  const std::set<size_t> unused = search.unused(path, inputs);
  replacements.front().nodes.insert(replacements.front().nodes.begin(), unused.begin(), unused.end());
  return replacements;
}

}  // namespace graphopt::provider
