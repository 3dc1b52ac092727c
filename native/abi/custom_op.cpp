#include "abi/custom_op.h"

namespace graphopt::abi {
namespace {

const OpDescription& description(const OrtCustomOp* op) {
  return *static_cast<const CustomOp*>(op)->description;
}

// What the runtime holds for one node.
struct KernelHandle {
  const OrtApi* api;
  const OpDescription* description;
  std::string node;
  std::unique_ptr<Kernel> kernel;
};

std::string op_and_node(const OpDescription& op, const std::string& node) {
  return "com.graphopt::" + op.name + " (" + element_type_name(op.type) + ") node '" + node + "'";
}

std::string input_shapes(const Context& context) {
  std::string text = ", inputs";
  try {
    const size_t n = context.input_count();
    for (size_t i = 0; i < n; ++i) {
      const Tensor t = context.input(i);
      text += std::string(" ") + element_type_name(t.type) + t.shape.text();
    }
  } catch (const std::exception&) {
    text += " ?";  // the failure that is being reported matters more
  }
  return text + ": ";
}

std::string input_shapes(const NodeInfo& info) {
  std::string text = ", inputs";
  try {
    const size_t n = info.input_count();
    for (size_t i = 0; i < n; ++i) {
      const auto shape = info.input_shape(i);
      text += " " + (shape ? shape->text() : "[?]");
    }
  } catch (const std::exception&) {
    text += " ?";
  }
  return text + ": ";
}

OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* raw, void** out) {
  const NodeInfo info(api, raw, description(op).type);
  std::string node;
  try {
    node = info.name();
    auto handle = std::make_unique<KernelHandle>(KernelHandle{api, &description(op), node, nullptr});
    handle->kernel = description(op).create(info);
    *out = handle.release();
    return nullptr;
  } catch (...) {
    try {
      return current_exception_status(api, op_and_node(description(op), node) + input_shapes(info));
    } catch (...) {
      return current_exception_status(api, {});
    }
  }
}

OrtStatus* compute(void* raw_handle, OrtKernelContext* raw_context) {
  const KernelHandle& handle = *static_cast<KernelHandle*>(raw_handle);
  const Context context(handle.api, raw_context);
  try {
    handle.kernel->compute(context);
    return nullptr;
  } catch (...) {
    try {
      return current_exception_status(handle.api,
                                      op_and_node(*handle.description, handle.node) + input_shapes(context));
    } catch (...) {
      return current_exception_status(handle.api, {});
    }
  }
}

void destroy_kernel(void* handle) { delete static_cast<KernelHandle*>(handle); }

// A failure here (say, an attribute that is missing) would be ignored by the runtime and its status leaked;
// kernel creation reports the same failure properly.
OrtStatus* infer_output_shape(const OrtCustomOp* op, OrtShapeInferContext* raw) {
  try {
    description(op).infer(ShapeInference(static_cast<const CustomOp*>(op)->api, raw));
  } catch (...) {
  }
  return nullptr;
}

size_t inplace_input0(int** inputs, int** outputs) {
  static int zero[1] = {0};  // never written; the runtime only reads them
  *inputs = zero;
  *outputs = zero;
  return 1;
}

ElementType operand_type(const OpDescription& op, Operand operand) {
  return operand == Operand::kBool ? ElementType::kBool : op.type;
}

const OrtOpAttr* find_attribute(const OrtApi* api, const OrtShapeInferContext* context, const char* name) {
  const OrtOpAttr* attribute = nullptr;
  check(api, ShapeInferContext_GetAttribute(api, context, name, &attribute));
  return attribute;
}

}  // namespace

float ShapeInference::get_float(const char* name) const {
  float value = 0;
  size_t size = 0;
  check(api_, ReadOpAttr(api_, find_attribute(api_, context_, name), AttributeKind::kFloat, &value,
                         sizeof value, &size));
  return value;
}

int64_t ShapeInference::get_int(const char* name) const {
  int64_t value = 0;
  size_t size = 0;
  check(api_, ReadOpAttr(api_, find_attribute(api_, context_, name), AttributeKind::kInt, &value,
                         sizeof value, &size));
  return value;
}

