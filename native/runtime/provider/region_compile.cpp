// Compiles a region: groups its nodes into steps, chooses layouts, creates kernels and copies constants.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "device/libraries/libraries.h"
#include "operators/layout.h"
#include "operators/movement/gather/op.h"
#include "runtime/abi/error.h"
#include "runtime/provider/arena.h"
#include "runtime/provider/input_slices.h"
#include "runtime/provider/named_values.h"
#include "runtime/provider/packed_matmuls.h"
#include "runtime/provider/quantized_groups.h"
#include "runtime/provider/region.h"
#include "runtime/provider/siblings.h"
#include "runtime/provider/tails.h"

namespace graphopt::provider {
namespace {

using abi::check;
using abi::GraphNode;

// Constants share blocks, because device memory is allocated in large pages.
constexpr size_t kConstantBlock = size_t{32} << 20;

// A node of a region during the creation of its kernel. Constants are in the memory where the kernel reads them.
class RegionNode final : public Node {
 public:
  RegionNode(const NodeInGraph& node, std::vector<std::optional<Tensor>> constants)
      : node_(node), constants_(std::move(constants)) {
    op = node.op;
    name = node.name;
    version = node.version;
    inputs = node.inputs;
    outputs = node.outputs;
    for (auto* values : {&inputs, &outputs}) {
      for (Value& value : *values) {
        // The runtime reports an unknown rank as 0.
        if (value.shape && value.shape->rank() == 0) value.shape.reset();
      }
    }
  }
  std::optional<Tensor> constant(size_t i) const override {
    return i < constants_.size() ? constants_[i] : std::nullopt;
  }
  std::optional<AttributeValue> find(const char* key, AttributeType type) const override {
    if (op == "Gather" && type == AttributeType::kInt && std::string_view(key) == kConstantIndex)
      return constant_index();
    return node_.find(key, type);
  }
  std::optional<Number> find_number(const char* key) const override { return node_.find_number(key); }

 private:
  // Returns the index of a Gather of one constant index. The kernel reads the constant on the device.
  std::optional<AttributeValue> constant_index() const {
    const std::optional<Tensor> index = node_.is_constant(1) ? node_.constant(1) : std::nullopt;
    if (!index || index->shape.elements() != 1) return std::nullopt;
    return AttributeValue(index->type == ElementType::kInt32 ? int64_t{*index->as<const int32_t>()}
                                                             : *index->as<const int64_t>());
  }

