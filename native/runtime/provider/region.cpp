#include "runtime/provider/region.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "device/libraries/libraries.h"
#include "device/node_scope.h"
#include "operators/implementations.h"
#include "operators/layout.h"
#include "runtime/abi/error.h"
#include "runtime/provider/arena.h"
#include "runtime/provider/guarded.h"
#include "runtime/provider/siblings.h"
#include "runtime/provider/staging.h"
#include "runtime/provider/tails.h"
#include "runtime/run_node.h"

namespace graphopt::provider {
namespace {

using abi::check;
using abi::GraphNode;
using abi::OrtStatus;

// To be recorded: of a plan, and of all plans of a region.
constexpr int kMostRefusals = 3, kMostRefusalsOfAll = 16;
// Graphs for addresses of callers, for one plan.
constexpr size_t kMostCaptured = 2;
// Recorded for them, after which copies are cheaper.
constexpr int kMostOwn = 16;
// Constants share blocks of the device's memory, which comes in large pages.
constexpr size_t kConstantBlock = size_t{32} << 20;

constexpr const char* kEventNames[] = {"compiled", "fused",   "planned", "launched", "captured", "replayed",
                                       "copied",   "refused", "dropped", "relaid",   "copy_in",  "copy_out"};
std::atomic<uint64_t> event_counts[std::size(kEventNames)], planning_nanoseconds;

static_assert(kArenaAlignment == kSiblingAlignment);

size_t alignment_of(void* const* addresses, size_t count) {
  uintptr_t joined = 0;
  for (size_t i = 0; i < count; ++i) joined |= reinterpret_cast<uintptr_t>(addresses[i]);
  return gpu::alignment_of(joined);
}

// A node of a region while its kernel is made: its constants lie where the kernel reads them.
class RegionNode final : public Node {
 public:
  RegionNode(const GraphNode& node, std::vector<std::optional<Tensor>> constants)
      : node_(node), constants_(std::move(constants)) {
    op = node.op;
    name = node.name;
    version = node.version;
    inputs = node.inputs;
    outputs = node.outputs;
    for (auto* values : {&inputs, &outputs}) {
      for (Value& value : *values) {
        // One of unknown rank looks like a scalar's.
        if (value.shape && value.shape->rank() == 0) value.shape.reset();
      }
    }
  }
  std::optional<Tensor> constant(size_t i) const override {
    return i < constants_.size() ? constants_[i] : std::nullopt;
  }
  std::optional<float> find_float(const char* key) const override { return node_.find_float(key); }
  std::optional<int64_t> find_int(const char* key) const override { return node_.find_int(key); }
  std::optional<std::vector<int64_t>> find_ints(const char* key) const override {
    return node_.find_ints(key);
  }
  std::optional<std::string> find_string(const char* key) const override { return node_.find_string(key); }
  std::optional<std::vector<std::string>> find_strings(const char* key) const override {
    return node_.find_strings(key);
  }
  std::optional<Number> find_number(const char* key) const override { return node_.find_number(key); }

 private:
  const GraphNode& node_;
  std::vector<std::optional<Tensor>> constants_;
};

std::string text_of(const Tensors& tensors) {
  std::string text;
  for (const Tensor& t : tensors) {
    text += t.present() ? std::string(" ") + element_type_name(t.type) + t.shape.text() : " -";
  }
  return text;
}

// A failure that is known to be of one node.
class NodeFailure final : public abi::StatusError {
 public:
  using StatusError::StatusError;
};

// To be called where an exception is handled.
[[noreturn]] void rethrow_of(const std::string& node) {
  try {
    throw;
  } catch (const gpu::OutOfMemory&) {
    throw;
  } catch (const abi::StatusError& e) {
    throw NodeFailure(node + ": " + e.what(), e.code);
  } catch (const Error& e) {
    throw NodeFailure(node + ": " + e.what(), abi::ErrorCode::kInvalidArgument);
  } catch (const std::exception& e) {
    throw NodeFailure(node + ": " + e.what(), abi::ErrorCode::kRuntimeException);
  }
}

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

}  // namespace

void count_region(RegionEvent event) { ++event_counts[static_cast<size_t>(event)]; }

std::string describe_regions() {
  std::string text;
  for (size_t i = 0; i < std::size(kEventNames); ++i) {
    text += (i > 0 ? ", \"" : "{\"") + std::string(kEventNames[i]) + "\": " + std::to_string(event_counts[i]);
  }
  return text + ", \"planning_us\": " + std::to_string(planning_nanoseconds / 1000) + "}";
}

// What a step is made of.
struct Region::Source {
  const GraphNode* node = nullptr;
  const Registration* op = nullptr;
  std::optional<Tail> tail;
  Siblings members;                                         // of the region's nodes, itself first
  bool planned = false;                                     // is computed with the plan
  bool last = false;                                        // its kernel is one for channels last
  std::vector<std::pair<const GraphNode*, size_t>> inputs;  // of which node, and its number there
};

namespace {

// A tensor that may lie in channels first or last.
bool has_layouts(const Value& value) {
  return value.type == ElementType::kHalf && value.shape && value.shape->rank() == kLayoutRank;
}

}  // namespace

// The values of a region while it is compiled, by name, each in channels first, last, or both.
class Region::Values {
 public:
  Values(Region& region, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs)
      : region_(region) {
    for (size_t i = 0; i < inputs.size(); ++i)
      known_[inputs[i]].as[false] = {Operand::Kind::kInput, i, false};
    for (size_t i = 0; i < outputs.size(); ++i) outputs_.emplace(outputs[i], static_cast<int>(i));
  }

