// A custom operator as ONNX Runtime wants it, made from a plain description.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "abi/kernel.h"
#include "abi/ort.h"
#include "abi/shape.h"

namespace graphopt::abi {

// Shape inference of one node. Missing knowledge is no error: the runtime then learns the shape when it runs.
class ShapeInference final : public Attributes {
 public:
  ShapeInference(const OrtApi* api, const OrtShapeInferContext* context) : api_(api), context_(context) {}

  ElementType element_type() const override { return ElementType::kUndefined; }
  float get_float(const char* name) const override;
  int64_t get_int(const char* name) const override;
  std::vector<int64_t> get_ints(const char* name) const override;

  SymbolicShape input(size_t i) const;

  // The element type is input 0's. Nothing is set when the rank or one dim is unknown: a dim without value
  // and name would be stored as -1, and the runtime's memory planner takes two such tensors for equally
  // large.
  void set_output(size_t i, const SymbolicShape& shape) const;

 private:
  const OrtApi* api_;
  const OrtShapeInferContext* context_;
};

// Which output may be written over which input's memory.
enum class Inplace { kNone, kInput0 };

enum class Operand {
  kTensor,  // of the op's element type
  kBool,    // a bool tensor
};

// One operator name on one device for one element type.
struct OpDescription {
  std::string name;
  const char* provider = nullptr;  // null: the CPU provider
  std::string device;              // for the log; empty: this CPU
  ElementType type = ElementType::kFloat;
  std::vector<Operand> inputs;
  size_t outputs = 1;
  Inplace inplace = Inplace::kNone;
  std::function<void(const ShapeInference&)> infer;
  std::function<std::unique_ptr<Kernel>(const NodeInfo&)> create;
};

// Must outlive the sessions that use it. The description is only referred to.
class CustomOp final : public OrtCustomOp {
 public:
  CustomOp(const OrtApi* api, const OpDescription* description);

  const OrtApi* api;
  const OpDescription* description;
};

// The domain that holds these ops, for AddCustomOpDomain.
OrtCustomOpDomain* make_domain(const OrtApi* api, const char* name,
                               const std::vector<std::unique_ptr<CustomOp>>& ops);

}  // namespace graphopt::abi
