#include "device/program.h"

#include <algorithm>
#include <stdexcept>

namespace graphopt::gpu {
namespace {

constexpr int64_t kAlignment = 256;

void* resolve(const Ref& ref, const Call& call) {
  switch (ref.kind) {
    case Ref::Kind::kNone:
      break;
    case Ref::Kind::kInput:
      return ref.at == 0 ? call.inputs[ref.index].data
                         : static_cast<char*>(call.inputs[ref.index].data) + ref.at;
    case Ref::Kind::kOutput:
    case Ref::Kind::kOptional:
      return call.outputs[ref.index].data;
    case Ref::Kind::kWorkspace:
      return static_cast<char*>(call.workspace) + ref.at;
    case Ref::Kind::kAddress:
      return reinterpret_cast<void*>(ref.at);
  }
  return nullptr;
}

}  // namespace

Program::Step& Program::add(std::initializer_list<Ref> inputs, std::initializer_list<Ref> outputs) {
  if (inputs.size() > kMaxInputs || outputs.size() > kMaxOutputs) {
    throw std::logic_error("a step has too many tensors");
  }
  Step& step = steps_.emplace_back();
  std::copy(inputs.begin(), inputs.end(), step.inputs);
  std::copy(outputs.begin(), outputs.end(), step.outputs);
  return step;
}

Ref Program::reserve(int64_t bytes) {
  const int64_t at = bytes_;
  bytes_ += round_up(bytes, kAlignment);
  return {Ref::Kind::kWorkspace, 0, at};
}

void Program::launch(Plan plan, std::initializer_list<Ref> inputs, std::initializer_list<Ref> outputs,
                     Ref weights) {
  if (plan.launches.empty()) return;
  set_plan(add(inputs, outputs), std::move(plan), weights);
}

void Program::launch_unless_in_place(Plan plan, std::initializer_list<Ref> inputs,
                                     std::initializer_list<Ref> outputs) {
  if (plan.launches.empty()) return;
  Step& step = add(inputs, outputs);
  step.unless_in_place = true;
  set_plan(step, std::move(plan), {});
}

void Program::launch(Plan plan, const Call& call, Ref weights) {
  if (plan.launches.empty()) return;
  if (call.inputs.size() > kMaxInputs || call.outputs.size() > kMaxOutputs) {
    throw std::logic_error("a step has too many tensors");
  }
  Step& step = add({}, {});
  for (size_t i = 0; i < call.inputs.size(); ++i) step.inputs[i] = Ref::input(i);
  for (size_t i = 0; i < call.outputs.size(); ++i) step.outputs[i] = Ref::output(i);
  set_plan(step, std::move(plan), weights);
}

void Program::set_plan(Step& step, Plan plan, Ref weights) {
  step.weights = weights;
  step.workspace = bytes_;
  for (const int64_t bytes : plan.workspace) reserve(bytes);
  step.plan = std::move(plan);
}

void Program::call(Library library, std::initializer_list<Ref> inputs, std::initializer_list<Ref> outputs) {
  add(inputs, outputs).library = std::move(library);
}

void Program::copy(Ref to, Ref from, int64_t bytes) {
  if (bytes > 0) add({from}, {to}).bytes = bytes;
}

bool Program::run(Call& call) const {
  for (const Step& step : steps_) {
    Addresses a;
    for (size_t i = 0; i < kMaxInputs; ++i) a.inputs[i] = resolve(step.inputs[i], call);
    for (size_t i = 0; i < kMaxOutputs; ++i) a.outputs[i] = resolve(step.outputs[i], call);
    if (step.outputs[0].kind == Ref::Kind::kOutput && a.outputs[0] == nullptr) continue;
    if (step.unless_in_place && a.inputs[0] == a.outputs[0]) continue;
    if (step.library) {
      device_->reserve_nodes(kNodesOfLibraryCall);
      if (!step.library(a)) {
        call.failed |= 1u << implementation;
        return false;
      }
    } else if (step.bytes > 0) {
      if (a.outputs[0] != a.inputs[0]) {
        device_->copy(a.outputs[0], a.inputs[0], static_cast<size_t>(step.bytes), call.stream);
      }
    } else {
      constexpr size_t kMaxBuffers = 8;
      void* workspace[kMaxBuffers] = {};
      if (step.plan.workspace.size() > kMaxBuffers) throw std::logic_error("a plan has too many buffers");
      auto* next = static_cast<char*>(call.workspace) + step.workspace;
      for (size_t i = 0; i < step.plan.workspace.size(); ++i) {
        workspace[i] = next;
        next += round_up(step.plan.workspace[i], kAlignment);
      }
      device_->run(step.plan, {a.inputs, a.outputs, workspace, resolve(step.weights, call)}, call.stream);
    }
  }
  return true;
}

void DeviceKernel::plan(Call& call) const {
  auto& program = call.state.emplace<Program>(device_);
  plan(call, program);
  call.workspace_bytes = program.workspace_bytes();
}

bool DeviceKernel::avoid_workspace(Call& call) {
  const uint32_t bit = 1u << call.state.get<Program>().implementation;
  if (call.workspace_bytes == 0 || (call.failed & bit) != 0) return false;
  call.failed |= bit;
  return true;
}

int64_t DeviceKernel::part(const Call& call, size_t output) {
  const std::vector<int64_t>& parts = call.state.get<Program>().parts;
  return output < parts.size() ? parts[output] : -1;
}

bool DeviceKernel::run(Call& call) const { return call.state.get<Program>().run(call); }

}  // namespace graphopt::gpu
