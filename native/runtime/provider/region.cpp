#include "runtime/provider/region.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "device/libraries/libraries.h"
#include "device/node_scope.h"
#include "device/program.h"
#include "device/stream_context.h"
#include "operators/implementations.h"
#include "runtime/abi/error.h"
#include "runtime/provider/addresses.h"
#include "runtime/provider/arena.h"
#include "runtime/provider/guarded.h"
#include "runtime/provider/staging.h"
#include "runtime/run_node.h"

namespace graphopt::provider {
namespace {

using abi::OrtStatus;

// Maximum numbers of refused captures of a plan and of a region. After that, no more captures are tried.
constexpr int kMaxRefusals = 3, kMaxRefusalsOfAll = 16;
// Maximum number of graphs with caller addresses that a plan keeps.
constexpr size_t kMaxCaptured = 2;
// Maximum number of graphs with caller addresses that are captured for a plan; beyond it, copies are cheaper.
constexpr int kMaxDirectCaptures = 16;

constexpr const char* kEventNames[] = {"compiled", "fused",   "planned", "launched",  "captured", "replayed",
                                       "copied",   "refused", "dropped", "converted", "copy_in",  "copy_out"};
// True after a graph of this process gave other results than the same launches; graphs are then disabled.
std::atomic<bool> graphs_differ{false};
std::atomic<uint64_t> event_counts[std::size(kEventNames)], planning_nanoseconds;

size_t alignment_of(void* const* addresses, size_t count) {
  uintptr_t bitwise_or = 0;
  for (size_t i = 0; i < count; ++i) bitwise_or |= reinterpret_cast<uintptr_t>(addresses[i]);
  return gpu::alignment_of(bitwise_or);
}

std::string text_of(const Tensors& tensors) {
  std::string text;
  for (const Tensor& t : tensors) {
    text += t.present() ? std::string(" ") + element_type_name(t.type) + t.shape.text() : " -";
  }
  return text;
}

// A failure that is attributed to one node.
class NodeFailure final : public abi::StatusError {
 public:
  using StatusError::StatusError;
};

// Adds the node to the current exception's message. Call it in an exception handler.
[[noreturn]] void rethrow_with_node(const std::string& node) {
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

bool disable_graphs() { return !graphs_differ.exchange(true); }

std::string describe_regions() {
  std::string text;
  for (size_t i = 0; i < std::size(kEventNames); ++i) {
    text += (i > 0 ? ", \"" : "{\"") + std::string(kEventNames[i]) + "\": " + std::to_string(event_counts[i]);
  }
  return text + ", \"planning_us\": " + std::to_string(planning_nanoseconds / 1000) + "}";
}

Region::Region(const Registry& registry, const abi::OrtGraph* graph, const abi::OrtNode* fused,
               const std::set<std::string>& computed_on_host, std::shared_ptr<SessionMemory> memory,
               std::shared_ptr<RegionCache> cache, std::shared_ptr<Profile> profile, RegionOptions options)
    : OrtNodeComputeInfo{},
      api_(registry.api()),
      registry_(registry),
      device_(registry.device()),
      memory_(std::move(memory)),
      cache_(std::move(cache)),
      profile_(std::move(profile)),
      options_(std::move(options)) {
  version = abi::kEpApiRevision;
  CreateState = [](OrtNodeComputeInfo* self, abi::OrtNodeComputeContext*, void** state) -> OrtStatus* {
    *state = static_cast<Region*>(self);
    return nullptr;
  };
  Compute = [](OrtNodeComputeInfo* self, void*, abi::OrtKernelContext* context) {
    return static_cast<Region*>(self)->compute(context);
  };
  ReleaseState = [](OrtNodeComputeInfo*, void*) {};
  compile(graph, fused, computed_on_host);
  count_region(RegionEvent::kCompiled);
}

Region::~Region() {
  cache_->forget(*this);
  try {
    const gpu::OnDevice on(device_);  // kernels free device memory
    steps_.all.clear();
    blocks_.clear();
  } catch (const std::exception&) {  // a broken device
  }
}

OrtStatus* Region::compute(abi::OrtKernelContext* raw) const noexcept {
  const abi::Context context(api_, api_, raw);
  try {
    last_failure();  // clears failures of other calls
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

RegionPlan Region::plan(const Tensors& inputs, size_t alignment, size_t output_alignment, void* stream,
                        const RegionPlan* abandoned) const {
  const auto begin = std::chrono::steady_clock::now();
  RegionPlan plan;
  plan.region = this;
  for (const Tensor& t : inputs) plan.shapes.push_back(t.shape);
  plan.alignment = alignment;
  plan.output_alignment = output_alignment;
  // Keep the generation of the abandoned plan. If a library was busy at that time and has become free since,
  // the current generation is higher, and the next run plans again.
  plan.generation = abandoned != nullptr ? abandoned->generation : gpu::library_generation();
  plan.calls = std::make_unique<Call[]>(steps_.all.size());
  std::vector<const Tensor*> written(steps_.values.size());  // null after a refused step
  std::string refusals;
  for (size_t s = 0; s < steps_.all.size(); ++s) {
    const Step& step = steps_.all[s];
    const auto is_unknown = [&](const Operand& operand) {
      return operand.kind == Operand::Kind::kValue && written[operand.index] == nullptr;
    };
    if (std::any_of(step.inputs.begin(), step.inputs.end(), is_unknown)) continue;
    Call& call = plan.calls[s];
    call.inputs.resize(step.inputs.size());
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const Operand& operand = step.inputs[i];
      if (operand.kind == Operand::Kind::kInput) {
        call.inputs[i] = inputs[operand.index];
        call.inputs[i].data = nullptr;
      }
      if (operand.kind == Operand::Kind::kConstant) call.inputs[i] = steps_.constants[operand.index];
      if (operand.kind == Operand::Kind::kValue) call.inputs[i] = *written[operand.index];
      if (!step.computed_on_host && !operand.host) call.inputs[i].place = Place::kDevice;
    }
    call.outputs.resize(step.outputs.size());
    call.alignment = std::min(alignment, output_alignment);
    call.stream = stream;
    call.only = step.only;
    call.libraries = options_.libraries.get();
    call.measured = options_.measured.get();
    if (abandoned != nullptr) call.failed = abandoned->calls[s].failed;
    try {
      plan_step(s, plan);
      for (size_t i = 0; i < step.outputs.size(); ++i) {
        if (step.outputs[i] >= 0) written[static_cast<size_t>(step.outputs[i])] = &call.outputs[i];
      }
    } catch (const Error& e) {
      if (step.only < 0) rethrow_with_node(describe(step, call));
      // The error lists all nodes that the required implementation refuses. The self-test then needs only one more
      // session to test it on the other nodes.
      refusals += (refusals.empty() ? "" : "\n") + describe(step, call) + ": " + e.what();
    } catch (...) {
      rethrow_with_node(describe(step, call));
    }
  }
  if (!refusals.empty()) throw NodeFailure(refusals, abi::ErrorCode::kInvalidArgument);
  for (size_t i = 0; i < inputs.size(); ++i) {
    plan.bytes.push_back(steps_.shape_only_inputs[i] ? 0 : inputs[i].bytes());
    plan.types.push_back(inputs[i].type);
  }
  set_addresses(steps_, upload(plan, written, stream), plan);
  count_region(RegionEvent::kPlanned);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
  planning_nanoseconds += static_cast<uint64_t>(took.count());
  return plan;
}

// Steps that are computed on the host run during planning.
void Region::plan_step(size_t s, RegionPlan& plan) const {
  const Kernel& kernel = *steps_.all[s].kernel;
  Call& call = plan.calls[s];
  kernel.plan(call);
  if (!steps_.all[s].computed_on_host) return;
  Tensor& y = call.outputs[0];
  y.data = plan.host_values.emplace_back(std::make_unique<unsigned char[]>(y.bytes())).get();
  kernel.run(call);
}

Region::HostValues Region::values_of_shapes(const Tensors& inputs) const {
  HostValues found;
  for (const size_t s : steps_.shape_steps) {
    const Step& step = steps_.all[s];
    Call call;
    call.inputs.resize(step.inputs.size());
    call.outputs.resize(step.outputs.size());
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const Operand& operand = step.inputs[i];
      if (operand.kind == Operand::Kind::kInput) call.inputs[i] = inputs[operand.index];
      if (operand.kind == Operand::Kind::kConstant) call.inputs[i] = steps_.constants[operand.index];
      if (operand.kind == Operand::Kind::kValue) call.inputs[i] = found.values.at(operand.index);
    }
    try {
      step.kernel->plan(call);
      Tensor& y = call.outputs[0];
      y.data = found.memory.emplace_back(std::make_unique<unsigned char[]>(y.bytes())).get();
      step.kernel->run(call);
      found.values[static_cast<size_t>(step.outputs[0])] = y;
    } catch (...) {
      rethrow_with_node(describe(step, call));
    }
  }
  return found;
}

bool Region::fits(RegionPlan& plan, const Tensors& inputs, const std::vector<Shape>& shapes,
                  HostValues& values) const {
  bool equal = true;
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (plan.shapes[i] == shapes[i]) continue;
    if (!steps_.shape_only_inputs[i]) return false;
    equal = false;
  }
  if (equal) return true;
  if (values.memory.empty()) values = values_of_shapes(inputs);
  for (const auto& [s, i] : steps_.shape_step_readers) {
    const Step& step = steps_.all[s];
    const Tensor& planned = plan.calls[s].inputs[i];
    const Tensor& value = values.values.at(step.inputs[i].index);
    const bool same =
        planned.shape == value.shape && std::memcmp(planned.data, value.data, value.bytes()) == 0;
    if (!same && !(step.keeps_plan && step.keeps_plan(plan.calls[s], i, value))) return false;
  }
  plan.shapes = shapes;
  return true;
}

// Uploads the values that were computed during planning and are read on the device; returns their device addresses.
std::vector<void*> Region::upload(RegionPlan& plan, const std::vector<const Tensor*>& written,
                                  void* stream) const {
  std::vector<void*> uploads(steps_.values.size());
  std::vector<size_t> offsets(steps_.values.size());
  size_t total = 0;
  for (size_t v = 0; v < steps_.values.size(); ++v) {
    if (!steps_.values[v].uploaded) continue;
    offsets[v] = total;
    total += arena_bytes(written[v]->bytes());
  }
  if (total == 0) return uploads;
  const auto bytes = std::make_unique<unsigned char[]>(total);
  plan.uploads = std::make_unique<Block>(memory_, total, stream, gpu::MemoryUse::kConstants);
  for (size_t v = 0; v < steps_.values.size(); ++v) {
    if (!steps_.values[v].uploaded) continue;
    if (written[v]->bytes() > 0) std::memcpy(bytes.get() + offsets[v], written[v]->data, written[v]->bytes());
    uploads[v] = static_cast<char*>(plan.uploads->data()) + offsets[v];
  }
  staging(device_).upload(plan.uploads->data(), bytes.get(), total, stream);
  return uploads;
}

bool Region::enqueue(RegionPlan& plan, void* arena, const std::vector<void*>& addresses, void* stream,
                     bool capturing) const {
  for (const RegionPlan::Slot& slot : plan.slots) {
    const Address& a = slot.address;
    void* base = a.base == Address::Base::kArena   ? arena
                 : a.base == Address::Base::kInput ? addresses[a.index]
                                                   : addresses[steps_.inputs + a.index];
    *slot.pointer = base != nullptr ? static_cast<char*>(base) + a.offset : nullptr;
  }
  for (size_t s = 0; s < steps_.all.size(); ++s) {
    const Step& step = steps_.all[s];
    Call& call = plan.calls[s];
    if (step.computed_on_host) continue;
    try {
      gpu::NodeScope scope(device_, step.name);
      if (capturing) {
        if (!step.kernel->run(call)) return false;
        device_.check_capture(stream);
      } else {
        NodeTimer timer(*profile_, step.name, step.op, fused_name_, stream);
        if (!step.kernel->run(call)) return false;
        timer.finish();
        scope.finish(stream);
      }
    } catch (...) {
      rethrow_with_node(describe(step, call));
    }
  }
  return true;
}

void Region::refuse(RegionPlan& plan, const std::string& why) const {
  ++plan.refusals;
  ++refusals_;
  count_region(RegionEvent::kRefused);
  log_refusal(why);
}

void Region::log_refusal(const std::string& why) const {
  if (!log_enabled() || refusal_logged_.exchange(true)) return;
  std::fprintf(stderr, "graphopt: %s runs launch by launch: %s\n", name_.c_str(), why.c_str());
}

// A failed capture leaves the calls of the plan unchanged.
bool Region::try_capture(RegionPlan& plan, Captured& captured, void* stream) const {
  std::vector<uint32_t> failed(steps_.all.size());
  for (size_t s = 0; s < steps_.all.size(); ++s) failed[s] = plan.calls[s].failed;
  std::string why;
  try {
    gpu::Capture capture(device_, stream, options_.graph_nodes);
    if (capture.why_not() != nullptr) {  // not a refusal by the driver: a later run may start a capture
      log_refusal(capture.why_not());
      return false;
    }
    void* arena = captured.arena != nullptr ? captured.arena->data() : nullptr;
    if (enqueue(plan, arena, captured.addresses, stream, true)) {
      captured.graph = capture.end();
      count_region(RegionEvent::kCaptured);
      if (log_enabled() && !captured_logged_.exchange(true)) {
        std::fprintf(stderr, "graphopt: %s is captured\n", name_.c_str());
      }
      return true;
    }
    why = "a vendor library can't be captured";
  } catch (const std::exception& e) {
    why = e.what();
  }
  for (size_t s = 0; s < steps_.all.size(); ++s) plan.calls[s].failed = failed[s];
  refuse(plan, why);
  return false;
}

// Returns the graph for these addresses or the graph with copies, and captures it if needed; null if there is none.
Captured* Region::captured_graph(RegionPlan& plan, RegionCache::Lease& lease,
                                 const std::vector<void*>& addresses, bool needs_copies, bool known_addresses,
                                 void* stream) const {
  if (options_.verify_graphs && !plan.verified) {
    // verify() alters the inputs, so they must be copies.
    if (staged(plan, lease, addresses, std::vector<bool>(addresses.size()), stream) == nullptr)
      return nullptr;
    if (!verify(plan, addresses, stream)) {
      plan.staged = {};
      return nullptr;
    }
  }
  if (!needs_copies) {
    for (Captured& captured : plan.captured) {
      if (captured.addresses != addresses) continue;
      captured.used = plan.runs;
      return &captured;
    }
    if (known_addresses && plan.direct_captures < kMaxDirectCaptures) {
      Captured captured;
      captured.addresses = addresses;
      captured.arena = lease.arena(plan.arena_bytes);
      captured.used = plan.runs;
      if (!try_capture(plan, captured, stream)) return nullptr;
      if (options_.verify_graphs &&
          !check_graph(plan, [&] { return replays_as_launched(plan, captured, stream); })) {
        return nullptr;
      }
      ++plan.direct_captures;
      lease.trim(*this);
      if (plan.captured.size() == kMaxCaptured) {
        device_.synchronize(stream);  // some drivers cannot destroy a graph while it runs
        plan.captured.erase(std::min_element(plan.captured.begin(), plan.captured.end(),
                                             [](const auto& a, const auto& b) { return a.used < b.used; }));
      }
      return &plan.captured.emplace_back(std::move(captured));
    }
  }
  return staged(plan, lease, addresses, in_place(plan, addresses), stream);
}

std::vector<bool> Region::in_place(const RegionPlan& plan, const std::vector<void*>& addresses) const {
  std::vector<bool> result(addresses.size());
  for (const auto& [i, output] : steps_.in_place) {
    const size_t o = steps_.inputs + output;
    if (addresses[i] != addresses[o] || plan.bytes[i] != plan.bytes[o]) continue;
    result[i] = result[o] = true;
  }
  return result;
}

// Returns the graph with copies of inputs and outputs, and captures it if needed; null if there is none.
Captured* Region::staged(RegionPlan& plan, RegionCache::Lease& lease, const std::vector<void*>& addresses,
                         const std::vector<bool>& kept, void* stream) const {
  if (plan.staged.graph != nullptr) {
    if (plan.staged.addresses == copies_of(plan, plan.staged.arena.get(), addresses, kept))
      return &plan.staged;
    if (plan.direct_captures >= kMaxDirectCaptures) return nullptr;
    ++plan.direct_captures;
    device_.synchronize(stream);  // some drivers cannot destroy a graph while it runs
    plan.staged = {};
  }
  try {
    plan.staged.arena = lease.arena(plan.arena_bytes_with_copies);
  } catch (const gpu::OutOfMemory& e) {
    if (plan.arena_bytes_with_copies == plan.arena_bytes) throw;  // a run without a graph needs as much
    refuse(plan, e.what());
    return nullptr;
  }
  plan.staged.addresses = copies_of(plan, plan.staged.arena.get(), addresses, kept);
  if (!try_capture(plan, plan.staged, stream)) {
    plan.staged = {};
    return nullptr;
  }
  lease.trim(*this);
  return &plan.staged;
}

// Returns the addresses of the copies of inputs and outputs; null for values without bytes. Values in `kept` are not
// copied and keep their addresses.
std::vector<void*> Region::copies_of(const RegionPlan& plan, const Block* arena,
                                     const std::vector<void*>& addresses,
                                     const std::vector<bool>& kept) const {
  std::vector<void*> copies(addresses.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (kept[i]) {
      copies[i] = addresses[i];
    } else if (addresses[i] != nullptr && plan.bytes[i] > 0) {
      copies[i] = static_cast<char*>(arena->data()) + plan.copies[i];
    }
  }
  return copies;
}

void Region::copy(const RegionPlan& plan, const std::vector<void*>& to, const std::vector<void*>& from,
                  size_t begin, size_t end, void* stream) const {
  for (size_t i = begin; i < end; ++i) {
    if (to[i] != nullptr && to[i] != from[i]) device_.copy(to[i], from[i], plan.bytes[i], stream);
  }
}

bool Region::run_planned(RegionPlan& plan, RegionCache::Lease& lease, const std::vector<void*>& addresses,
                         void* stream) const {
  // A caller may bind an output to memory that overlaps an input. Steps that read the input later then need a
  // copy of it.
  const std::vector<bool> kept = in_place(plan, addresses);
  bool needs_copies = false;
  for (size_t i = 0; i < steps_.inputs; ++i) {
    for (size_t o = steps_.inputs; o < addresses.size(); ++o) {
      if (kept[i] && kept[o] && addresses[i] == addresses[o]) continue;
      needs_copies = needs_copies || overlap(addresses[i], plan.bytes[i], addresses[o], plan.bytes[o]);
    }
  }
  auto& [last, earlier] = plan.recent_addresses;
  const bool known_addresses = addresses == last || addresses == earlier;
  if (addresses != last) {
    earlier = std::move(last);
    last = addresses;
  }
  // The null stream cannot be captured.
  if (++plan.runs > 1 && options_.capture && stream != nullptr && plan.refusals < kMaxRefusals &&
      refusals_ < kMaxRefusalsOfAll && !graphs_differ && !gpu::synchronous() && !profile_->is_active()) {
    if (const Captured* found =
            captured_graph(plan, lease, addresses, needs_copies, known_addresses, stream)) {
      const bool staged = found == &plan.staged;
      if (staged) copy(plan, found->addresses, addresses, 0, steps_.inputs, stream);
      found->graph->launch(stream);
      if (staged) copy(plan, addresses, found->addresses, steps_.inputs, addresses.size(), stream);
      count_region(staged ? RegionEvent::kCopied : RegionEvent::kReplayed);
      return true;
    }
  }
  std::shared_ptr<Block> arena;
  try {
    arena = lease.arena(needs_copies ? plan.arena_bytes_with_copies : plan.arena_bytes);
  } catch (const gpu::OutOfMemory& e) {
    throw gpu::OutOfMemory("node '" + steps_.all[plan.peak_step].name +
                           "' needs the most memory: " + e.what());
  }
  void* data = arena != nullptr ? arena->data() : nullptr;
  count_region(RegionEvent::kLaunched);
  if (!needs_copies) return enqueue(plan, data, addresses, stream, false);
  const std::vector<void*> copies = copies_of(plan, arena.get(), addresses, kept);
  copy(plan, copies, addresses, 0, steps_.inputs, stream);
  if (!enqueue(plan, data, copies, stream, false)) return false;
  copy(plan, addresses, copies, steps_.inputs, addresses.size(), stream);
  return true;
}

void Region::run(const abi::Context& context) const {
  void* stream = context.gpu_stream();
  Tensors inputs;
  inputs.resize(steps_.inputs);
  std::vector<void*> addresses(steps_.inputs + steps_.outputs);
  std::vector<Shape> shapes(steps_.inputs);
  std::vector<std::unique_ptr<Block>> copies;  // freed when the work that reads them is enqueued
  for (size_t i = 0; i < steps_.inputs; ++i) {
    const abi::OrtValue* value = context.input(i);
    context.read(value, inputs[i]);
    // From 1.27 on the runtime passes tensors in host memory that the device can access. On a discrete device, kernels
    // would read them over the bus, and some kernels would do so several times.
    if (!device_.facts().integrated && !steps_.shape_only_inputs[i] && inputs[i].bytes() > 0 &&
        is_host_accessible(api_, abi::Value_GetMemoryDevice(abi::GetEpApi(api_), value))) {
      auto& copy = copies.emplace_back(
          std::make_unique<Block>(memory_, inputs[i].bytes(), stream, gpu::MemoryUse::kTensors));
      device_.copy(copy->data(), inputs[i].data, inputs[i].bytes(), stream);
      inputs[i].data = copy->data();
    }
    inputs[i].place = Place::kDevice;
    addresses[i] = steps_.shape_only_inputs[i] ? nullptr : inputs[i].data;
    shapes[i] = inputs[i].shape;
  }
  const size_t alignment = alignment_of(addresses.data(), steps_.inputs);
  RegionCache::Lease lease(*cache_, stream);
  HostValues values;
  RegionPlan* plan = lease.find(
      *this, [&](RegionPlan& p) { return p.alignment == alignment && fits(p, inputs, shapes, values); });
  if (plan != nullptr && plan->generation != gpu::library_generation()) {
    lease.drop(*plan);
    plan = nullptr;
  }
  if (plan == nullptr) plan = &lease.add(this->plan(inputs, alignment, gpu::kMaxAlignment, stream, nullptr));
  for (size_t i = 0; i < steps_.outputs; ++i) {
    addresses[steps_.inputs + i] = context.output(i, plan->output_shapes[i], true);
  }
  const size_t output_alignment = alignment_of(addresses.data() + steps_.inputs, steps_.outputs);
  if (output_alignment < plan->output_alignment) {
    RegionPlan other = this->plan(inputs, alignment, output_alignment, stream, plan);
    lease.drop(*plan);
    plan = &lease.add(std::move(other));
  }
  const auto run = [&] {
    try {
      return run_planned(*plan, lease, addresses, stream);
    } catch (const gpu::OutOfMemory&) {
      const auto* kernel = dynamic_cast<const gpu::DeviceKernel*>(steps_.all[plan->peak_step].kernel.get());
      if (kernel == nullptr || !kernel->avoid_workspace(plan->calls[plan->peak_step])) throw;
      return false;
    }
  };
  while (!run()) {
    RegionPlan other = this->plan(inputs, alignment, plan->output_alignment, stream, plan);
    other.refusals = plan->refusals;
    lease.drop(*plan);
    plan = &lease.add(std::move(other));
  }
}

}  // namespace graphopt::provider