  bool has(const std::string& name) const { return known_.count(name) > 0; }
  bool is_output(const std::string& name) const { return outputs_.count(name) > 0; }
  // Whether it is computed with the plan.
  bool is_planned(const std::string& name) const {
    const auto found = known_.find(name);
    return found != known_.end() && found->second.as[false].kind == Operand::Kind::kValue &&
           region_.values_[found->second.as[false].index].planned;
  }
  bool is_written(const std::string& name) const {
    const auto found = known_.find(name);
    return found != known_.end() && found->second.as[false].kind == Operand::Kind::kValue;
  }

  // What a step writes: its number among the values.
  int add(const std::string& name, bool last) {
    const size_t value = new_value(name, last);
    Known& known = known_[name];
    known.as[last] = {Operand::Kind::kValue, value, false};
    known.written_last = known.written_last || last;
    return static_cast<int>(value);
  }

  // In the layout that is wanted, perhaps by a copy, which is another step.
  Operand get(const std::string& name, bool last, const Value& value, std::vector<Source>& sources) {
    const Known known = known_.at(name);
    if (known.as[last].kind != Operand::Kind::kNone) return known.as[last];
    Step step;
    step.op = last ? "channels last" : "channels first";
    step.name = name;
    step.kernel = make_layout_change(region_.device_, last);
    step.inputs.push_back(known.as[!last]);
    const Shape& shape = *value.shape;
    if (shape[1] == 1 || (shape[2] == 1 && shape[3] == 1)) step.reuse = Reuse::kAlias;
    const size_t number = new_value(name, last);
    step.outputs.push_back(static_cast<int>(number));
    region_.steps_.push_back(std::move(step));
    sources.emplace_back();
    if (region_.steps_.back().reuse != Reuse::kAlias) count_region(RegionEvent::kRelaid);
    return known_[name].as[last] = {Operand::Kind::kValue, number, false};
  }

  // Whether a step is to be one for channels last. `written`: the node that writes what it comes to.
  bool lies_last(const Source& source, const GraphNode& written) const {
    const GraphNode& node = *source.node;
    if (source.members.size() > 1 || written.outputs.size() != 1 || !has_layouts(written.outputs[0]) ||
        node.inputs.empty() || !has_layouts(node.inputs[0])) {
      return false;
    }
    const Layout layout = source.op->layout(node);
    if (layout == Layout::kFirst || (layout != Layout::kAny && !source.op->create_channels_last))
      return false;
    bool any = false;
    for (size_t i = 0; i < source.inputs.size(); ++i) {
      const auto& [of, k] = source.inputs[i];
      if (of == nullptr || !of->has_input(k)) continue;
      const auto found = known_.find(of->input_names()[k]);
      any = any || (found != known_.end() && found->second.written_last);
      // Slopes are the same in both: a number for each channel.
      const bool slopes = source.tail && source.tail->has_slopes && i + 1 == source.inputs.size();
      if (!slopes && !fits(*of, k, layout)) return false;
    }
    return any || layout == Layout::kLast;
  }

 private:
  struct Known {
    Operand as[2];  // in channels first, in channels last
    bool written_last = false;
  };

  // The number of a value that the next step writes. What the region gives out is in channels first.
  size_t new_value(const std::string& name, bool last) {
    const auto output = outputs_.find(name);
    region_.values_.push_back({0, 0, !last && output != outputs_.end() ? output->second : -1});
    return region_.values_.size() - 1;
  }

  // An input with two layouts, or one that is the same in both. An unknown rank looks like a scalar's.
  static bool fits(const GraphNode& node, size_t i, Layout layout) {
    const Value& value = node.inputs[i];
    if (has_layouts(value) || value.type != ElementType::kHalf) return true;
    const std::optional<Tensor> constant = node.is_constant(i) ? node.constant(i) : std::nullopt;
    if (constant && constant->shape.elements() == 1) return true;
    return layout != Layout::kAny && value.shape && value.shape->rank() == 1;
  }

