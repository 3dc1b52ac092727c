#include "runtime/custom_ops/custom_op.h"

#include "runtime/abi/error.h"
#include "runtime/abi/inference.h"
#include "runtime/run_node.h"

namespace graphopt::runtime {
namespace {

using abi::OrtStatus;

const CustomOp& custom_op(const abi::OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

// The kernel object that the runtime holds for one node.
struct KernelHandle {
  const CustomOp& op;
  abi::HostMemory memory;
  BoundKernel bound;

  KernelHandle(const abi::OrtApi* api, const CustomOp& custom_op) : op(custom_op), memory(api) {}

  std::string where() const {
    return "com.graphopt::" + op.registration.name + " (" + element_type_name(op.type) + ") node '" +
           bound.node + "', inputs";
  }
};

std::string known_shapes(const Node& node) {
  std::string text;
  for (const Value& value : node.inputs) text += " " + (value.shape ? value.shape->text() : "[?]");
  return text;
}

OrtStatus* create_kernel(const abi::OrtCustomOp* raw, const abi::OrtApi* api, const abi::OrtKernelInfo* info,
                         void** out) {
  const CustomOp& op = custom_op(raw);
  try {
    auto handle = std::make_unique<KernelHandle>(api, op);
    const abi::NodeInfo node(api, info, op.registration.name);
    handle->bound.node = node.name;
    try {
      const size_t inputs = op.registration.inputs.size();
      if (node.inputs.size() != inputs) {
        throw Error("needs " + std::to_string(inputs) + " inputs, got " + std::to_string(node.inputs.size()));
      }
      handle->bound.inputs = inputs;
      handle->bound.outputs = op.registration.outputs;
      handle->bound.kernel = op.registration.create(node);
      handle->bound.kernel->prepare(node);
    } catch (...) {
      return abi::current_exception_status(api, {handle->where(), known_shapes(node)});
    }
    *out = handle.release();
    return nullptr;
  } catch (...) {
    return abi::current_exception_status(api, {});
  }
}

OrtStatus* compute(void* raw_handle, abi::OrtKernelContext* raw_context) {
  const KernelHandle& handle = *static_cast<KernelHandle*>(raw_handle);
  const abi::Context context(handle.op.api, handle.op.api24, raw_context);
  try {
    run_node(handle.bound, context, handle.memory);
    return nullptr;
  } catch (...) {
    try {
      return abi::current_exception_status(context.api(), {handle.where(), input_shapes(context)});
    } catch (...) {
      return abi::current_exception_status(context.api(), {});
    }
  }
}

void destroy_kernel(void* handle) { delete static_cast<KernelHandle*>(handle); }

// Returns no status after a failure (for example a missing attribute): the runtime would ignore the status and leak it.
// Kernel creation reports the same failure.
OrtStatus* infer_output_shape(const abi::OrtCustomOp* op, abi::OrtShapeInferContext* raw) {
  try {
    custom_op(op).registration.infer(abi::ShapeInference(custom_op(op).api, raw));
  } catch (...) {
  }
  return nullptr;
}

size_t inplace_input0(int** inputs, int** outputs) {
  static int zero[1] = {0};  // never written; the runtime only reads it
  *inputs = zero;
  *outputs = zero;
  return 1;
}

}  // namespace

CustomOp::CustomOp(const abi::OrtApi* api, const abi::OrtApi24* api24, const Registration& registration,
                   ElementType type)
    : OrtCustomOp{}, api(api), api24(api24), registration(registration), type(type) {
  version = abi::kApiRevision;
  GetName = [](const OrtCustomOp* op) { return custom_op(op).registration.name.c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp* op) { return custom_op(op).registration.provider; };
  GetInputType = [](const OrtCustomOp* op, size_t i) {
    const Operand operand = custom_op(op).registration.inputs[i];
    if (operand == Operand::kBool) return ElementType::kBool;
    if (operand == Operand::kAny) return ElementType::kUndefined;
    return operand == Operand::kFloat ? ElementType::kFloat : custom_op(op).type;
  };
  GetInputTypeCount = [](const OrtCustomOp* op) { return custom_op(op).registration.inputs.size(); };
  GetOutputType = [](const OrtCustomOp* op, size_t i) {
    const std::vector<ElementType>& types = custom_op(op).registration.output_types;
    return types.empty() ? custom_op(op).type : types[i];
  };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return custom_op(op).registration.outputs; };
  GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return abi::IoKind::kRequired; };
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t) {
    return custom_op(op).registration.output_types.empty() ? abi::IoKind::kRequired : abi::IoKind::kOptional;
  };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return abi::MemoryType::kDefault; };
  CreateKernelV2 = create_kernel;
  KernelComputeV2 = compute;
  KernelDestroy = destroy_kernel;
  InferOutputShape = infer_output_shape;
  if (registration.reuse == Reuse::kInplace) {
    GetMayInplace = inplace_input0;
    ReleaseMayInplace = [](int*, int*) {};
  }
}

abi::OrtCustomOpDomain* make_domain(const abi::OrtApi* api, const char* name,
                                    const std::vector<std::unique_ptr<CustomOp>>& ops) {
  abi::OrtCustomOpDomain* domain = nullptr;
  abi::check(api, abi::CreateCustomOpDomain(api, name, &domain));
  for (const auto& op : ops) abi::check(api, abi::CustomOpDomain_Add(api, domain, op.get()));
  return domain;
}

}  // namespace graphopt::runtime
