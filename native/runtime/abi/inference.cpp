#include "runtime/abi/inference.h"

#include <memory>

namespace graphopt::abi {

const OrtOpAttr* ShapeInference::attribute(const char* name) const {
  const OrtOpAttr* found = nullptr;
  return succeeded(api_, ShapeInferContext_GetAttribute(api_, context_, name, &found)) ? found : nullptr;
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

void ShapeInference::set_output(size_t i, const SymbolicShape& shape, ElementType type) const {
  if (shape.empty()) return;
  std::vector<int64_t> dims;
  std::vector<const char*> names;
  for (const Dim& d : shape) {
    if (d.unnamed()) return;
    dims.push_back(d.value);
    names.push_back(d.symbol.c_str());
  }
  if (type == ElementType::kUndefined) {
    OrtTensorTypeAndShapeInfo* input0 = nullptr;
    check(api_, ShapeInferContext_GetInputTypeShape(api_, context_, 0, &input0));
    check(api_, GetTensorElementType(api_, input0, &type));
  }

  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api_, CreateTensorTypeAndShapeInfo(api_, &raw));
  const auto release = [this](OrtTensorTypeAndShapeInfo* info) { ReleaseTensorTypeAndShapeInfo(api_, info); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> info(raw, release);
  check(api_, SetTensorElementType(api_, raw, type));
  check(api_, SetDimensions(api_, raw, dims.data(), dims.size()));
  check(api_, SetSymbolicDimensions(api_, raw, names.data(), names.size()));
  check(api_, ShapeInferContext_SetOutputTypeShape(api_, context_, i, raw));
}

}  // namespace graphopt::abi