  Region& region_;
  std::map<std::string, Known> known_;
  std::map<std::string, int> outputs_;
};

// What is known to gain is cuDNN, and without libraries our own products, which are for channels last
// (docs/measurements/provider_h200.md).
bool Region::wants_channels_last(const std::vector<GraphNode>& nodes) const {
  const auto asks = [&](const GraphNode& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && !node.inputs.empty() && has_layouts(node.inputs[0]) &&
           op->layout(node) == Layout::kLast;
  };
  if (options_.implementation >= 0 || std::none_of(nodes.begin(), nodes.end(), asks)) return false;
  if (options_.channels_last) return *options_.channels_last;
  const hip::Matrix matrix = gpu::architecture(device_.facts().arch).matrix;
  if (gpu::dnn(device_, options_.libraries.get()).library != nullptr) return matrix == hip::Matrix::kMma;
  return matrix != hip::Matrix::kNone && matrix != hip::Matrix::kEmulated;
}

Region::Region(const Registry& registry, const abi::OrtGraph* graph, const abi::OrtNode* fused,
               const std::set<std::string>& planned, std::shared_ptr<SessionMemory> memory,
               std::shared_ptr<RegionCache> cache, RegionOptions options)
    : OrtNodeComputeInfo{},
      api_(registry.api()),
      registry_(registry),
      device_(registry.device()),
      memory_(std::move(memory)),
      cache_(std::move(cache)),
      options_(options) {
  version = abi::kEpApiRevision;
  CreateState = [](OrtNodeComputeInfo* self, abi::OrtNodeComputeContext*, void** state) -> OrtStatus* {
    *state = static_cast<Region*>(self);
    return nullptr;
  };
  Compute = [](OrtNodeComputeInfo* self, void*, abi::OrtKernelContext* context) {
    return static_cast<Region*>(self)->compute(context);
  };
  ReleaseState = [](OrtNodeComputeInfo*, void*) {};
  compile(graph, fused, planned);
  count_region(RegionEvent::kCompiled);
}

Region::~Region() {
  cache_->forget(*this);
  try {
    const gpu::OnDevice on(device_);  // kernels free device memory
    steps_.clear();
    blocks_.clear();
  } catch (const std::exception&) {  // a broken device
  }
}

// Which nodes are one step.
struct Region::Groups {
  std::vector<Fusion> fusions;
  std::vector<const Fusion*> ends;      // of each node, the one that stands where it stood: its last
  std::map<size_t, Siblings> siblings;  // by the first, where they stand
  std::vector<bool> covered;            // nodes that are part of others' steps
};

Region::Groups Region::group(const std::vector<GraphNode>& nodes,
                             const std::vector<std::string>& outputs) const {
  Groups groups;
  groups.ends.resize(nodes.size());
  groups.covered.resize(nodes.size());
  const auto takes_tail = [this](const GraphNode& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && op->create_with_tail;
  };
  groups.fusions = find_tails(nodes, outputs, takes_tail);
  for (const Fusion& fusion : groups.fusions) {
    count_region(RegionEvent::kFused);
    groups.covered[fusion.head] = true;
    for (const size_t i : fusion.others) groups.covered[i] = true;
    groups.ends[fusion.others.back()] = &fusion;
  }
  const auto takes_siblings = [&](const GraphNode& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && op->create_siblings && options_.implementation < 0;
  };
  for (Siblings& found : find_siblings(nodes, outputs, takes_siblings)) {
    count_region(RegionEvent::kFused);
    for (size_t k = 1; k < found.size(); ++k) groups.covered[found[k]] = true;
    groups.siblings.emplace(found.front(), std::move(found));
  }
  return groups;
}

// What node i stands for.
Region::Source Region::source_of(const std::vector<GraphNode>& nodes, const Groups& groups, size_t i) const {
  const Fusion* fusion = groups.ends[i];
  const GraphNode& node = nodes[fusion != nullptr ? fusion->head : i];
  const auto family = groups.siblings.find(i);
  Source source;
  source.node = &node;
  source.op = registry_.registration(node);
  source.members = family != groups.siblings.end() ? family->second : Siblings{i};
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

// Bodies of one If may have values of one name, of which one is planned: the others are where their nodes can be computed.
bool Region::is_planned(const GraphNode& node, const Values& known,
                        const std::set<std::string>& planned) const {
  const Registration* op = registry_.claims().find_planned(node);
  const std::string& name = node.output_names()[0];
  if (op == nullptr || planned.count(name) == 0 || known.is_output(name)) return false;
  for (size_t i = 0; i < node.inputs.size() && op->where == Where::kPlanning; ++i) {
    if (node.has_input(i) && !node.is_constant(i) && !known.is_planned(node.input_names()[i])) return false;
  }
  return true;
}

// Its kernel comes when the constants are there (create_kernels).
Region::Step Region::step_of(const Source& source, Values& known, std::vector<Source>& sources) {
  const Registration& op = *source.op;
  Step step;
  step.op = source.node->op;
  step.name = source.node->name;
  step.reuse = op.reuse;
  step.siblings = source.members.size() > 1;
  step.planned = source.planned;
  if (!op.implementations.names.empty()) step.only = options_.implementation;
  for (const auto& load : op.implementations.loads) load(device_, options_.libraries.get());
  for (const auto& [of, k] : source.inputs) {
    Operand& operand = step.inputs.emplace_back();
    if (of == nullptr || !of->has_input(k)) continue;
    const bool last = source.last && has_layouts(of->inputs[k]);
    const bool host = source.planned ? op.where == Where::kPlanning : registry_.claims().host_input(*of, k);
    if (known.has(of->input_names()[k])) {
      if (host && !known.is_planned(of->input_names()[k])) {
        throw Error("the value of '" + of->input_names()[k] + "', input of node '" + of->name +
                    "', is not known");
      }
      operand = known.get(of->input_names()[k], last, of->inputs[k], sources);
    } else if (of->is_constant(k)) {
      operand.kind = Operand::Kind::kConstant;  // add_constants numbers them
      operand.last = last;
    } else {
      throw Error("the region lacks the input '" + of->input_names()[k] + "' of node '" + of->name + "'");
    }
    operand.host = host;
  }
  return step;
}

void Region::compile(const abi::OrtGraph* graph, const abi::OrtNode* fused,
                     const std::set<std::string>& planned) {
  const gpu::OnDevice on(device_);
  const std::vector<GraphNode> nodes = abi::graph_nodes(api_, graph, kProviderName);
  size_t n = 0;
  check(api_, abi::Node_GetNumInputs(api_, fused, &n));
  std::vector<const abi::OrtValueInfo*> values(n);
  check(api_, abi::Node_GetInputs(api_, fused, values.data(), n));
  const std::vector<std::string> inputs = abi::names_of(api_, values);
  check(api_, abi::Node_GetNumOutputs(api_, fused, &n));
  values.resize(n);
  check(api_, abi::Node_GetOutputs(api_, fused, values.data(), n));
  const std::vector<std::string> outputs = abi::names_of(api_, values);
  inputs_ = inputs.size();
  outputs_ = outputs.size();
  name_ = "region of " + std::to_string(nodes.size()) + " nodes, '" + nodes.front().name + "' to '" +
          nodes.back().name + "'";

  Values known(*this, inputs, outputs);
  const Groups groups = group(nodes, outputs);
  const bool channels_last = wants_channels_last(nodes);
  std::vector<Source> sources;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (groups.covered[i] && groups.ends[i] == nullptr) continue;
    Source source = source_of(nodes, groups, i);
    source.planned = is_planned(*source.node, known, planned);
    if (source.planned) source.op = registry_.claims().find_planned(*source.node);
    if (source.op == nullptr)
      throw Error("no kernel for node '" + source.node->name + "' (" + source.node->op + ")");
    source.last = channels_last && known.lies_last(source, nodes[i]);
    Step step = step_of(source, known, sources);
    const bool last = source.last;
    const Siblings writers = source.members;
    steps_.push_back(std::move(step));
    sources.push_back(std::move(source));
    for (const size_t writer : writers) {
      for (const std::string& name : nodes[writer].output_names()) {
        steps_.back().outputs.push_back(name.empty() ? -1 : known.add(name, last));
      }
    }
    if (steps_.back().planned) values_.back().planned = true;
    if (!last) continue;
    for (size_t k = 0; k < nodes[i].output_names().size(); ++k) {
      const std::string& name = nodes[i].output_names()[k];
      if (known.is_output(name)) known.get(name, false, nodes[i].outputs[k], sources);
    }
  }
  for (const std::string& name : outputs) {
    if (!known.is_written(name)) throw Error("the region does not write its output '" + name + "'");
  }
  find_lifetimes();
  find_uploads();
  add_constants(sources);
  create_kernels(sources);
}

void Region::find_lifetimes() {
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (const int v : steps_[s].outputs) {
      if (v >= 0) values_[static_cast<size_t>(v)].first = values_[static_cast<size_t>(v)].last = s;
    }
    if (steps_[s].planned) continue;  // reads at most the shape
    for (const Operand& operand : steps_[s].inputs) {
      if (operand.kind == Operand::Kind::kValue) values_[operand.index].last = s;
    }
  }
}

