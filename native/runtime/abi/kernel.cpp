#include "runtime/abi/kernel.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace graphopt::abi {
namespace {

// What is known of an input; it is not present when the node leaves it out.
Value read_value(const OrtApi* api, const OrtKernelInfo* info, size_t i) {
  Value value;
  OrtTypeInfo* raw = nullptr;
  if (!succeeded(api, KernelInfo_GetInputTypeInfo(api, info, i, &raw))) return value;
  const auto release = [api](OrtTypeInfo* type) { ReleaseTypeInfo(api, type); };
  const std::unique_ptr<OrtTypeInfo, decltype(release)> owner(raw, release);
  value.present = true;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  check(api, CastTypeInfoToTensorInfo(api, raw, &tensor));
  if (tensor == nullptr) return value;
  check(api, GetTensorElementType(api, tensor, &value.type));
  size_t rank = 0;
  check(api, GetDimensionsCount(api, tensor, &rank));
  if (rank == 0 || rank > Shape::kMaxRank) return value;  // one that is not known looks like a scalar's
  value.shape.emplace(rank);
  check(api, GetDimensions(api, tensor, value.shape->data(), rank));
  return value;
}

std::string read_name(const OrtApi* api, const OrtKernelInfo* info) {
  size_t size = 0;
  check(api, KernelInfo_GetNodeName(api, info, nullptr, &size));
  std::string name(size, '\0');
  check(api, KernelInfo_GetNodeName(api, info, name.data(), &size));
  name.resize(size > 0 ? size - 1 : 0);
  return name;
}

}  // namespace

NodeInfo::NodeInfo(const OrtApi* api, const OrtKernelInfo* info, const std::string& operator_name)
    : api_(api), info_(info) {
  op = operator_name;
  name = read_name(api, info);
  size_t n = 0;
  check(api, KernelInfo_GetInputCount(api, info, &n));
  for (size_t i = 0; i < n; ++i) inputs.push_back(read_value(api, info, i));
  check(api, KernelInfo_GetOutputCount(api, info, &n));
  outputs.resize(n);
}

std::optional<float> NodeInfo::find_float(const char* attribute) const {
  float value = 0;
  if (!succeeded(api_, KernelInfoGetAttribute_float(api_, info_, attribute, &value))) return std::nullopt;
  return value;
}

std::optional<int64_t> NodeInfo::find_int(const char* attribute) const {
  int64_t value = 0;
  if (!succeeded(api_, KernelInfoGetAttribute_int64(api_, info_, attribute, &value))) return std::nullopt;
  return value;
}

std::optional<std::vector<int64_t>> NodeInfo::find_ints(const char* attribute) const {
  size_t n = 0;
  if (!succeeded(api_, KernelInfoGetAttributeArray_int64(api_, info_, attribute, nullptr, &n))) {
    return std::nullopt;
  }
  std::vector<int64_t> values(n);
  if (n > 0) check(api_, KernelInfoGetAttributeArray_int64(api_, info_, attribute, values.data(), &n));
  return values;
}

std::optional<std::string> NodeInfo::find_string(const char* attribute) const {
  size_t n = 0;
  if (!succeeded(api_, KernelInfoGetAttribute_string(api_, info_, attribute, nullptr, &n)))
    return std::nullopt;
  std::string value(n, '\0');
  check(api_, KernelInfoGetAttribute_string(api_, info_, attribute, value.data(), &n));
  while (!value.empty() && value.back() == '\0') value.pop_back();
  return value;
}

std::optional<std::vector<std::string>> NodeInfo::find_strings(const char* attribute) const {
  throw Error(std::string("the runtime tells a kernel no list of strings (") + attribute +
              "): what it says must be known where the node is claimed");
}

