// Shape inference as the runtime asks a custom operator for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operators/inference.h"
#include "runtime/abi/error.h"
#include "runtime/abi/ort.h"

namespace graphopt::abi {

class ShapeInference final : public graphopt::ShapeInference {
 public:
  ShapeInference(const OrtApi* api, const OrtShapeInferContext* context) : api_(api), context_(context) {}

  std::optional<float> find_float(const char* name) const override;
  std::optional<int64_t> find_int(const char* name) const override;
  std::optional<std::vector<int64_t>> find_ints(const char* name) const override;
  std::optional<std::string> find_string(const char* name) const override;
  std::optional<std::vector<std::string>> find_strings(const char* name) const override;

  SymbolicShape input(size_t i) const override;

  // A dim without value and name would be stored as -1, and the runtime's memory planner takes two such
  // tensors for equally large.
  void set_output(size_t i, const SymbolicShape& shape,
                  ElementType type = ElementType::kUndefined) const override;

 private:
  // Null when the node has no such attribute.
  const OrtOpAttr* attribute(const char* name) const;

  const OrtApi* api_;
  const OrtShapeInferContext* context_;
};

}  // namespace graphopt::abi