void Region::find_uploads() {
  for (const Step& step : steps_) {
    if (step.planned) continue;
    for (const Operand& operand : step.inputs) {
      if (operand.kind != Operand::Kind::kValue || operand.host) continue;
      values_[operand.index].uploaded = values_[operand.index].planned;
    }
  }
}

void Region::create_kernels(const std::vector<Source>& sources) {
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Source& source = sources[s];
    if (source.node == nullptr) continue;  // a change of layout
    std::vector<std::optional<Tensor>> constants(source.inputs.size());
    for (size_t i = 0; i < constants.size(); ++i) {
      const Operand& operand = steps_[s].inputs[i];
      if (operand.kind == Operand::Kind::kConstant) constants[i] = constants_[operand.index];
    }
    const RegionNode node(*source.node, std::move(constants));
    const size_t siblings = source.members.size();
    try {
      steps_[s].kernel = source.last && source.op->create_channels_last
                             ? source.op->create_channels_last(node, source.tail)
                         : source.tail  ? source.op->create_with_tail(node, *source.tail)
                         : siblings > 1 ? source.op->create_siblings(node, siblings)
                                        : source.op->create(node);
      steps_[s].kernel->prepare(node);
    } catch (const std::exception& e) {
      throw Error(node.op + " (" + element_type_name(node.type()) + ") node '" + node.name +
                  "': " + e.what());
    }
  }
  device_.synchronize(nullptr);
}

// Each once, though several nodes read it. The runtime may let go of its own.
void Region::add_constants(const std::vector<Source>& sources) {
  struct Constant {
    Tensor tensor;
    size_t block = 0, offset = 0;
  };
  // In channels last, in host memory.
  struct Relaid {
    std::unique_ptr<uint16_t[]> memory;
    Tensor tensor;
    explicit Relaid(const Tensor& from) : tensor(from) {
      const Shape& s = from.shape;
      tensor.shape = to_channels_last(s);
      memory = std::make_unique<uint16_t[]>(static_cast<size_t>(s.elements()));
      tensor.data = memory.get();
      const auto* x = from.as<const uint16_t>();
      const int64_t pixels = s[2] * s[3];
      for (int64_t n = 0; n < s[0]; ++n) {
        for (int64_t i = 0; i < pixels; ++i) {
          for (int64_t c = 0; c < s[1]; ++c) {
            memory[static_cast<size_t>((n * pixels + i) * s[1] + c)] = x[(n * s[1] + c) * pixels + i];
          }
        }
      }
    }
  };
  std::vector<Relaid> relaid;
  std::vector<Constant> on_device;
  std::map<std::tuple<std::string, Place, bool>, size_t> known;
  std::vector<size_t> blocks;  // bytes
  for (size_t s = 0; s < sources.size(); ++s) {
    for (size_t k = 0; k < sources[s].inputs.size(); ++k) {
      Operand& operand = steps_[s].inputs[k];
      if (operand.kind != Operand::Kind::kConstant) continue;
      const auto& [node, i] = sources[s].inputs[k];
      const Place place = operand.host ? Place::kHost : Place::kDevice;
      const auto [found, added] =
          known.emplace(std::tuple(node->input_names()[i], place, operand.last), constants_.size());
      operand.index = found->second;
      if (!added) continue;
      std::optional<Tensor> given = node->constant(i);
      if (!given) throw Error("the constant '" + node->input_names()[i] + "' has no value");
      if (operand.last) given = relaid.emplace_back(*given).tensor;
      Tensor constant = *given;
      constant.place = place;
      const size_t bytes = constant.bytes();
      if (place == Place::kHost) {
        auto& copy = host_blocks_.emplace_back(std::make_unique<unsigned char[]>(bytes));
        if (bytes > 0) std::memcpy(copy.get(), given->data, bytes);
        constant.data = copy.get();
      } else {
        // Those of siblings lie one behind another, as a kernel of all of them wants.
        const size_t siblings = sources[s].members.size();
        const bool begins = siblings == 1 || (k - 1) % siblings == 0;
        if (blocks.empty() || (begins && blocks.back() + siblings * arena_bytes(bytes) > kConstantBlock)) {
          blocks.push_back(0);
        }
        on_device.push_back({*given, blocks.size() - 1, blocks.back()});
        on_device.back().tensor.place = place;
        blocks.back() += arena_bytes(bytes);
        constant.data = nullptr;
      }
      constants_.push_back(constant);
    }
  }
  for (const size_t bytes : blocks) {
    blocks_.push_back(std::make_unique<Block>(memory_, std::max(bytes, kArenaAlignment), nullptr));
  }
  size_t next = 0;
  for (Tensor& constant : constants_) {
    if (constant.place == Place::kHost) continue;
    const Constant& from = on_device[next++];
    const size_t bytes = constant.bytes();
    constant.data = static_cast<char*>(blocks_[from.block]->data()) + from.offset;
    if (bytes > 0) device_.copy(constant.data, from.tensor.data, bytes, nullptr);
  }
  device_.synchronize(nullptr);  // the runtime's copies are read
}

