#include "runtime/abi/inference.h"

namespace graphopt::abi {

const OrtOpAttr* ShapeInference::attribute(const char* name) const {
  const OrtOpAttr* found = nullptr;
  return succeeded(api_, ShapeInferContext_GetAttribute(api_, context_, name, &found)) ? found : nullptr;
}

SymbolicShape ShapeInference::input(size_t i) const {
  auto* info = get<OrtTensorTypeAndShapeInfo*>(api_, ShapeInferContext_GetInputTypeShape, context_, i);
  const auto rank = get<size_t>(api_, GetDimensionsCount, info);
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

void ShapeInference::set_output(size_t i, const SymbolicShape& shape, ElementType type) const {
  if (shape.empty()) return;
  std::vector<int64_t> dims;
  std::vector<const char*> names;
  for (const Dim& d : shape) {
    if (d.unknown()) return;
    dims.push_back(d.value);
    names.push_back(d.symbol.c_str());
  }
  if (type == ElementType::kUndefined) {
    auto* input0 = get<OrtTensorTypeAndShapeInfo*>(api_, ShapeInferContext_GetInputTypeShape, context_, 0);
    check(api_, GetTensorElementType(api_, input0, &type));
  }

  auto* raw = get<OrtTensorTypeAndShapeInfo*>(api_, CreateTensorTypeAndShapeInfo);
  const auto info = own<ReleaseTensorTypeAndShapeInfo>(api_, raw);
  check(api_, SetTensorElementType(api_, raw, type));
  check(api_, SetDimensions(api_, raw, dims.data(), dims.size()));
  check(api_, SetSymbolicDimensions(api_, raw, names.data(), names.size()));
  check(api_, ShapeInferContext_SetOutputTypeShape(api_, context_, i, raw));
}

}  // namespace graphopt::abi
