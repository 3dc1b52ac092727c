// A node as it stands in its graph, before any session runs it.
#pragma once

#include <string>
#include <vector>

#include "operators/kernel.h"

namespace graphopt {

class NodeInGraph : public Node {
 public:
  const std::string& domain() const { return domain_; }
  // Names of the values; empty for one that is left out.
  const std::vector<std::string>& input_names() const { return input_names_; }
  const std::vector<std::string>& output_names() const { return output_names_; }
  bool is_constant(size_t i) const { return constant_[i]; }

 protected:
  std::string domain_;
  std::vector<std::string> input_names_, output_names_;
  std::vector<bool> constant_;
};

}  // namespace graphopt