OrtStatus* Region::compute(abi::OrtKernelContext* raw) const noexcept {
  const abi::Context context(api_, api_, raw);
  try {
    last_failure();  // forgets those of others
    const gpu::OnDevice on(device_);
    run(context);
    return nullptr;
  } catch (const NodeFailure& e) {
    return abi::CreateStatus(api_, e.code, e.what());
  } catch (...) {
    return failed_run(api_, [&] { return name_ + ", inputs" + runtime::input_shapes(context); });
  }
}

std::string Region::describe(const Step& step, const Call& call) const {
  const ElementType type = call.inputs.size() > 0 ? call.inputs[0].type : ElementType::kUndefined;
  return step.op + " (" + element_type_name(type) + ") node '" + step.name + "', inputs" +
         text_of(call.inputs);
}

// Where the values of a plan are: which share bytes.
class Region::Placement {
 public:
  // `uploads`: where on the device the values are that were computed with the plan.
  Placement(const Region& region, RegionPlan& plan, std::vector<void*> uploads)
      : region_(region),
        plan_(plan),
        storage_of_(region.values_.size(), -1),
        offset_of_(region.values_.size()),
        fixed_(region.values_.size()),
        constant_(std::move(uploads)) {
    plan.output_shapes.resize(region.outputs_);
    plan.bytes.resize(region.inputs_ + region.outputs_);
    for (size_t s = 0; s < region.steps_.size(); ++s) {
      for (size_t i = 0; i < region.steps_[s].outputs.size() && !region.steps_[s].planned; ++i) {
        if (region.steps_[s].outputs[i] >= 0) place_output(s, i);
      }
    }
  }

  // Gives each storage and each workspace its bytes, and the plan their addresses.
  void fill() {
    // Outputs of the same storage as another are none of it: each storage is at most one output.
    std::vector<Lifetime> lives;
    for (Storage& storage : storages_) {
      if (storage.output >= 0) continue;
      storage.number = lives.size();
      lives.push_back(storage.life);
    }
    size_t workspace = lives.size();
    for (size_t s = 0; s < region_.steps_.size(); ++s) {
      const size_t bytes = plan_.calls[s].workspace_bytes;
      if (bytes > 0) lives.push_back({bytes, s, s});
    }
    arena_ = lay_out(lives);
    plan_.fullest = arena_.fullest;
    plan_.arena_bytes = arena_.bytes;
    plan_.arena_bytes_with_copies = arena_.bytes;
    for (const size_t bytes : plan_.bytes) {
      plan_.copies.push_back(plan_.arena_bytes_with_copies);
      plan_.arena_bytes_with_copies += arena_bytes(bytes);
    }
    for (size_t s = 0; s < region_.steps_.size(); ++s) {
      const Step& step = region_.steps_[s];
      Call& call = plan_.calls[s];
      if (step.planned) continue;
      for (size_t i = 0; i < call.inputs.size(); ++i) {
        if (step.inputs[i].kind != Operand::Kind::kNone) address(call.inputs[i], step.inputs[i]);
      }
      for (size_t i = 0; i < call.outputs.size(); ++i) {
        const int v = step.outputs[i];
        if (v >= 0) address(call.outputs[i], {Operand::Kind::kValue, static_cast<size_t>(v)});
      }
      if (call.workspace_bytes > 0) {
        add_slot(&call.workspace, Address::Base::kArena, 0, arena_.offsets[workspace++]);
      }
    }
  }

 private:
  // Values that share bytes: a value in the arena or an output, with what is a view of it or written over it.
  struct Storage {
    Lifetime life;
    int output = -1;
    bool siblings = false;  // several, one behind another
    size_t number = 0;      // in the arena
  };
  Storage& storage(int number) { return storages_[static_cast<size_t>(number)]; }

