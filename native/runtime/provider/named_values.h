// Values of a region during compilation, by name. Each value exists in channels-first layout, in
// channels-last layout, or in both.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "runtime/abi/graph.h"
#include "runtime/provider/registry.h"
#include "runtime/provider/siblings.h"
#include "runtime/provider/steps.h"
#include "runtime/provider/tails.h"

namespace graphopt::provider {

// The nodes and kernel of a step during compilation.
struct StepSource {
  const NodeInGraph* node = nullptr;
  const Registration* op = nullptr;
  std::optional<Tail> tail;
  Siblings members;               // indices of the sibling nodes in the region, this one first
  bool computed_on_host = false;  // during planning
  bool channels_last = false;     // its kernel computes in channels last
  // For each input of the step: the node that reads it, and its index among the inputs of that node.
  std::vector<std::pair<const NodeInGraph*, size_t>> inputs;
};

// Returns true for a tensor that can be stored in channels first or last.
bool has_layouts(const Value& value);
// Returns true for a tensor [C, 1, 1], one element for each channel; in channels last it is [C].
bool is_column(const Value& value);

class NamedValues {
 public:
  NamedValues(Steps& steps, gpu::Device& device, const std::vector<std::string>& inputs,
              const std::vector<std::string>& outputs);

  bool has(const std::string& name) const { return known_.count(name) > 0; }
  bool is_output(const std::string& name) const { return outputs_.count(name) > 0; }
  // Returns true if the value is computed on the host during planning.
  bool is_computed_on_host(const std::string& name) const;
  // Returns true if a step of the region writes the value in channels first.
  bool is_written(const std::string& name) const;

  // Adds an output of the next step, and returns its index among the values.
  int add(const std::string& name, bool channels_last);
  // Returns the value in the requested layout, if necessary by adding a step that copies it.
  Operand get(const std::string& name, bool channels_last, const Value& value,
              std::vector<StepSource>& sources);
  // Adds a Transpose between [N, C, H, W] and [N, H, W, C] without a copy. From [N, C, H, W], the output is a view of
  // the input's channels-last form. To [N, C, H, W], the output's channels-last form is a view of the input. Returns
  // false for other nodes, and if the input does not exist in the layout that is needed.
  bool add_view(const abi::GraphNode& node, std::vector<StepSource>& sources);
  // Returns true if the step should run in channels last. `written`: the node that writes the step's output.
  bool is_channels_last(const StepSource& source, const NodeInGraph& written) const;

 private:
  struct Known {
    Operand as[2];  // in channels first, in channels last
    bool written_channels_last = false;
  };

  // Returns the index of a value that the next step writes. Region outputs are in channels first.
  size_t new_value(const std::string& name, bool channels_last);

  Steps& steps_;
  gpu::Device& device_;
  std::map<std::string, Known> known_;
  std::map<std::string, int> outputs_;
};

}  // namespace graphopt::provider
