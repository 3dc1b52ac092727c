// A compiled region: its steps in execution order, and the values between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "operators/kernel.h"
#include "operators/table.h"

namespace graphopt::provider {

// An input of a step: an input of the region, a constant, or the output of another step.
struct Operand {
  enum class Kind : uint8_t { kNone, kInput, kConstant, kValue };
  Kind kind = Kind::kNone;
  size_t index = 0;
  bool channels_last = false;  // a constant that is read in channels last
  bool host = false;           // read in host memory
};

// A node, several nodes computed by one kernel, or a copy between layouts.
struct Step {
  std::string op, name;
  std::unique_ptr<Kernel> kernel;
  std::vector<Operand> inputs;
  std::vector<int> outputs;  // indices of values; -1 for an omitted output
  Reuse reuse = Reuse::kNone;
  std::vector<std::pair<size_t, size_t>> in_place;  // Registration::in_place
  decltype(Registration::keeps_plan) keeps_plan;
  bool siblings = false;          // its outputs are contiguous
  bool computed_on_host = false;  // during planning
  int only = -1;
};

// A value that a step writes.
struct StepValue {
  size_t first = 0, last = 0;     // the step that writes it, and the last one that reads it
  int output = -1;                // index of the region's output; -1: none
  bool computed_on_host = false;  // during planning
  bool uploaded = false;          // computed on the host, and read on the device
};

struct Steps {
  std::vector<Step> all;
  std::vector<StepValue> values;
  std::vector<Tensor> constants;
  size_t inputs = 0, outputs = 0;  // numbers of the region's inputs and outputs
  // Indices of an input and an output of the region that may be the same memory.
  std::vector<std::pair<size_t, size_t>> in_place;
  // For each input of the region, whether only host-computed steps read it. They read only its shape.
  std::vector<bool> shape_only_inputs;
  // The host-computed steps that depend on the shapes of these inputs.
  std::vector<size_t> shape_steps;
  // The inputs (step, index) of other steps that read the values of shape_steps.
  std::vector<std::pair<size_t, size_t>> shape_step_readers;
};

}  // namespace graphopt::provider