  void place_output(size_t s, size_t i) {
    const Step& step = region_.steps_[s];
    const auto v = static_cast<size_t>(step.outputs[i]);
    const Written& value = region_.values_[v];
    const Tensor& tensor = plan_.calls[s].outputs[i];
    if (value.output >= 0) {
      const auto output = static_cast<size_t>(value.output);
      plan_.output_shapes[output] = tensor.shape;
      plan_.bytes[region_.inputs_ + output] = tensor.bytes();
    }
    const Operand first = step.inputs.empty() ? Operand() : step.inputs[0];
    const int first_storage = first.kind == Operand::Kind::kValue ? storage_of_[first.index] : -1;
    int shared = -1;
    if (i == 0 && step.reuse == Reuse::kAlias) {
      if (first_storage < 0 && value.output < 0 && see_through(v, first)) return;
      if (first_storage >= 0 &&
          (value.output < 0 || (storage(first_storage).output < 0 && !storage(first_storage).siblings))) {
        shared = first_storage;
        offset_of_[v] = offset_of_[first.index];
      }
    }
    if (i == 0 && step.reuse == Reuse::kInplace && first_storage >= 0 && is_free(first_storage, s, tensor)) {
      shared = first_storage;
    }
    if (i > 0 && step.siblings) {
      shared = storage_of_[static_cast<size_t>(step.outputs[0])];
      offset_of_[v] = storage(shared).life.bytes;
      storage(shared).life.bytes += arena_bytes(tensor.bytes());
    } else if (shared < 0) {
      shared = static_cast<int>(storages_.size());
      const size_t bytes = tensor.bytes();
      storages_.push_back({{step.siblings ? arena_bytes(bytes) : bytes, s, s}, -1, step.siblings});
    }
    storage(shared).life.last = std::max(storage(shared).life.last, value.last);
    if (value.output >= 0) storage(shared).output = value.output;
    storage_of_[v] = shared;
  }

  // A value that is a view of what has no storage.
  bool see_through(size_t v, const Operand& of) {
    switch (of.kind) {
      case Operand::Kind::kInput:
        fixed_[v] = {Address::Base::kInput, static_cast<uint32_t>(of.index), 0};
        return true;
      case Operand::Kind::kConstant:
        constant_[v] = region_.constants_[of.index].data;
        return true;
      case Operand::Kind::kValue:  // a view of a view
        fixed_[v] = fixed_[of.index];
        constant_[v] = constant_[of.index];
        return true;
      case Operand::Kind::kNone:
        break;
    }
    return false;
  }

  // Whether a step may write its output over its first input.
  bool is_free(int number, size_t s, const Tensor& tensor) {
    const Step& step = region_.steps_[s];
    const Storage& of = storage(number);
    bool alone = of.life.last == s && of.output < 0 && of.life.bytes == tensor.bytes();
    for (size_t k = 1; k < step.inputs.size() && alone; ++k) {
      const Operand& other = step.inputs[k];
      alone = other.kind != Operand::Kind::kValue || storage_of_[other.index] != number;
    }
    return alone;
  }

  void add_slot(void** pointer, Address::Base base, size_t index, size_t offset) {
    plan_.slots.push_back({pointer, {base, static_cast<uint32_t>(index), offset}});
  }

  void address(Tensor& tensor, const Operand& operand) {
    if (tensor.place == Place::kHost || operand.kind == Operand::Kind::kConstant) return;
    if (operand.kind == Operand::Kind::kInput) {
      add_slot(&tensor.data, Address::Base::kInput, operand.index, 0);
      return;
    }
    const int number = storage_of_[operand.index];
    if (number < 0) {
      tensor.data = constant_[operand.index];
      const Address& fixed = fixed_[operand.index];
      if (fixed.base != Address::Base::kNone) plan_.slots.push_back({&tensor.data, fixed});
    } else if (storage(number).output >= 0) {
      add_slot(&tensor.data, Address::Base::kOutput, static_cast<size_t>(storage(number).output), 0);
    } else if (tensor.bytes() > 0) {
      add_slot(&tensor.data, Address::Base::kArena, 0,
               arena_.offsets[storage(number).number] + offset_of_[operand.index]);
    }
  }

  const Region& region_;
  RegionPlan& plan_;
  std::vector<Storage> storages_;
  std::vector<int> storage_of_;
  std::vector<size_t> offset_of_;  // in it
  std::vector<Address> fixed_;     // of values without storage: views of inputs
  std::vector<void*> constant_;    // or of constants, or what was uploaded
  ArenaLayout arena_;
};

RegionPlan Region::plan(const Tensors& inputs, size_t alignment, size_t output_alignment, void* stream,
                        const RegionPlan* refused) const {
  const auto begin = std::chrono::steady_clock::now();
  RegionPlan plan;
  plan.region = this;
  for (const Tensor& t : inputs) plan.shapes.push_back(t.shape);
  plan.alignment = alignment;
  plan.output_alignment = output_alignment;
  // As old as the plan that was refused: a library that was in use then may have been let go of since, and
  // only then does the next run ask it again.
  plan.generation = refused != nullptr ? refused->generation : gpu::library_generation();
  plan.calls = std::make_unique<Call[]>(steps_.size());
  std::vector<const Tensor*> written(values_.size());
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    Call& call = plan.calls[s];
    call.inputs.resize(step.inputs.size());
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const Operand& operand = step.inputs[i];
      if (operand.kind == Operand::Kind::kInput) {
        call.inputs[i] = inputs[operand.index];
        call.inputs[i].data = nullptr;
      }
      if (operand.kind == Operand::Kind::kConstant) call.inputs[i] = constants_[operand.index];
      if (operand.kind == Operand::Kind::kValue) call.inputs[i] = *written[operand.index];
      if (!step.planned && !operand.host) call.inputs[i].place = Place::kDevice;
    }
    call.outputs.resize(step.outputs.size());
    call.alignment = std::min(alignment, output_alignment);
    call.stream = stream;
    call.only = step.only;
    call.libraries = options_.libraries.get();
    call.measured = options_.measured.get();
    if (refused != nullptr) call.failed = refused->calls[s].failed;
    try {
      plan_step(s, plan);
      for (size_t i = 0; i < step.outputs.size(); ++i) {
        if (step.outputs[i] >= 0) written[static_cast<size_t>(step.outputs[i])] = &call.outputs[i];
      }
    } catch (...) {
      rethrow_of(describe(step, call));
    }
  }
  for (const Tensor& t : inputs) plan.bytes.push_back(t.bytes());
  Placement(*this, plan, upload(plan, written, stream)).fill();
  count_region(RegionEvent::kPlanned);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
  planning_nanoseconds += static_cast<uint64_t>(took.count());
  return plan;
}