  const NodeInGraph& node_;
  std::vector<std::optional<Tensor>> constants_;
};

}  // namespace

// The groups of nodes that form one step.
struct Region::Groups {
  std::vector<Fusion> fusions;
  // For each node, the fusion that ends with this node; null if there is none.
  std::vector<const Fusion*> fusion_at;
  std::map<size_t, Siblings> siblings;                      // by the position of the first sibling
  std::map<size_t, std::unique_ptr<NodeInGraph>> replaced;  // by the position of the last replaced node
  std::vector<bool> covered;                                // nodes that are part of another node's step
};

// Channels-last layout is used with cuDNN and, without a vendor library, with the built-in GEMM kernels for matrix
// units, which compute in this layout. Both were faster so on an H200. With MIOpen it is off, because it has not been
// measured on AMD GPUs (docs/provider.md).
bool Region::wants_channels_last(const std::vector<GraphNode>& nodes, const Groups& groups) const {
  const auto prefers_channels_last = [&](const NodeInGraph& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && !node.inputs.empty() && has_layouts(node.inputs[0]) &&
           op->layout_of(node) == Layout::kLast;
  };
  const bool any = std::any_of(nodes.begin(), nodes.end(), prefers_channels_last) ||
                   std::any_of(groups.replaced.begin(), groups.replaced.end(),
                               [&](const auto& replaced) { return prefers_channels_last(*replaced.second); });
  if (options_.implementation >= 0 || !any) return false;
  if (options_.channels_last) return *options_.channels_last;
  const hip::Matrix matrix = gpu::architecture(device_.facts().arch).matrix;
  if (gpu::dnn(device_, options_.libraries.get()).library != nullptr) return matrix == hip::Matrix::kMma;
  return matrix != hip::Matrix::kNone && matrix != hip::Matrix::kEmulated;
}

Region::Groups Region::group(const std::vector<GraphNode>& nodes,
                             const std::vector<std::string>& outputs) const {
  const RegionGraph graph(nodes, outputs);
  Groups groups;
  groups.fusion_at.resize(nodes.size());
  groups.covered.resize(nodes.size());
  const auto has_kernel = [this](const NodeInGraph& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && op->refuse(node).empty();
  };
  const auto replace = [&](std::vector<Replacement> replacements) {
    for (Replacement& replacement : replacements) {
      count_region(RegionEvent::kFused);
      const size_t position = replacement.nodes.back();
      for (const size_t i : replacement.nodes) groups.covered[i] = i != position;
      groups.replaced.emplace(position, std::move(replacement.node));
    }
  };
  replace(find_packed_matmuls(graph, has_kernel));
  // Without matrix units, 8-bit matrix multiplications are slower than float ones.
  if (gpu::architecture(device_.facts().arch).matrix != hip::Matrix::kNone) {
    replace(find_quantized_groups(graph, has_kernel));
  }
  replace(find_input_slices(graph, [this](const NodeInGraph& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr ? op->slices : 0;
  }));
  const auto can_fuse_tail = [&](const GraphNode& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && op->create_with_tail &&
           !groups.covered[static_cast<size_t>(&node - nodes.data())];
  };
  groups.fusions = find_tails(graph, can_fuse_tail);
  for (const Fusion& fusion : groups.fusions) {
    count_region(RegionEvent::kFused);
    groups.covered[fusion.head] = true;
    for (const size_t i : fusion.others) groups.covered[i] = true;
    groups.fusion_at[fusion.others.back()] = &fusion;
  }
  const auto can_merge_siblings = [&](const GraphNode& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && op->create_siblings && options_.implementation < 0;
  };
  for (Siblings& found : find_siblings(graph, can_merge_siblings)) {
    count_region(RegionEvent::kFused);
    for (size_t k = 1; k < found.size(); ++k) groups.covered[found[k]] = true;
    groups.siblings.emplace(found.front(), std::move(found));
  }
  return groups;
}

// Returns the source of the step that replaces node i.
StepSource Region::source_of(const std::vector<GraphNode>& nodes, const Groups& groups, size_t i) const {
  const Fusion* fusion = groups.fusion_at[i];
  const auto replaced = groups.replaced.find(i);
  const NodeInGraph* first = &nodes[fusion != nullptr ? fusion->head : i];
  const NodeInGraph& node = replaced != groups.replaced.end() ? *replaced->second : *first;
  const auto siblings = groups.siblings.find(i);
  StepSource source;
  source.node = &node;
  source.op = registry_.registration(node);
  source.members = siblings != groups.siblings.end() ? siblings->second : Siblings{i};
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    source.inputs.emplace_back(&node, k);
    for (size_t m = 1; k > 0 && m < source.members.size(); ++m) {
      source.inputs.emplace_back(&nodes[source.members[m]], k);
    }
  }
  if (fusion != nullptr) {
    source.tail = fusion->tail;
    if (fusion->tail.has_residual || fusion->tail.has_slopes) {
      source.inputs.resize(source.op->residual, {nullptr, 0});
    }
    if (fusion->tail.has_residual) source.inputs.emplace_back(&nodes[fusion->sum], fusion->residual);
    if (fusion->tail.has_slopes) source.inputs.emplace_back(&nodes[fusion->prelu], 1);
  }
  return source;
}

// Returns true for a value with a name in `computed_on_host` that is not an output of the region and whose inputs are
// known on the host. (Shape and Size need only the shape of their input.) The name alone does not decide, because
// subgraphs of one If may have different values with the same name.
bool Region::is_computed_on_host(const NodeInGraph& node, const NamedValues& known,
                                 const std::set<std::string>& computed_on_host) const {
  const Registration* op = registry_.claims().find_host_kernel(node);
  const std::string& name = node.output_names()[0];
  if (op == nullptr || computed_on_host.count(name) == 0 || known.is_output(name)) return false;
  for (size_t i = 0; i < node.inputs.size() && op->where == Where::kPlanning; ++i) {
    if (node.has_input(i) && !node.is_constant(i) && !known.is_computed_on_host(node.input_names()[i]))
      return false;
  }
  return true;
}

