#include "runtime/provider/addresses.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "device/program.h"
#include "runtime/provider/arena.h"

namespace graphopt::provider {
namespace {

static_assert(kArenaAlignment == kSiblingAlignment);

// Assigns a storage to each value. Views, outputs that are parts of an input (Reuse::kParts), and in-place outputs
// share the storage of another value.
class Placement {
 public:
  Placement(const Steps& steps, std::vector<void*> uploads, RegionPlan& plan)
      : steps_(steps),
        plan_(plan),
        storage_of_(steps.values.size(), -1),
        offset_of_(steps.values.size()),
        fixed_(steps.values.size()),
        constant_(std::move(uploads)) {
    plan.output_shapes.resize(steps.outputs);
    plan.bytes.resize(steps.inputs + steps.outputs);
    for (size_t s = 0; s < steps.all.size(); ++s) {
      for (size_t i = 0; i < steps.all[s].outputs.size() && !steps.all[s].computed_on_host; ++i) {
        if (steps.all[s].outputs[i] >= 0) place_output(s, i);
      }
    }
  }

  // Places each storage and each workspace, and writes the addresses to the plan.
  void fill() {
    // The storage of a region's output is not in the arena. No two outputs share storage.
    std::vector<Lifetime> lifetimes;
    lifetimes.reserve(storages_.size() + steps_.all.size());
    for (Storage& storage : storages_) {
      if (storage.output >= 0) continue;
      storage.number = lifetimes.size();
      lifetimes.push_back(storage.lifetime);
    }
    size_t workspace = lifetimes.size();
    for (size_t s = 0; s < steps_.all.size(); ++s) {
      const size_t bytes = plan_.calls[s].workspace_bytes;
      if (bytes > 0) lifetimes.push_back({bytes, s, s});
    }
    arena_ = lay_out(lifetimes);
    plan_.peak_step = arena_.peak_step;
    plan_.arena_bytes = arena_.bytes;
    plan_.arena_bytes_with_copies = arena_.bytes;
    for (const size_t bytes : plan_.bytes) {
      plan_.copies.push_back(plan_.arena_bytes_with_copies);
      plan_.arena_bytes_with_copies += arena_bytes(bytes);
    }
    size_t operands = 0;
    for (const Step& step : steps_.all) operands += step.inputs.size() + step.outputs.size() + 1;
    plan_.slots.reserve(operands);
    for (size_t s = 0; s < steps_.all.size(); ++s) {
      const Step& step = steps_.all[s];
      Call& call = plan_.calls[s];
      if (step.computed_on_host) continue;
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
  // Bytes that several values share: a value in the arena or an output, its views and parts, and results that are
  // computed in place.
  struct Storage {
    Lifetime lifetime;
    int output = -1;
    bool siblings = false;  // several outputs of one step, stored one after another
    size_t number = 0;      // index among the lifetimes in the arena
  };
  Storage& storage(int number) { return storages_[static_cast<size_t>(number)]; }

  void place_output(size_t s, size_t i) {
    const Step& step = steps_.all[s];
    const auto v = static_cast<size_t>(step.outputs[i]);
    const StepValue& value = steps_.values[v];
    const Tensor& tensor = plan_.calls[s].outputs[i];
    if (value.output >= 0) {
      const auto output = static_cast<size_t>(value.output);
      plan_.output_shapes[output] = tensor.shape;
      plan_.bytes[steps_.inputs + output] = tensor.bytes();
    }
    const Operand first = step.inputs.empty() ? Operand() : step.inputs[0];
    const int first_storage = first.kind == Operand::Kind::kValue ? storage_of_[first.index] : -1;
    int shared = -1;
    if (i == 0 && step.reuse == Reuse::kAlias) {
      if (first_storage < 0 && value.output < 0 && resolve_view(v, first)) return;
      if (first_storage >= 0 && (value.output < 0 || can_be_output(first.index, tensor))) {
        shared = first_storage;
        offset_of_[v] = offset_of_[first.index];
      }
    }
    const int64_t part = step.reuse == Reuse::kParts ? gpu::DeviceKernel::part(plan_.calls[s], i) : -1;
    if (part >= 0 && first_storage >= 0 && value.output < 0) {
      shared = first_storage;
      offset_of_[v] = offset_of_[first.index] + static_cast<size_t>(part);
    }
    if (i == 0 && step.reuse == Reuse::kInplace && first_storage >= 0 &&
        can_overwrite(first_storage, s, tensor)) {
      shared = first_storage;
    }
    if (i > 0 && step.siblings) {
      shared = storage_of_[static_cast<size_t>(step.outputs[0])];
      offset_of_[v] = storage(shared).lifetime.bytes;
      storage(shared).lifetime.bytes += arena_bytes(tensor.bytes());
    } else if (shared < 0) {
      shared = static_cast<int>(storages_.size());
      const size_t bytes = tensor.bytes();
      storages_.push_back({{step.siblings ? arena_bytes(bytes) : bytes, s, s}, -1, step.siblings});
    }
    storage(shared).lifetime.last = std::max(storage(shared).lifetime.last, value.last);
    if (value.output >= 0) storage(shared).output = value.output;
    storage_of_[v] = shared;
  }

  // Returns true if the storage of a value contains no other bytes and is not an output of the region.
  bool can_be_output(size_t v, const Tensor& tensor) {
    const Storage& of = storage(storage_of_[v]);
    return of.output < 0 && !of.siblings && of.lifetime.bytes == tensor.bytes();
  }

  // Resolves value v as a view of an operand without storage: an input, a constant, an uploaded value or another view.
  // Returns false if the operand is omitted.
  bool resolve_view(size_t v, const Operand& of) {
    switch (of.kind) {
      case Operand::Kind::kInput:
        fixed_[v] = {Address::Base::kInput, static_cast<uint32_t>(of.index), 0};
        return true;
      case Operand::Kind::kConstant:
        constant_[v] = steps_.constants[of.index].data;
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

  // Returns true if a step may write its output over its first input.
  bool can_overwrite(int number, size_t s, const Tensor& tensor) {
    const Step& step = steps_.all[s];
    const Storage& of = storage(number);
    bool alone = of.lifetime.last == s && of.output < 0 && of.lifetime.bytes == tensor.bytes();
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
      add_slot(&tensor.data, Address::Base::kOutput, static_cast<size_t>(storage(number).output),
               offset_of_[operand.index]);
    } else if (tensor.bytes() > 0) {
      add_slot(&tensor.data, Address::Base::kArena, 0,
               arena_.offsets[storage(number).number] + offset_of_[operand.index]);
    }
  }

  const Steps& steps_;
  RegionPlan& plan_;
  std::vector<Storage> storages_;
  // For each value:
  std::vector<int> storage_of_;    // index of its storage; -1 for a value without storage
  std::vector<size_t> offset_of_;  // its offset in the storage, in bytes
  std::vector<Address> fixed_;     // the address of a view of an input
  std::vector<void*> constant_;    // the address of a view of a constant, or of an uploaded value
  ArenaLayout arena_;
};

}  // namespace

void set_addresses(const Steps& steps, std::vector<void*> uploads, RegionPlan& plan) {
  Placement(steps, std::move(uploads), plan).fill();
}

}  // namespace graphopt::provider
