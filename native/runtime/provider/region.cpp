#include "runtime/provider/region.h"

#include <algorithm>
#include <array>
#include <atomic>
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
#include "runtime/provider/siblings.h"
#include "runtime/provider/staging.h"
#include "runtime/provider/tails.h"
#include "runtime/run_node.h"

namespace graphopt::provider {
namespace {

using abi::check;
using abi::GraphNode;
using abi::OrtStatus;

constexpr size_t kMostAlignment = 256;
// To be recorded: of a plan, and of all plans of a region.
constexpr int kMostRefusals = 3, kMostRefusalsOfAll = 16;
// Graphs for addresses of callers, for one plan.
constexpr size_t kMostCaptured = 2;
// Recorded for them, after which copies are cheaper.
constexpr int kMostOwn = 16;
// Constants share blocks of the device's memory, which comes in large pages.
constexpr size_t kConstantBlock = size_t{32} << 20;

constexpr const char* kEventNames[] = {"compiled", "fused",  "planned", "launched", "captured",
                                       "replayed", "copied", "refused", "dropped",  "relaid"};
std::atomic<uint64_t> event_counts[std::size(kEventNames)];

size_t bytes_of(const Tensor& t) {
  return static_cast<size_t>(t.shape.elements() * graphopt::bytes_of(t.type));
}

static_assert(kArenaAlignment == kSiblingAlignment);
size_t round_up(size_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

// The largest power of two, at most kMostAlignment, that divides all addresses.
size_t alignment_of(void* const* addresses, size_t count) {
  uintptr_t bits = kMostAlignment;
  for (size_t i = 0; i < count; ++i) bits |= reinterpret_cast<uintptr_t>(addresses[i]);
  return bits & (~bits + 1);
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
  return text + "}";
}

// What a step is made of.
struct Region::Source {
  const GraphNode* node = nullptr;
  const Registration* op = nullptr;
  std::optional<Tail> tail;
  size_t siblings = 1;
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
  bool is_written(const std::string& name) const {
    const auto found = known_.find(name);
    return found != known_.end() && found->second.as[false].kind == Operand::Kind::kValue;
  }

  // What a step writes: its number among the values.
  int add(const std::string& name, bool last) {
    const auto value = region_.values_.size();
    const auto output = outputs_.find(name);
    region_.values_.push_back({0, 0, !last && output != outputs_.end() ? output->second : -1});
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
    const auto number = region_.values_.size();
    const auto output = outputs_.find(name);
    region_.values_.push_back({0, 0, !last && output != outputs_.end() ? output->second : -1});
    step.outputs.push_back(static_cast<int>(number));
    region_.steps_.push_back(std::move(step));
    sources.emplace_back();
    if (region_.steps_.back().reuse != Reuse::kAlias) count_region(RegionEvent::kRelaid);
    return known_[name].as[last] = {Operand::Kind::kValue, number, false};
  }

  // Whether a step is to be one for channels last. `written`: the node that writes what it comes to.
  bool lies_last(const Source& source, const GraphNode& written) const {
    const GraphNode& node = *source.node;
    if (source.siblings > 1 || written.outputs.size() != 1 || !has_layouts(written.outputs[0]) ||
        node.inputs.empty() || !has_layouts(node.inputs[0])) {
      return false;
    }
    const Layout layout = source.op->layout(node);
    if (layout == Layout::kFirst || (layout != Layout::kAny && !source.op->create_channels_last))
      return false;
    bool any = false;
    for (const auto& [of, k] : source.inputs) {
      if (of == nullptr || !of->has_input(k)) continue;
      const auto found = known_.find(of->input_names()[k]);
      any = any || (found != known_.end() && found->second.written_last);
      if (!fits(*of, k, layout)) return false;
    }
    return any || layout == Layout::kLast;
  }

 private:
  struct Known {
    Operand as[2];  // in channels first, in channels last
    bool written_last = false;
  };

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

// What is known to gain is cuDNN, whose kernels are for channels last (docs/measurements/provider_h200.md).
bool Region::wants_channels_last(const std::vector<GraphNode>& nodes) const {
  const auto asks = [&](const GraphNode& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && !node.inputs.empty() && has_layouts(node.inputs[0]) &&
           op->layout(node) == Layout::kLast;
  };
  if (options_.implementation >= 0 || std::none_of(nodes.begin(), nodes.end(), asks)) return false;
  if (options_.channels_last) return *options_.channels_last;
  return device_.facts().arch.rfind("sm_", 0) == 0 &&
         gpu::dnn(device_, options_.libraries.get()).library != nullptr;
}

Region::Region(const Registry& registry, const abi::OrtGraph* graph, const abi::OrtNode* fused,
               std::shared_ptr<SessionMemory> memory, std::shared_ptr<RegionCache> cache,
               RegionOptions options)
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
  compile(graph, fused);
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

void Region::compile(const abi::OrtGraph* graph, const abi::OrtNode* fused) {
  const gpu::OnDevice on(device_);
  const std::vector<GraphNode> nodes = abi::graph_nodes(api_, graph);
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
  // A node with its tail stands where the last of that stood.
  std::vector<const Fusion*> ends(nodes.size());
  std::vector<bool> covered(nodes.size());
  const auto takes_tail = [this](const GraphNode& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && op->create_with_tail;
  };
  const std::vector<Fusion> fusions = find_tails(nodes, outputs, takes_tail);
  for (const Fusion& fusion : fusions) {
    count_region(RegionEvent::kFused);
    covered[fusion.head] = true;
    for (const size_t i : fusion.others) covered[i] = true;
    ends[fusion.others.back()] = &fusion;
  }
  // Siblings stand where the first of them stood.
  const auto takes_siblings = [&](const GraphNode& node) {
    const Registration* op = registry_.registration(node);
    return op != nullptr && op->create_siblings && options_.implementation < 0;
  };
  std::map<size_t, Siblings> siblings;  // by the first
  for (Siblings& found : find_siblings(nodes, outputs, takes_siblings)) {
    count_region(RegionEvent::kFused);
    for (size_t k = 1; k < found.size(); ++k) covered[found[k]] = true;
    siblings.emplace(found.front(), std::move(found));
  }
  const bool channels_last = wants_channels_last(nodes);
  std::vector<Source> sources;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (covered[i] && ends[i] == nullptr) continue;
    const Fusion* fusion = ends[i];
    const GraphNode& node = nodes[fusion != nullptr ? fusion->head : i];
    const Registration* op = registry_.registration(node);
    if (op == nullptr) throw Error("no kernel for node '" + node.name + "' (" + node.op + ")");
    const auto family = siblings.find(i);
    const Siblings members = family != siblings.end() ? family->second : Siblings{i};
    Source source;
    source.node = &node;
    source.op = op;
    source.siblings = members.size();
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      source.inputs.emplace_back(&node, k);
      for (size_t m = 1; k > 0 && m < members.size(); ++m) source.inputs.emplace_back(&nodes[members[m]], k);
    }
    if (fusion != nullptr) {
      source.tail = fusion->tail;
      if (fusion->tail.has_residual) {
        source.inputs.resize(op->residual, {nullptr, 0});
        source.inputs.emplace_back(&nodes[fusion->sum], fusion->residual);
      }
    }
    source.last = channels_last && known.lies_last(source, nodes[i]);
    Step step;
    step.op = node.op;
    step.name = node.name;
    step.reuse = op->reuse;
    step.siblings = members.size() > 1;
    if (!op->implementations.names.empty()) step.only = options_.implementation;
    for (const auto& load : op->implementations.loads) load(device_, options_.libraries.get());
    for (const auto& [of, k] : source.inputs) {
      Operand& operand = step.inputs.emplace_back();
      if (of == nullptr || !of->has_input(k)) continue;
      const bool last = source.last && has_layouts(of->inputs[k]);
      if (known.has(of->input_names()[k])) {
        operand = known.get(of->input_names()[k], last, of->inputs[k], sources);
      } else if (of->is_constant(k)) {
        operand.kind = Operand::Kind::kConstant;  // add_constants numbers them
        operand.last = last;
      } else {
        throw Error("the region lacks the input '" + of->input_names()[k] + "' of node '" + of->name + "'");
      }
    }
    std::vector<const GraphNode*> writers = {&nodes[i]};
    for (size_t m = 1; m < members.size(); ++m) writers.push_back(&nodes[members[m]]);
    const bool last = source.last;
    steps_.push_back(std::move(step));
    sources.push_back(std::move(source));
    for (const GraphNode* writer : writers) {
      for (size_t k = 0; k < writer->output_names().size(); ++k) {
        const std::string& name = writer->output_names()[k];
        steps_.back().outputs.push_back(name.empty() ? -1 : known.add(name, last));
      }
    }
    if (!last) continue;
    // What the region gives out is in channels first.
    for (size_t k = 0; k < nodes[i].output_names().size(); ++k) {
      const std::string& name = nodes[i].output_names()[k];
      if (known.is_output(name)) known.get(name, false, nodes[i].outputs[k], sources);
    }
  }
  for (const std::string& name : outputs) {
    if (!known.is_written(name)) throw Error("the region does not write its output '" + name + "'");
  }
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (const int v : steps_[s].outputs) {
      if (v >= 0) values_[static_cast<size_t>(v)].first = values_[static_cast<size_t>(v)].last = s;
    }
    for (const Operand& operand : steps_[s].inputs) {
      if (operand.kind == Operand::Kind::kValue) values_[operand.index].last = s;
    }
  }

