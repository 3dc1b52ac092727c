#include "runtime/abi/kernel.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace graphopt::abi {
namespace {

// Returns the known type and shape of an input; `present` is false if the node omits it.
Value read_value(const OrtApi* api, const OrtKernelInfo* info, size_t i) {
  Value value;
  OrtTypeInfo* raw = nullptr;
  if (!succeeded(api, KernelInfo_GetInputTypeInfo(api, info, i, &raw))) return value;
  const auto owner = own<ReleaseTypeInfo>(api, raw);
  value.present = true;
  const auto* tensor = get<const OrtTensorTypeAndShapeInfo*>(api, CastTypeInfoToTensorInfo, raw);
  if (tensor == nullptr) return value;
  check(api, GetTensorElementType(api, tensor, &value.type));
  const auto rank = get<size_t>(api, GetDimensionsCount, tensor);
  if (rank == 0 || rank > Shape::kMaxRank) return value;  // an unknown rank is reported as 0
  value.shape.emplace(rank);
  check(api, GetDimensions(api, tensor, value.shape->data(), rank));
  return value;
}

}  // namespace

NodeInfo::NodeInfo(const OrtApi* api, const OrtKernelInfo* info, const std::string& operator_name)
    : api_(api), info_(info) {
  op = operator_name;
  name = get_text(api, KernelInfo_GetNodeName, info);
  const auto n = get<size_t>(api, KernelInfo_GetInputCount, info);
  for (size_t i = 0; i < n; ++i) inputs.push_back(read_value(api, info, i));
  outputs.resize(get<size_t>(api, KernelInfo_GetOutputCount, info));
}

std::optional<AttributeValue> NodeInfo::find(const char* attribute, AttributeType type) const {
  using Found = std::optional<AttributeValue>;
  const auto number = [&](const auto& read, auto value) {
    return succeeded(api_, read(api_, info_, attribute, &value)) ? Found(value) : std::nullopt;
  };
  const auto list = [&](const auto& read, auto values) -> std::optional<decltype(values)> {
    size_t n = 0;
    if (!succeeded(api_, read(api_, info_, attribute, nullptr, &n))) return std::nullopt;
    values.resize(n);
    if (n > 0) check(api_, read(api_, info_, attribute, values.data(), &n));
    return values;
  };
  switch (type) {
    case AttributeType::kFloat:
      return number(KernelInfoGetAttribute_float, 0.0f);
    case AttributeType::kInt:
      return number(KernelInfoGetAttribute_int64, int64_t{0});
    case AttributeType::kInts:
      return list(KernelInfoGetAttributeArray_int64, std::vector<int64_t>());
    case AttributeType::kStrings:
      throw Error("attribute '", attribute,
                  "': ONNX Runtime passes no lists of strings to kernels, so it must be read where the node "
                  "is claimed");
    case AttributeType::kString:
      break;
  }
  auto text = list(KernelInfoGetAttribute_string, std::string());
  while (text && !text->empty() && text->back() == '\0') text->pop_back();
  return text;
}

std::optional<Tensor> NodeInfo::constant(size_t i) const {
  int is_constant = 0;
  const auto* value = get<const OrtValue*>(api_, KernelInfoGetConstantInput_tensor, info_, i, &is_constant);
  if (is_constant == 0 || value == nullptr) return std::nullopt;
  std::optional<Tensor> tensor(std::in_place);
  read_tensor(api_, value, *tensor);
  return tensor;
}

std::optional<Number> NodeInfo::find_number(const char* attribute) const {
  auto* allocator = get<OrtAllocator*>(api_, GetAllocatorWithDefaultOptions);
  OrtValue* value = nullptr;
  if (!succeeded(api_, KernelInfoGetAttribute_tensor(api_, info_, attribute, allocator, &value))) {
    return std::nullopt;
  }
  return take_number(api_, value, attribute);
}

Number take_number(const OrtApi* api, OrtValue* value, const char* name) {
  const auto owner = own<ReleaseValue>(api, value);
  Tensor tensor;
  read_tensor(api, value, tensor);
  const int64_t bytes = bytes_of(tensor.type);
  if (bytes == 0 || tensor.shape.elements() != 1) {
    throw Error(std::string("attribute '") + name + "' must hold one number");
  }
  Number number;
  number.type = tensor.type;
  std::memcpy(&number.bits, tensor.data, static_cast<size_t>(bytes));
  return number;
}

