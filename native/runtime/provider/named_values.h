// The values of a region while it is compiled, by name, each in channels first, last, or both.
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

// What a step is made of.
struct StepSource {
  const abi::GraphNode* node = nullptr;
  const Registration* op = nullptr;
  std::optional<Tail> tail;
  Siblings members;                                              // of the region's nodes, itself first
  bool planned = false;                                          // is computed with the plan
  bool last = false;                                             // its kernel is one for channels last
  std::vector<std::pair<const abi::GraphNode*, size_t>> inputs;  // of which node, and its number there
};

// Whether it is a tensor that may lie in channels first or last.
bool has_layouts(const Value& value);

class NamedValues {
 public:
  NamedValues(Steps& steps, gpu::Device& device, const std::vector<std::string>& inputs,
              const std::vector<std::string>& outputs);

  bool has(const std::string& name) const { return known_.count(name) > 0; }
  bool is_output(const std::string& name) const { return outputs_.count(name) > 0; }
  // Whether it is computed with the plan.
  bool is_planned(const std::string& name) const;
  bool is_written(const std::string& name) const;

  // What a step writes: its number among the values.
  int add(const std::string& name, bool last);
  // In the layout that is wanted, perhaps by a copy, which is another step.
  Operand get(const std::string& name, bool last, const Value& value, std::vector<StepSource>& sources);
  // Whether a step is to be one for channels last. `written`: the node that writes what it comes to.
  bool lies_last(const StepSource& source, const abi::GraphNode& written) const;

 private:
  struct Known {
    Operand as[2];  // in channels first, in channels last
    bool written_last = false;
  };

  // The number of a value that the next step writes. What the region gives out is in channels first.
  size_t new_value(const std::string& name, bool last);

  Steps& steps_;
  gpu::Device& device_;
  std::map<std::string, Known> known_;
  std::map<std::string, int> outputs_;
};

}  // namespace graphopt::provider
