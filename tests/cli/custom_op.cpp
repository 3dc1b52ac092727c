// A user's custom operator library: operator Doubled of the domain acme, y = 2 x, for float tensors.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/abi/ort.h"

namespace {

using namespace graphopt::abi;

const OrtApi* api;
OrtCustomOp doubled{};

OrtStatus* compute(void*, OrtKernelContext* context) {
  const OrtValue* x = nullptr;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  size_t rank = 0;
  if (OrtStatus* failed = KernelContext_GetInput(api, context, 0, &x)) return failed;
  if (OrtStatus* failed = GetTensorTypeAndShape(api, x, &info)) return failed;
  if (OrtStatus* failed = GetDimensionsCount(api, info, &rank)) return failed;
  std::vector<int64_t> dims(rank);
  if (OrtStatus* failed = GetDimensions(api, info, dims.data(), rank)) return failed;
  ReleaseTensorTypeAndShapeInfo(api, info);
  OrtValue* y = nullptr;
  void *from = nullptr, *to = nullptr;
  if (OrtStatus* failed = KernelContext_GetOutput(api, context, 0, dims.data(), rank, &y)) return failed;
  if (OrtStatus* failed = GetTensorMutableData(api, const_cast<OrtValue*>(x), &from)) return failed;
  if (OrtStatus* failed = GetTensorMutableData(api, y, &to)) return failed;
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  for (int64_t i = 0; i < count; ++i) static_cast<float*>(to)[i] = 2 * static_cast<const float*>(from)[i];
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  api = base->get_api(kApiRevision);
  doubled.version = kApiRevision;
  doubled.GetName = [](const OrtCustomOp*) { return "Doubled"; };
  doubled.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  doubled.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  doubled.GetOutputTypeCount = doubled.GetInputTypeCount;
  doubled.GetInputType = [](const OrtCustomOp*, size_t) { return ElementType::kFloat; };
  doubled.GetOutputType = doubled.GetInputType;
  doubled.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return IoKind::kRequired; };
  doubled.GetOutputCharacteristic = doubled.GetInputCharacteristic;
  doubled.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return MemoryType::kDefault; };
  doubled.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*,
                              void** kernel) -> OrtStatus* {
    *kernel = &doubled;
    return nullptr;
  };
  doubled.KernelComputeV2 = compute;
  doubled.KernelDestroy = [](void*) {};
  doubled.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  doubled.GetEndVersion = doubled.GetStartVersion;
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* failed = CreateCustomOpDomain(api, "acme", &domain)) return failed;
  if (OrtStatus* failed = CustomOpDomain_Add(api, domain, &doubled)) return failed;
  return AddCustomOpDomain(api, options, domain);
}