// Creates a step without its kernel, which needs the constants (create_kernels).
Step Region::step_of(const StepSource& source, NamedValues& known, std::vector<StepSource>& sources) {
  const Registration& op = *source.op;
  Step step;
  step.op = source.node->op;
  step.name = source.node->name;
  step.reuse = op.reuse;
  step.in_place = op.in_place;
  step.keeps_plan = op.keeps_plan;
  step.siblings = source.members.size() > 1;
  step.computed_on_host = source.computed_on_host;
  if (!op.implementations.names.empty()) step.only = options_.implementation;
  for (const auto& load : op.implementations.loads) load(device_, options_.libraries.get());
  for (const auto& [of, k] : source.inputs) {
    Operand& operand = step.inputs.emplace_back();
    if (of == nullptr || !of->has_input(k)) continue;
    const bool channels_last = source.channels_last && has_layouts(of->inputs[k]);
    const bool host =
        source.computed_on_host ? op.where == Where::kPlanning : registry_.claims().host_input(*of, k);
    if (known.has(of->input_names()[k])) {
      if (host && !known.is_computed_on_host(of->input_names()[k])) {
        throw Error("the value of '" + of->input_names()[k] + "', input of node '" + of->name +
                    "', is not known");
      }
      operand = known.get(of->input_names()[k], channels_last, of->inputs[k], sources);
    } else if (of->is_constant(k)) {
      operand.kind = Operand::Kind::kConstant;  // add_constants sets the index
      operand.channels_last =
          channels_last ||
          (source.channels_last && op.layout_of(*source.node) == Layout::kAny && is_column(of->inputs[k]));
    } else {
      throw Error("the region lacks the input '" + of->input_names()[k] + "' of node '" + of->name + "'");
    }
    operand.host = host;
  }
  return step;
}

void Region::compile(const abi::OrtGraph* graph, const abi::OrtNode* fused,
                     const std::set<std::string>& computed_on_host) {
  const gpu::OnDevice on(device_);
  const std::vector<GraphNode> nodes = abi::graph_nodes(api_, graph, kProviderName);
  const std::vector<std::string> inputs = abi::names_of(api_, abi::node_inputs(api_, fused)),
                                 outputs = abi::names_of(api_, abi::node_outputs(api_, fused));
  steps_.inputs = inputs.size();
  steps_.outputs = outputs.size();
  name_ = "region of " + std::to_string(nodes.size()) + " nodes, '" + nodes.front().name + "' to '" +
          nodes.back().name + "'";
  fused_name_ = abi::get<const char*>(api_, abi::Node_GetName, fused);

  NamedValues known(steps_, device_, inputs, outputs);
  const Groups groups = group(nodes, outputs);
  const bool channels_last = wants_channels_last(nodes, groups);
  std::vector<StepSource> sources;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (groups.covered[i] && groups.fusion_at[i] == nullptr) continue;
    if (channels_last && groups.fusion_at[i] == nullptr && groups.siblings.count(i) == 0 &&
        known.add_view(nodes[i], sources))
      continue;
    StepSource source = source_of(nodes, groups, i);
    source.computed_on_host = is_computed_on_host(*source.node, known, computed_on_host);
    if (source.computed_on_host) source.op = registry_.claims().find_host_kernel(*source.node);
    if (source.op == nullptr)
      throw Error("no kernel for node '" + source.node->name + "' (" + source.node->op + ")");
    const auto replaced = groups.replaced.find(i);
    const auto written_by = [&](size_t writer) -> const NodeInGraph& {
      if (replaced != groups.replaced.end()) return *replaced->second;
      return nodes[writer];
    };
    const NodeInGraph& last = written_by(i);
    source.channels_last = channels_last && known.is_channels_last(source, last);
    Step step = step_of(source, known, sources);
    const bool is_channels_last = source.channels_last;
    const Siblings writers = source.members;
    steps_.all.push_back(std::move(step));
    sources.push_back(std::move(source));
    for (const size_t writer : writers) {
      for (const std::string& name : written_by(writer).output_names()) {
        steps_.all.back().outputs.push_back(name.empty() ? -1 : known.add(name, is_channels_last));
      }
    }
    if (steps_.all.back().computed_on_host) steps_.values.back().computed_on_host = true;
    if (!is_channels_last) continue;
    for (size_t k = 0; k < last.output_names().size(); ++k) {
      const std::string& name = last.output_names()[k];
      if (known.is_output(name)) known.get(name, false, last.outputs[k], sources);
    }
  }
  for (const std::string& name : outputs) {
    if (!known.is_written(name)) throw Error("the region does not write its output '" + name + "'");
  }
  find_lifetimes();
  find_uploads();
  find_in_place();
  find_shape_only_inputs();
  add_constants(sources);
  create_kernels(sources);
}

void Region::find_lifetimes() {
  for (size_t s = 0; s < steps_.all.size(); ++s) {
    for (const int v : steps_.all[s].outputs) {
      if (v >= 0)
        steps_.values[static_cast<size_t>(v)].first = steps_.values[static_cast<size_t>(v)].last = s;
    }
    if (steps_.all[s].computed_on_host) continue;  // reads at most the shape
    for (const Operand& operand : steps_.all[s].inputs) {
      if (operand.kind == Operand::Kind::kValue) steps_.values[operand.index].last = s;
    }
  }
}

