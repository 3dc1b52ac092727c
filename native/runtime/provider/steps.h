// A region as it was compiled: steps in the order in which they run, and the values between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "operators/kernel.h"
#include "operators/table.h"

namespace graphopt::provider {

// What a step reads: an input of the region, a constant, or what another step writes.
struct Operand {
  enum class Kind : uint8_t { kNone, kInput, kConstant, kValue };
  Kind kind = Kind::kNone;
  size_t index = 0;
  bool last = false;  // a constant that is wanted in channels last
  bool host = false;  // read in host memory
};

// A node, or several that one kernel computes, or a copy between layouts.
struct Step {
  std::string op, name;
  std::unique_ptr<Kernel> kernel;
  std::vector<Operand> inputs;
  std::vector<int> outputs;  // values; -1 for one that is left out
  Reuse reuse = Reuse::kNone;
  bool siblings = false;  // its outputs lie one behind another
  bool planned = false;   // is computed with the plan
  int only = -1;
};

// A value that a step writes.
struct Written {
  size_t first = 0, last = 0;  // steps: that which writes it, and the last one that reads it
  int output = -1;             // of the region
  bool planned = false;        // on the host, and known with the plan
  bool uploaded = false;       // and read on the device
};

struct Steps {
  std::vector<Step> all;
  std::vector<Written> values;
  std::vector<Tensor> constants;
  size_t inputs = 0, outputs = 0;  // of the region
};

}  // namespace graphopt::provider