std::vector<int64_t> ShapeInference::get_ints(const char* name) const {
  std::vector<int64_t> values(Shape::kMaxRank);
  size_t bytes = 0;
  check(api_, ReadOpAttr(api_, find_attribute(api_, context_, name), AttributeKind::kInts, values.data(),
                         values.size() * sizeof(int64_t), &bytes));
  values.resize(bytes / sizeof(int64_t));
  return values;
}

SymbolicShape ShapeInference::input(size_t i) const {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api_, ShapeInferContext_GetInputTypeShape(api_, context_, i, &info));
  size_t rank = 0;
  check(api_, GetDimensionsCount(api_, info, &rank));
  if (rank == 0) return {};
  std::vector<int64_t> dims(rank);
  std::vector<const char*> names(rank);
  check(api_, GetDimensions(api_, info, dims.data(), rank));
  check(api_, GetSymbolicDimensions(api_, info, names.data(), rank));
  SymbolicShape shape(rank);
  for (size_t d = 0; d < rank; ++d) {
    shape[d] = dims[d] >= 0 ? Dim{dims[d], ""} : Dim{-1, names[d] != nullptr ? names[d] : ""};
  }
  return shape;
}

void ShapeInference::set_output(size_t i, const SymbolicShape& shape) const {
  if (shape.empty()) return;
  std::vector<int64_t> dims;
  std::vector<const char*> names;
  for (const Dim& d : shape) {
    if (d.unnamed()) return;
    dims.push_back(d.value);
    names.push_back(d.symbol.c_str());
  }
  OrtTensorTypeAndShapeInfo* input0 = nullptr;
  check(api_, ShapeInferContext_GetInputTypeShape(api_, context_, 0, &input0));
  ElementType type = ElementType::kUndefined;
  check(api_, GetTensorElementType(api_, input0, &type));

  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api_, CreateTensorTypeAndShapeInfo(api_, &raw));
  const auto release = [this](OrtTensorTypeAndShapeInfo* info) { ReleaseTensorTypeAndShapeInfo(api_, info); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> info(raw, release);
  check(api_, SetTensorElementType(api_, raw, type));
  check(api_, SetDimensions(api_, raw, dims.data(), dims.size()));
  check(api_, SetSymbolicDimensions(api_, raw, names.data(), names.size()));
  check(api_, ShapeInferContext_SetOutputTypeShape(api_, context_, i, raw));
}

CustomOp::CustomOp(const OrtApi* api, const OpDescription* description)
    : OrtCustomOp{}, api(api), description(description) {
  version = kApiRevision;
  GetName = [](const OrtCustomOp* op) { return abi::description(op).name.c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp* op) { return abi::description(op).provider; };
  GetInputType = [](const OrtCustomOp* op, size_t i) {
    return operand_type(abi::description(op), abi::description(op).inputs[i]);
  };
  GetInputTypeCount = [](const OrtCustomOp* op) { return abi::description(op).inputs.size(); };
  GetOutputType = [](const OrtCustomOp* op, size_t) { return abi::description(op).type; };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return abi::description(op).outputs; };
  GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return IoKind::kRequired; };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return IoKind::kRequired; };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return MemoryType::kDefault; };
  CreateKernelV2 = create_kernel;
  KernelComputeV2 = compute;
  KernelDestroy = destroy_kernel;
  if (description->infer) InferOutputShape = infer_output_shape;
  if (description->inplace == Inplace::kInput0) {
    GetMayInplace = inplace_input0;
    ReleaseMayInplace = [](int*, int*) {};
  }
}

OrtCustomOpDomain* make_domain(const OrtApi* api, const char* name,
                               const std::vector<std::unique_ptr<CustomOp>>& ops) {
  OrtCustomOpDomain* domain = nullptr;
  check(api, CreateCustomOpDomain(api, name, &domain));
  for (const auto& op : ops) check(api, CustomOpDomain_Add(api, domain, op.get()));
  return domain;
}

}  // namespace graphopt::abi
