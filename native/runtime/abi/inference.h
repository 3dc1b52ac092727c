// Shape inference of a custom operator, as called by the runtime.
#pragma once

#include "operators/inference.h"
#include "runtime/abi/attributes.h"
#include "runtime/abi/error.h"
#include "runtime/abi/ort.h"

namespace graphopt::abi {

class ShapeInference final : public WithAttributes<graphopt::ShapeInference> {
 public:
  ShapeInference(const OrtApi* api, const OrtShapeInferContext* context)
      : WithAttributes(api), api_(api), context_(context) {}

  SymbolicShape input(size_t i) const override;

  // Leaves the output's shape unset if a dim has neither value nor name. Such a dim would be stored as -1, and the
  // runtime's memory planner would treat two dims of -1 as equal.
  void set_output(size_t i, const SymbolicShape& shape,
                  ElementType type = ElementType::kUndefined) const override;

 private:
  const OrtOpAttr* attribute(const char* name) const override;

  const OrtApi* api_;
  const OrtShapeInferContext* context_;
};

}  // namespace graphopt::abi
