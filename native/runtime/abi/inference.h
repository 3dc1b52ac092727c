// Shape inference as the runtime asks a custom operator for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operators/kernel.h"
#include "operators/symbolic_shape.h"
#include "runtime/abi/error.h"
#include "runtime/abi/ort.h"

namespace graphopt::abi {

// Shape inference of one node. Missing knowledge is no error: the runtime then learns the shape when it runs.
class ShapeInference final : public Attributes {
 public:
  ShapeInference(const OrtApi* api, const OrtShapeInferContext* context) : api_(api), context_(context) {}

  std::optional<float> find_float(const char* name) const override;
  std::optional<int64_t> find_int(const char* name) const override;
  std::optional<std::vector<int64_t>> find_ints(const char* name) const override;
  std::optional<std::string> find_string(const char* name) const override;

  SymbolicShape input(size_t i) const;

  // The element type is input 0's. Nothing is set when the rank or one dim is unknown: a dim without value
  // and name would be stored as -1, and the runtime's memory planner takes two such tensors for equally
  // large.
  void set_output(size_t i, const SymbolicShape& shape) const;

 private:
  // Null when the node has no such attribute.
  const OrtOpAttr* attribute(const char* name) const;
  template <class T>
  std::optional<T> find(const char* name, AttributeKind kind) const;

  const OrtApi* api_;
  const OrtShapeInferContext* context_;
};

}  // namespace graphopt::abi
