#include "abi/kernel.h"

#include <new>

namespace graphopt::abi {
namespace {

Shape read_shape(const OrtApi* api, const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  check(api, GetDimensionsCount(api, info, &rank));
  Shape shape(rank);
  if (rank > 0) check(api, GetDimensions(api, info, shape.data(), rank));
  return shape;
}

Tensor read_tensor(const OrtApi* api, const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, GetTensorTypeAndShape(api, value, &raw));
  const auto release = [api](OrtTensorTypeAndShapeInfo* info) { ReleaseTensorTypeAndShapeInfo(api, info); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> info(raw, release);
  Tensor tensor;
  tensor.shape = read_shape(api, raw);
  check(api, GetTensorElementType(api, raw, &tensor.type));
  void* data = nullptr;
  check(api, GetTensorMutableData(api, const_cast<OrtValue*>(value), &data));
  tensor.data = data;
  return tensor;
}

[[noreturn]] void bad_attribute(const char* name, const char* type, const Error& cause) {
  throw Error(std::string("attribute '") + name + "' of type " + type + " is required: " + cause.what());
}

}  // namespace

const char* element_type_name(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return "float";
    case ElementType::kHalf:
      return "float16";
    case ElementType::kBool:
      return "bool";
    case ElementType::kUint8:
      return "uint8";
    case ElementType::kInt8:
      return "int8";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kUndefined:
      break;
  }
  return "?";
}

std::string NodeInfo::name() const {
  size_t size = 0;
  check(api_, KernelInfo_GetNodeName(api_, info_, nullptr, &size));
  std::string name(size, '\0');
  check(api_, KernelInfo_GetNodeName(api_, info_, name.data(), &size));
  name.resize(size > 0 ? size - 1 : 0);
  return name;
}

size_t NodeInfo::input_count() const {
  size_t n = 0;
  check(api_, KernelInfo_GetInputCount(api_, info_, &n));
  return n;
}

float NodeInfo::get_float(const char* name) const {
  float value = 0;
  try {
    check(api_, KernelInfoGetAttribute_float(api_, info_, name, &value));
  } catch (const Error& e) {
    bad_attribute(name, "float", e);
  }
  return value;
}

int64_t NodeInfo::get_int(const char* name) const {
  int64_t value = 0;
  try {
    check(api_, KernelInfoGetAttribute_int64(api_, info_, name, &value));
  } catch (const Error& e) {
    bad_attribute(name, "int", e);
  }
  return value;
}

std::vector<int64_t> NodeInfo::get_ints(const char* name) const {
  std::vector<int64_t> values;
  try {
    size_t n = 0;
    check(api_, KernelInfoGetAttributeArray_int64(api_, info_, name, nullptr, &n));
    values.resize(n);
    if (n > 0) check(api_, KernelInfoGetAttributeArray_int64(api_, info_, name, values.data(), &n));
  } catch (const Error& e) {
    bad_attribute(name, "ints", e);
  }
  return values;
}

std::optional<Shape> NodeInfo::input_shape(size_t i) const {
  OrtTypeInfo* raw = nullptr;
  check(api_, KernelInfo_GetInputTypeInfo(api_, info_, i, &raw));
  const auto release = [this](OrtTypeInfo* info) { ReleaseTypeInfo(api_, info); };
  const std::unique_ptr<OrtTypeInfo, decltype(release)> info(raw, release);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  check(api_, CastTypeInfoToTensorInfo(api_, raw, &tensor));
  if (tensor == nullptr) return std::nullopt;
  const Shape shape = read_shape(api_, tensor);
  if (shape.rank() == 0) return std::nullopt;
  return shape;
}

std::optional<Tensor> NodeInfo::constant_input(size_t i) const {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(api_, KernelInfoGetConstantInput_tensor(api_, info_, i, &is_constant, &value));
  if (is_constant == 0 || value == nullptr) return std::nullopt;
  return read_tensor(api_, value);
}

size_t Context::input_count() const {
  size_t n = 0;
  check(api_, KernelContext_GetInputCount(api_, context_, &n));
  return n;
}

Tensor Context::input(size_t i) const {
  const OrtValue* value = nullptr;
  check(api_, KernelContext_GetInput(api_, context_, i, &value));
  if (value == nullptr) throw Error("input " + std::to_string(i) + " is absent, but every input is required");
  return read_tensor(api_, value);
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

HostArena::HostArena(const Context& context, const HostMemory& memory) : api_(context.api()) {
  check(api_, KernelContext_GetAllocator(api_, context.raw(), memory.info(), &allocator_));
}

HostArena::~HostArena() {
  for (void* block : blocks_) {
    if (OrtStatus* status = AllocatorFree(api_, allocator_, block)) ReleaseStatus(api_, status);
  }
  ReleaseAllocator(api_, allocator_);
}

void* HostArena::allocate(size_t bytes) {
  constexpr size_t kAlignment = 64;
  blocks_.reserve(blocks_.size() + 1);
  void* block = nullptr;
  if (OrtStatus* status = AllocatorAlloc(api_, allocator_, bytes + kAlignment, &block)) {
    ReleaseStatus(api_, status);
    throw std::bad_alloc();
  }
  if (block == nullptr) throw std::bad_alloc();
  blocks_.push_back(block);
  const auto address = reinterpret_cast<uintptr_t>(block);
  return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
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