  add_constants(sources);
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Source& source = sources[s];
    if (source.node == nullptr) continue;  // a change of layout
    std::vector<std::optional<Tensor>> constants(source.inputs.size());
    for (size_t i = 0; i < constants.size(); ++i) {
      const Operand& operand = steps_[s].inputs[i];
      if (operand.kind == Operand::Kind::kConstant) constants[i] = constants_[operand.index];
    }
    const RegionNode node(*source.node, std::move(constants));
    try {
      steps_[s].kernel = source.last && source.op->create_channels_last
                             ? source.op->create_channels_last(node, source.tail)
                         : source.tail         ? source.op->create_with_tail(node, *source.tail)
                         : source.siblings > 1 ? source.op->create_siblings(node, source.siblings)
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
      const Place place = registry_.claims().host_input(*node, i) ? Place::kHost : Place::kDevice;
      const auto [found, added] =
          known.emplace(std::tuple(node->input_names()[i], place, operand.last), constants_.size());
      operand.index = found->second;
      if (!added) continue;
      std::optional<Tensor> given = node->constant(i);
      if (!given) throw Error("the constant '" + node->input_names()[i] + "' has no value");
      if (operand.last) given = relaid.emplace_back(*given).tensor;
      Tensor constant = *given;
      constant.place = place;
      const size_t bytes = bytes_of(constant);
      if (place == Place::kHost) {
        auto& copy = host_blocks_.emplace_back(std::make_unique<unsigned char[]>(bytes));
        if (bytes > 0) std::memcpy(copy.get(), given->data, bytes);
        constant.data = copy.get();
      } else {
        if (blocks.empty() || blocks.back() + bytes > kConstantBlock) blocks.push_back(0);
        on_device.push_back({*given, blocks.size() - 1, blocks.back()});
        on_device.back().tensor.place = place;
        blocks.back() += round_up(bytes);
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
    const size_t bytes = bytes_of(constant);
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
    try {
      const std::string where = name_ + ", inputs" + runtime::input_shapes(context);
      // The runtime hides why there is no memory.
      const std::string reason = last_failure();
      if (!reason.empty()) {
        return abi::CreateStatus(api_, abi::ErrorCode::kFail, (where + ": " + reason).c_str());
      }
      return abi::current_exception_status(api_, where + ": ");
    } catch (...) {
      return abi::current_exception_status(api_, {});
    }
  }
}

std::string Region::describe(const Step& step, const Call& call) const {
  const ElementType type = call.inputs.size() > 0 ? call.inputs[0].type : ElementType::kUndefined;
  return step.op + " (" + element_type_name(type) + ") node '" + step.name + "', inputs" +
         text_of(call.inputs);
}

RegionPlan Region::plan(const Tensors& inputs, size_t alignment, size_t output_alignment, void* stream,
                        const RegionPlan* refused) const {
  RegionPlan plan;
  plan.region = this;
  for (const Tensor& t : inputs) plan.shapes.push_back(t.shape);
  plan.alignment = alignment;
  plan.output_alignment = output_alignment;
  // What refused before may not do it any more.
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
    }
    call.outputs.resize(step.outputs.size());
    call.alignment = std::min(alignment, output_alignment);
    call.stream = stream;
    call.only = step.only;
    call.libraries = options_.libraries.get();
    if (refused != nullptr) call.failed = refused->calls[s].failed;
    try {
      step.kernel->plan(call);
      for (size_t i = 0; i < step.outputs.size(); ++i) {
        if (step.outputs[i] >= 0) written[static_cast<size_t>(step.outputs[i])] = &call.outputs[i];
      }
    } catch (...) {
      rethrow_of(describe(step, call));
    }
  }
  for (const Tensor& t : inputs) plan.bytes.push_back(bytes_of(t));
  lay_out_tensors(plan);
  count_region(RegionEvent::kPlanned);
  return plan;
}