void read_tensor(const OrtApi* api, const OrtValue* value, Tensor& tensor) {
  auto* raw = get<OrtTensorTypeAndShapeInfo*>(api, GetTensorTypeAndShape, value);
  const auto info = own<ReleaseTensorTypeAndShapeInfo>(api, raw);
  const auto rank = get<size_t>(api, GetDimensionsCount, raw);
  tensor.shape = Shape(rank);
  if (rank > 0) check(api, GetDimensions(api, raw, tensor.shape.data(), rank));
  check(api, GetTensorElementType(api, raw, &tensor.type));
  check(api, GetTensorMutableData(api, const_cast<OrtValue*>(value), &tensor.data));
}

void read_tensor(const OrtApi24* api, const OrtValue* value, Tensor& tensor) {
  const int64_t* dims = nullptr;
  const auto rank = get<size_t>(api, GetTensorElementTypeAndShapeDataReference, value, &tensor.type, &dims);
  tensor.shape = Shape(rank);
  std::copy(dims, dims + rank, tensor.shape.data());
  check(api, GetTensorMutableData(api, const_cast<OrtValue*>(value), &tensor.data));
}

size_t Context::input_count() const { return get<size_t>(api_, KernelContext_GetInputCount, context_); }

const OrtValue* Context::input(size_t i) const {
  return get<const OrtValue*>(api_, KernelContext_GetInput, context_, i);
}

void* Context::output(size_t i, const Shape& shape, bool on_gpu) const {
  auto* value = get<OrtValue*>(api_, KernelContext_GetOutput, context_, i, shape.data(), shape.rank());
  if (value == nullptr) return nullptr;
  if (on_gpu && newer_ != nullptr) {
    const OrtEpApi* ep = GetEpApi(newer_);
    if (MemoryDevice_GetDeviceType(ep, Value_GetMemoryDevice(ep, value)) == MemoryDeviceType::kCpu) {
      throw Error(
          "output " + std::to_string(i) +
          " is bound in ordinary host memory, which the GPU cannot access: "
          "bind it in memory of the type HOST_ACCESSIBLE, or set the provider option host_memory to 0");
    }
  }
  auto* data = get<void*>(api_, GetTensorMutableData, value);
  if (data == nullptr && shape.elements() > 0)
    throw Error("cannot allocate an output of shape " + shape.text());
  return data;
}

void* Context::gpu_stream() const { return get<void*>(api_, KernelContext_GetGPUComputeStream, context_); }

void Context::parallel_for(void (*fn)(void* user, size_t i), size_t total, void* user) const {
  check(api_, KernelContext_ParallelFor(api_, context_, fn, total, 0, user));
}

HostMemory::HostMemory(const OrtApi* api) : api_(api) {
  check(api, CreateCpuMemoryInfo(api, AllocatorType::kArena, MemoryType::kDefault, &info_));
}

HostMemory::~HostMemory() { ReleaseMemoryInfo(api_, info_); }

HostScratch::HostScratch(const Context& context, const HostMemory& memory, size_t bytes)
    : api_(context.api()) {
  constexpr size_t kAlignment = 64;
  check(api_, KernelContext_GetAllocator(api_, context.raw(), memory.info(), &allocator_));
  OrtStatus* status = AllocatorAlloc(api_, allocator_, bytes + kAlignment, &block_);
  if (status != nullptr) ReleaseStatus(api_, status);
  if (status != nullptr || block_ == nullptr) {
    ReleaseAllocator(api_, allocator_);
    throw std::bad_alloc();
  }
  const auto address = reinterpret_cast<uintptr_t>(block_);
  data_ = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

HostScratch::~HostScratch() {
  if (OrtStatus* status = AllocatorFree(api_, allocator_, block_)) ReleaseStatus(api_, status);
  ReleaseAllocator(api_, allocator_);
}

DeviceScratch::DeviceScratch(const Context& context, size_t bytes) : api_(context.api()) {
  const auto* value = get<const OrtValue*>(api_, KernelContext_GetInput, context.raw(), 0);
  const auto* info = get<const OrtMemoryInfo*>(api_, GetTensorMemoryInfo, value);
  check(api_, KernelContext_GetAllocator(api_, context.raw(), info, &allocator_));
  OrtStatus* status = KernelContext_GetScratchBuffer(api_, context.raw(), info, bytes, &data_);
  if (status == nullptr && data_ != nullptr) return;
  ReleaseAllocator(api_, allocator_);
  check(api_, status);
  throw Error("cannot allocate " + std::to_string(bytes) + " bytes of scratch memory");
}

DeviceScratch::~DeviceScratch() {
  if (OrtStatus* status = AllocatorFree(api_, allocator_, data_)) ReleaseStatus(api_, status);
  ReleaseAllocator(api_, allocator_);
}

}  // namespace graphopt::abi