std::optional<Tensor> NodeInfo::constant(size_t i) const {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(api_, KernelInfoGetConstantInput_tensor(api_, info_, i, &is_constant, &value));
  if (is_constant == 0 || value == nullptr) return std::nullopt;
  std::optional<Tensor> tensor(std::in_place);
  read_tensor(api_, value, *tensor);
  return tensor;
}

std::optional<Number> NodeInfo::find_number(const char* attribute) const {
  OrtAllocator* allocator = nullptr;
  check(api_, GetAllocatorWithDefaultOptions(api_, &allocator));
  OrtValue* value = nullptr;
  if (!succeeded(api_, KernelInfoGetAttribute_tensor(api_, info_, attribute, allocator, &value))) {
    return std::nullopt;
  }
  return take_number(api_, value, attribute);
}

Number take_number(const OrtApi* api, OrtValue* value, const char* name) {
  const auto release = [api](OrtValue* v) { ReleaseValue(api, v); };
  const std::unique_ptr<OrtValue, decltype(release)> owner(value, release);
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
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, GetTensorTypeAndShape(api, value, &raw));
  const auto release = [api](OrtTensorTypeAndShapeInfo* info) { ReleaseTensorTypeAndShapeInfo(api, info); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> info(raw, release);
  size_t rank = 0;
  check(api, GetDimensionsCount(api, raw, &rank));
  tensor.shape = Shape(rank);
  if (rank > 0) check(api, GetDimensions(api, raw, tensor.shape.data(), rank));
  check(api, GetTensorElementType(api, raw, &tensor.type));
  check(api, GetTensorMutableData(api, const_cast<OrtValue*>(value), &tensor.data));
}

void read_tensor(const OrtApi24* api, const OrtValue* value, Tensor& tensor) {
  const int64_t* dims = nullptr;
  size_t rank = 0;
  check(api, GetTensorElementTypeAndShapeDataReference(api, value, &tensor.type, &dims, &rank));
  tensor.shape = Shape(rank);
  std::copy(dims, dims + rank, tensor.shape.data());
  check(api, GetTensorMutableData(api, const_cast<OrtValue*>(value), &tensor.data));
}

size_t Context::input_count() const {
  size_t n = 0;
  check(api_, KernelContext_GetInputCount(api_, context_, &n));
  return n;
}

const OrtValue* Context::input(size_t i) const {
  const OrtValue* value = nullptr;
  check(api_, KernelContext_GetInput(api_, context_, i, &value));
  return value;
}

void* Context::output(size_t i, const Shape& shape) const {
  OrtValue* value = nullptr;
  check(api_, KernelContext_GetOutput(api_, context_, i, shape.data(), shape.rank(), &value));
  if (value == nullptr) return nullptr;
  void* data = nullptr;
  check(api_, GetTensorMutableData(api_, value, &data));
  if (data == nullptr && shape.elements() > 0)
    throw Error("no memory for an output of shape " + shape.text());
  return data;
}

void* Context::gpu_stream() const {
  void* stream = nullptr;
  check(api_, KernelContext_GetGPUComputeStream(api_, context_, &stream));
  return stream;
}

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
  const OrtValue* value = nullptr;
  check(api_, KernelContext_GetInput(api_, context.raw(), 0, &value));
  const OrtMemoryInfo* info = nullptr;
  check(api_, GetTensorMemoryInfo(api_, value, &info));
  check(api_, KernelContext_GetAllocator(api_, context.raw(), info, &allocator_));
  OrtStatus* status = KernelContext_GetScratchBuffer(api_, context.raw(), info, bytes, &data_);
  if (status == nullptr && data_ != nullptr) return;
  ReleaseAllocator(api_, allocator_);
  check(api_, status);
  throw Error("no scratch memory of " + std::to_string(bytes) + " bytes");
}

DeviceScratch::~DeviceScratch() {
  if (OrtStatus* status = AllocatorFree(api_, allocator_, data_)) ReleaseStatus(api_, status);
  ReleaseAllocator(api_, allocator_);
}

}  // namespace graphopt::abi