void Region::lay_out_tensors(RegionPlan& plan) const {
  // Values that share bytes: a value in the arena or an output, with what is a view of it or written over it.
  struct Storage {
    Lifetime life;
    int output = -1;
    bool siblings = false;  // several, one behind another
  };
  std::vector<Storage> storages;
  std::vector<int> storage_of(values_.size(), -1);
  std::vector<size_t> offset_of(values_.size());  // in it
  std::vector<Address> fixed(values_.size());     // of values without storage: views of inputs
  std::vector<void*> constant(values_.size());    // or of constants
  plan.output_shapes.resize(outputs_);
  plan.bytes.resize(inputs_ + outputs_);
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    const Call& call = plan.calls[s];
    const Operand first = step.inputs.empty() ? Operand() : step.inputs[0];
    const int first_storage = first.kind == Operand::Kind::kValue ? storage_of[first.index] : -1;
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      if (step.outputs[i] < 0) continue;
      const auto v = static_cast<size_t>(step.outputs[i]);
      const Written& value = values_[v];
      const Tensor& tensor = call.outputs[i];
      if (value.output >= 0) {
        const auto output = static_cast<size_t>(value.output);
        plan.output_shapes[output] = tensor.shape;
        plan.bytes[inputs_ + output] = bytes_of(tensor);
      }
      int shared = -1;
      if (i == 0 && step.reuse == Reuse::kAlias) {
        if (first_storage >= 0) {
          const Storage& storage = storages[static_cast<size_t>(first_storage)];
          if (value.output < 0 || (storage.output < 0 && !storage.siblings)) {
            shared = first_storage;
            offset_of[v] = offset_of[first.index];
          }
        } else if (value.output < 0 && first.kind == Operand::Kind::kInput) {
          fixed[v] = {Address::Base::kInput, static_cast<uint32_t>(first.index), 0};
          continue;
        } else if (value.output < 0 && first.kind == Operand::Kind::kConstant) {
          constant[v] = constants_[first.index].data;
          continue;
        } else if (value.output < 0 && first.kind == Operand::Kind::kValue) {  // a view of a view
          fixed[v] = fixed[first.index];
          constant[v] = constant[first.index];
          continue;
        }
      }
      if (i == 0 && step.reuse == Reuse::kInplace && first_storage >= 0) {
        const Storage& storage = storages[static_cast<size_t>(first_storage)];
        bool alone = storage.life.last == s && storage.output < 0 && storage.life.bytes == bytes_of(tensor);
        for (size_t k = 1; k < step.inputs.size() && alone; ++k) {
          const Operand& other = step.inputs[k];
          alone = other.kind != Operand::Kind::kValue || storage_of[other.index] != first_storage;
        }
        if (alone) shared = first_storage;
      }
      if (i > 0 && step.siblings) {
        shared = storage_of[static_cast<size_t>(step.outputs[0])];
        Storage& storage = storages[static_cast<size_t>(shared)];
        offset_of[v] = storage.life.bytes;
        storage.life.bytes += round_up(bytes_of(tensor));
      } else if (shared < 0) {
        shared = static_cast<int>(storages.size());
        const size_t bytes = bytes_of(tensor);
        storages.push_back({{step.siblings ? round_up(bytes) : bytes, s, s}, -1, step.siblings});
      }
      Storage& storage = storages[static_cast<size_t>(shared)];
      storage.life.last = std::max(storage.life.last, value.last);
      if (value.output >= 0) storage.output = value.output;
      storage_of[v] = shared;
    }
  }

  // Outputs of the same storage as another are none of it: each storage is at most one output.
  std::vector<Lifetime> lives;
  std::vector<size_t> life_of(storages.size());
  for (size_t i = 0; i < storages.size(); ++i) {
    if (storages[i].output >= 0) continue;
    life_of[i] = lives.size();
    lives.push_back(storages[i].life);
  }
  const size_t tensors = lives.size();
  for (size_t s = 0; s < steps_.size(); ++s) {
    if (plan.calls[s].workspace_bytes > 0) lives.push_back({plan.calls[s].workspace_bytes, s, s});
  }
  const ArenaLayout layout = lay_out(lives);
  plan.fullest = layout.fullest;
  plan.arena_bytes = layout.bytes;
  plan.arena_bytes_with_copies = layout.bytes;
  for (const size_t bytes : plan.bytes) {
    plan.copies.push_back(plan.arena_bytes_with_copies);
    plan.arena_bytes_with_copies += round_up(bytes);
  }

  const auto place = [&](Tensor& tensor, const Operand& operand) {
    if (tensor.place == Place::kHost || operand.kind == Operand::Kind::kConstant) return;
    if (operand.kind == Operand::Kind::kInput) {
      plan.slots.push_back({&tensor.data, {Address::Base::kInput, static_cast<uint32_t>(operand.index), 0}});
      return;
    }
    const int storage = storage_of[operand.index];
    if (storage < 0) {
      tensor.data = constant[operand.index];
      if (fixed[operand.index].base != Address::Base::kNone) {
        plan.slots.push_back({&tensor.data, fixed[operand.index]});
      }
    } else if (storages[static_cast<size_t>(storage)].output >= 0) {
      plan.slots.push_back({&tensor.data,
                            {Address::Base::kOutput,
                             static_cast<uint32_t>(storages[static_cast<size_t>(storage)].output), 0}});
    } else if (bytes_of(tensor) > 0) {
      plan.slots.push_back(
          {&tensor.data,
           {Address::Base::kArena, 0,
            layout.offsets[life_of[static_cast<size_t>(storage)]] + offset_of[operand.index]}});
    }
  };
  size_t workspace = tensors;
  for (size_t s = 0; s < steps_.size(); ++s) {
    Call& call = plan.calls[s];
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (steps_[s].inputs[i].kind != Operand::Kind::kNone) place(call.inputs[i], steps_[s].inputs[i]);
    }
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      const int v = steps_[s].outputs[i];
      if (v >= 0) place(call.outputs[i], {Operand::Kind::kValue, static_cast<size_t>(v)});
    }
    if (call.workspace_bytes > 0) {
      plan.slots.push_back({&call.workspace, {Address::Base::kArena, 0, layout.offsets[workspace++]}});
    }
  }
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
      return lane.arena(bytes, plan);
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
    arena = lane.arena(apart ? plan.arena_bytes_with_copies : plan.arena_bytes, plan);
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
  if (plan == nullptr) plan = &lane.add(this->plan(inputs, alignment, kMostAlignment, stream, nullptr));
  for (size_t i = 0; i < outputs_; ++i) {
    try {
      addresses[inputs_ + i] = context.output(i, plan->output_shapes[i]);
    } catch (const std::exception&) {
      // What was kept for other shapes, or for recordings, may be what is missing.
      lane.release(*plan);
      addresses[inputs_ + i] = context.output(i, plan->output_shapes[i]);
    }
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