void Region::find_uploads() {
  for (const Step& step : steps_.all) {
    if (step.computed_on_host) continue;
    for (const Operand& operand : step.inputs) {
      if (operand.kind != Operand::Kind::kValue || operand.host) continue;
      steps_.values[operand.index].uploaded = steps_.values[operand.index].computed_on_host;
    }
  }
}

// A caller may bind an input and an output to the same memory on two conditions: the step that writes the output reads
// the input once, and no later step reads the input.
void Region::find_in_place() {
  const auto readers_from = [&](size_t s, size_t input) {
    int64_t readers = 0;
    for (; s < steps_.all.size(); ++s) {
      if (steps_.all[s].computed_on_host) continue;  // reads at most the shape
      for (const Operand& operand : steps_.all[s].inputs) {
        readers += operand.kind == Operand::Kind::kInput && operand.index == input ? 1 : 0;
      }
    }
    return readers;
  };
  for (size_t s = 0; s < steps_.all.size(); ++s) {
    const Step& step = steps_.all[s];
    for (const auto& [i, o] : step.in_place) {
      if (i >= step.inputs.size() || o >= step.outputs.size() || step.outputs[o] < 0) continue;
      const Operand& operand = step.inputs[i];
      const int output = steps_.values[static_cast<size_t>(step.outputs[o])].output;
      if (operand.kind != Operand::Kind::kInput || output < 0 || readers_from(s, operand.index) != 1)
        continue;
      steps_.in_place.emplace_back(operand.index, static_cast<size_t>(output));
    }
  }
}

// Finds inputs that only host-computed steps read. If only the shapes of these inputs change, a plan is used again,
// provided that each step that reads a value computed from them gets the same value or accepts the new one
// (Region::fits). These values must be computable without a plan, and only the host may read them.
void Region::find_shape_only_inputs() {
  steps_.shape_only_inputs.assign(steps_.inputs, true);
  for (const Step& step : steps_.all) {
    for (const Operand& operand : step.inputs) {
      if (operand.kind == Operand::Kind::kInput && !step.computed_on_host)
        steps_.shape_only_inputs[operand.index] = false;
    }
  }
  std::vector<bool> depends(steps_.values.size());  // on the shape of such an input
  bool known = true;
  for (size_t s = 0; s < steps_.all.size(); ++s) {
    const Step& step = steps_.all[s];
    bool any = false, all = true;
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const Operand& operand = step.inputs[i];
      const bool of_value = operand.kind == Operand::Kind::kValue;
      const bool found =
          of_value ? depends[operand.index]
                   : operand.kind == Operand::Kind::kInput && steps_.shape_only_inputs[operand.index];
      any = any || found;
      all = all && (found || !of_value);
      if (found && !step.computed_on_host) {
        known = known && operand.host;
        steps_.shape_step_readers.emplace_back(s, i);
      }
    }
    if (!any || !step.computed_on_host) continue;
    known = known && all;
    steps_.shape_steps.push_back(s);
    depends[static_cast<size_t>(step.outputs[0])] = true;
  }
  if (!known) steps_.shape_only_inputs.assign(steps_.inputs, false);
}

void Region::create_kernels(const std::vector<StepSource>& sources) {
  for (size_t s = 0; s < steps_.all.size(); ++s) {
    const StepSource& source = sources[s];
    if (source.node == nullptr) continue;  // a change of layout
    std::vector<std::optional<Tensor>> constants(source.inputs.size());
    for (size_t i = 0; i < constants.size(); ++i) {
      const Operand& operand = steps_.all[s].inputs[i];
      if (operand.kind == Operand::Kind::kConstant) constants[i] = steps_.constants[operand.index];
    }
    const RegionNode node(*source.node, std::move(constants));
    const size_t siblings = source.members.size();
    try {
      steps_.all[s].kernel = source.channels_last && source.op->create_channels_last
                                 ? source.op->create_channels_last(node, source.tail)
                             : source.tail  ? source.op->create_with_tail(node, *source.tail)
                             : siblings > 1 ? source.op->create_siblings(node, siblings)
                                            : source.op->create(node);
      steps_.all[s].kernel->prepare(node);
    } catch (const std::exception& e) {
      throw Error(node.op + " (" + element_type_name(node.type()) + ") node '" + node.name +
                  "': " + e.what());
    }
  }
}