// What is planned is computed at once.
void Region::plan_step(size_t s, RegionPlan& plan) const {
  const Kernel& kernel = *steps_[s].kernel;
  Call& call = plan.calls[s];
  kernel.plan(call);
  if (!steps_[s].planned) return;
  Tensor& y = call.outputs[0];
  y.data = plan.host_values.emplace_back(std::make_unique<unsigned char[]>(y.bytes())).get();
  kernel.run(call);
}

// Where the values are on the device that were computed with the plan and are read there.
std::vector<void*> Region::upload(RegionPlan& plan, const std::vector<const Tensor*>& written,
                                  void* stream) const {
  std::vector<void*> uploads(values_.size());
  std::vector<size_t> offsets(values_.size());
  size_t total = 0;
  for (size_t v = 0; v < values_.size(); ++v) {
    if (!values_[v].uploaded) continue;
    offsets[v] = total;
    total += arena_bytes(written[v]->bytes());
  }
  if (total == 0) return uploads;
  const auto bytes = std::make_unique<unsigned char[]>(total);
  plan.uploads = std::make_unique<Block>(memory_, total, stream);
  for (size_t v = 0; v < values_.size(); ++v) {
    if (!values_[v].uploaded) continue;
    if (written[v]->bytes() > 0) std::memcpy(bytes.get() + offsets[v], written[v]->data, written[v]->bytes());
    uploads[v] = static_cast<char*>(plan.uploads->data()) + offsets[v];
  }
  staging(device_).upload(plan.uploads->data(), bytes.get(), total, stream);
  return uploads;
}

bool Region::enqueue(RegionPlan& plan, void* arena, const std::vector<void*>& addresses, void* stream,
                     bool recording) const {
  for (const RegionPlan::Slot& slot : plan.slots) {
    const Address& a = slot.address;
    void* base = a.base == Address::Base::kArena   ? arena
                 : a.base == Address::Base::kInput ? addresses[a.index]
                                                   : addresses[inputs_ + a.index];
    *slot.pointer = base != nullptr ? static_cast<char*>(base) + a.offset : nullptr;
  }
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    Call& call = plan.calls[s];
    if (step.planned) continue;
    try {
      gpu::NodeScope scope(device_, step.name);
      if (!step.kernel->run(call)) return false;
      if (recording) {
        device_.check_capture(stream);
      } else {
        scope.finish(stream);
      }
    } catch (...) {
      rethrow_of(describe(step, call));
    }
  }
  return true;
}

void Region::refuse(RegionPlan& plan, const std::string& why) const {
  ++plan.refusals;
  ++refusals_;
  count_region(RegionEvent::kRefused);
  if (!log_enabled() || refused_said_.exchange(true)) return;
  std::fprintf(stderr, "graphopt: %s runs launch by launch: %s\n", name_.c_str(), why.c_str());
}

// What can't be recorded leaves the plan as it was.
bool Region::try_capture(RegionPlan& plan, Captured& captured, void* stream) const {
  std::vector<uint32_t> failed(steps_.size());
  for (size_t s = 0; s < steps_.size(); ++s) failed[s] = plan.calls[s].failed;
  std::string why;
  try {
    device_.begin_capture(stream);
  } catch (const std::exception& e) {
    refuse(plan, e.what());
    return false;
  }
  try {
    void* arena = captured.arena != nullptr ? captured.arena->data() : nullptr;
    if (!enqueue(plan, arena, captured.addresses, stream, true)) why = "a library of the vendor's refuses";
  } catch (const std::exception& e) {
    why = e.what();
  }
  if (why.empty()) {
    try {
      captured.graph = device_.end_capture(stream);
      count_region(RegionEvent::kCaptured);
      if (log_enabled() && !captured_said_.exchange(true)) {
        std::fprintf(stderr, "graphopt: %s is captured\n", name_.c_str());
      }
      return true;
    } catch (const std::exception& e) {
      why = e.what();
    }
  } else {
    device_.abandon_capture(stream);
  }
  for (size_t s = 0; s < steps_.size(); ++s) plan.calls[s].failed = failed[s];
  refuse(plan, why);
  return false;
}