namespace {

// A constant converted to channels last, in host memory. Columns [C, 1, 1] become [1, 1, 1, C].
struct ChannelsLastConstant {
  std::unique_ptr<unsigned char[]> memory;
  Tensor tensor;
  explicit ChannelsLastConstant(const Tensor& from) : tensor(from) {
    const Shape s = from.shape.rank() == kLayoutRank ? from.shape : Shape{1, from.shape[0], 1, 1};
    tensor.shape = to_channels_last(s);
    memory = std::make_unique<unsigned char[]>(from.bytes());
    tensor.data = memory.get();
    if (bytes_of(from.type) == 1) {
      convert(s, from.as<const uint8_t>(), tensor.as<uint8_t>());
    } else {
      convert(s, from.as<const uint16_t>(), tensor.as<uint16_t>());
    }
  }

 private:
  template <class T>
  static void convert(const Shape& s, const T* x, T* y) {
    const int64_t pixels = s[2] * s[3];
    for (int64_t n = 0; n < s[0]; ++n) {
      for (int64_t i = 0; i < pixels; ++i) {
        for (int64_t c = 0; c < s[1]; ++c) y[(n * pixels + i) * s[1] + c] = x[(n * s[1] + c) * pixels + i];
      }
    }
  }
};

}  // namespace

// Copies each constant once, even if several nodes read it. The runtime may then free its copies.
void Region::add_constants(const std::vector<StepSource>& sources) {
  struct Constant {
    Tensor tensor;
    size_t block = 0, offset = 0;
  };
  std::vector<ChannelsLastConstant> converted;
  std::vector<Constant> on_device;
  std::map<std::tuple<std::string, Place, bool>, size_t> known;
  std::vector<size_t> blocks;  // bytes
  for (size_t s = 0; s < sources.size(); ++s) {
    for (size_t k = 0; k < sources[s].inputs.size(); ++k) {
      Operand& operand = steps_.all[s].inputs[k];
      if (operand.kind != Operand::Kind::kConstant) continue;
      const auto& [node, i] = sources[s].inputs[k];
      const Place place = operand.host ? Place::kHost : Place::kDevice;
      // A kernel for siblings reads their constants as one contiguous array. They are placed as a group even if another
      // node already has one of them (all layers without a bias share the same zeros).
      const size_t siblings = sources[s].members.size();
      const size_t begin = k == 0 || siblings == 1 ? k : k - (k - 1) % siblings;
      std::string name;
      for (size_t j = begin; j < begin + (k == 0 ? 1 : siblings); ++j) {
        const auto& [of, input] = sources[s].inputs[j];
        name += of->input_names()[input] + '\n';
      }
      name += std::to_string(k - begin);
      const auto [found, added] =
          known.emplace(std::tuple(name, place, operand.channels_last), steps_.constants.size());
      operand.index = found->second;
      if (!added) continue;
      std::optional<Tensor> given = node->constant(i);
      if (!given) throw Error("the constant '" + node->input_names()[i] + "' has no value");
      if (operand.channels_last) given = converted.emplace_back(*given).tensor;
      Tensor constant = *given;
      constant.place = place;
      const size_t bytes = constant.bytes();
      if (place == Place::kHost) {
        auto& copy = host_blocks_.emplace_back(std::make_unique<unsigned char[]>(bytes));
        if (bytes > 0) std::memcpy(copy.get(), given->data, bytes);
        constant.data = copy.get();
      } else {
        if (blocks.empty() ||
            (k == begin && blocks.back() + siblings * arena_bytes(bytes) > kConstantBlock)) {
          blocks.push_back(0);
        }
        on_device.push_back({*given, blocks.size() - 1, blocks.back()});
        on_device.back().tensor.place = place;
        blocks.back() += arena_bytes(bytes);
        constant.data = nullptr;
      }
      steps_.constants.push_back(constant);
    }
  }
  for (const size_t bytes : blocks) {
    blocks_.push_back(std::make_unique<Block>(memory_, std::max(bytes, kArenaAlignment), nullptr,
                                              gpu::MemoryUse::kConstants));
  }
  const gpu::WorkStream stream(device_);
  size_t next = 0;
  for (Tensor& constant : steps_.constants) {
    if (constant.place == Place::kHost) continue;
    const Constant& from = on_device[next++];
    const size_t bytes = constant.bytes();
    constant.data = static_cast<char*>(blocks_[from.block]->data()) + from.offset;
    if (bytes > 0) device_.copy(constant.data, from.tensor.data, bytes, stream.get());
  }
  stream.synchronize();  // the host tensors may be freed after this
}

}  // namespace graphopt::provider