// The recording for these addresses, or the one with copies, made now if need be; null when there is none.
Captured* Region::recorded(RegionPlan& plan, RegionCache::Held& lane, const std::vector<void*>& addresses,
                           bool apart, bool again, void* stream) const {
  const auto arena = [&](size_t bytes) -> std::shared_ptr<Block> {
    try {
      return lane.arena(bytes);
    } catch (const gpu::OutOfMemory& e) {
      if (bytes == plan.arena_bytes) throw;  // no more than the run needs anyhow
      refuse(plan, e.what());
      return nullptr;
    }
  };
  if (!apart) {
    for (Captured& captured : plan.captured) {
      if (captured.addresses != addresses) continue;
      captured.used = plan.runs;
      return &captured;
    }
    if (again && plan.own < kMostOwn) {
      Captured captured;
      captured.addresses = addresses;
      captured.arena = arena(plan.arena_bytes);
      captured.used = plan.runs;
      if (!try_capture(plan, captured, stream)) return nullptr;
      ++plan.own;
      lane.trim(*this);
      if (plan.captured.size() == kMostCaptured) {
        device_.synchronize(stream);  // not every driver lets a graph go while it runs
        plan.captured.erase(std::min_element(plan.captured.begin(), plan.captured.end(),
                                             [](const auto& a, const auto& b) { return a.used < b.used; }));
      }
      return &plan.captured.emplace_back(std::move(captured));
    }
  }
  if (plan.staged.graph == nullptr) {
    plan.staged.arena = arena(plan.arena_bytes_with_copies);
    if (plan.staged.arena == nullptr && plan.arena_bytes_with_copies > 0) return nullptr;
    plan.staged.addresses = copies_of(plan, plan.staged.arena.get(), addresses);
    if (!try_capture(plan, plan.staged, stream)) {
      plan.staged = {};
      return nullptr;
    }
    lane.trim(*this);
  }
  return &plan.staged;
}

// Where inputs and outputs are copied; null where there are no bytes.
std::vector<void*> Region::copies_of(const RegionPlan& plan, const Block* arena,
                                     const std::vector<void*>& addresses) const {
  std::vector<void*> copies(addresses.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (addresses[i] != nullptr && plan.bytes[i] > 0) {
      copies[i] = static_cast<char*>(arena->data()) + plan.copies[i];
    }
  }
  return copies;
}

void Region::copy(const RegionPlan& plan, const std::vector<void*>& to, const std::vector<void*>& from,
                  size_t begin, size_t end, void* stream) const {
  for (size_t i = begin; i < end; ++i) {
    if (to[i] != nullptr) device_.copy(to[i], from[i], plan.bytes[i], stream);
  }
}

bool Region::run_planned(RegionPlan& plan, RegionCache::Held& lane, const std::vector<void*>& addresses,
                         void* stream) const {
  // A caller may have an output written over an input: what reads the input later then reads a copy.
  bool apart = false;
  for (size_t i = 0; i < inputs_; ++i) {
    for (size_t o = inputs_; o < addresses.size(); ++o) {
      apart = apart || overlap(addresses[i], plan.bytes[i], addresses[o], plan.bytes[o]);
    }
  }
  const bool again = plan.last == addresses;
  plan.last = addresses;
  // The null stream can't be recorded.
  if (++plan.runs > 1 && options_.capture && stream != nullptr && plan.refusals < kMostRefusals &&
      refusals_ < kMostRefusalsOfAll && !gpu::synchronous()) {
    if (const Captured* found = recorded(plan, lane, addresses, apart, again, stream)) {
      const bool staged = found == &plan.staged;
      if (staged) copy(plan, found->addresses, addresses, 0, inputs_, stream);
      found->graph->launch(stream);
      if (staged) copy(plan, addresses, found->addresses, inputs_, addresses.size(), stream);
      count_region(staged ? RegionEvent::kCopied : RegionEvent::kReplayed);
      return true;
    }
  }
  std::shared_ptr<Block> arena;
  try {
    arena = lane.arena(apart ? plan.arena_bytes_with_copies : plan.arena_bytes);
  } catch (const gpu::OutOfMemory& e) {
    throw gpu::OutOfMemory("the most is needed by node '" + steps_[plan.fullest].name + "': " + e.what());
  }
  void* data = arena != nullptr ? arena->data() : nullptr;
  count_region(RegionEvent::kLaunched);
  if (!apart) return enqueue(plan, data, addresses, stream, false);
  const std::vector<void*> copies = copies_of(plan, arena.get(), addresses);
  copy(plan, copies, addresses, 0, inputs_, stream);
  if (!enqueue(plan, data, copies, stream, false)) return false;
  copy(plan, addresses, copies, inputs_, addresses.size(), stream);
  return true;
}

void Region::run(const abi::Context& context) const {
  void* stream = context.gpu_stream();
  Tensors inputs;
  inputs.resize(inputs_);
  std::vector<void*> addresses(inputs_ + outputs_);
  std::vector<Shape> shapes(inputs_);
  for (size_t i = 0; i < inputs_; ++i) {
    context.read(context.input(i), inputs[i]);
    inputs[i].place = Place::kDevice;
    addresses[i] = inputs[i].data;
    shapes[i] = inputs[i].shape;
  }
  const size_t alignment = alignment_of(addresses.data(), inputs_);
  RegionCache::Held lane(*cache_, stream);
  RegionPlan* plan = lane.find(*this, shapes, alignment);
  if (plan != nullptr && plan->generation != gpu::library_generation()) {
    lane.drop(*plan);
    plan = nullptr;
  }
  if (plan == nullptr) plan = &lane.add(this->plan(inputs, alignment, gpu::kMostAlignment, stream, nullptr));
  for (size_t i = 0; i < outputs_; ++i) {
    addresses[inputs_ + i] = context.output(i, plan->output_shapes[i]);
  }
  const size_t output_alignment = alignment_of(addresses.data() + inputs_, outputs_);
  if (output_alignment < plan->output_alignment) {
    RegionPlan other = this->plan(inputs, alignment, output_alignment, stream, plan);
    lane.drop(*plan);
    plan = &lane.add(std::move(other));
  }
  while (!run_planned(*plan, lane, addresses, stream)) {
    RegionPlan other = this->plan(inputs, alignment, plan->output_alignment, stream, plan);
    other.refusals = plan->refusals;
    lane.drop(*plan);
    plan = &lane.add(std::move(other));
  }
}

}  // namespace graphopt::provider
