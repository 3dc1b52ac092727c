#include "ep/operator.h"

#include <algorithm>

#include "abi/error.h"
#include "ep/operators.h"
#include "ops/half.h"

namespace graphopt::ep {

Operator& add(std::vector<Operator>& table, const char* name, int first, int last,
              decltype(Operator::create) create) {
  Operator& op = table.emplace_back();
  op.name = name;
  op.first = first;
  op.last = last;
  op.refuse = [](const abi::GraphNode&) { return std::string(); };
  op.create = std::move(create);
  return op;
}

std::vector<Operator> standard_operators() {
  std::vector<Operator> table;
  add_convolutions(table);
  add_elementwise(table);
  add_linear(table);
  add_movement(table);
  add_reductions(table);
  add_shape(table);
  return table;
}

std::string refuse_mixed_floats(const abi::GraphNode& node, const std::vector<size_t>& host_inputs) {
  ElementType type = ElementType::kUndefined;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    if (!node.has_input(i) || std::count(host_inputs.begin(), host_inputs.end(), i) > 0) continue;
    const ElementType given = node.inputs()[i].type;
    if (!is_float(given)) return std::string("no kernel for ") + element_type_name(given);
    if (type != ElementType::kUndefined && given != type) return "float and float16 inputs";
    type = given;
  }
  return "";
}

size_t axis_of(int64_t axis, size_t rank) {
  const int64_t n = static_cast<int64_t>(rank), a = axis < 0 ? axis + n : axis;
  if (a < 0 || a >= n) throw Error("axis " + std::to_string(axis) + " is out of range");
  return static_cast<size_t>(a);
}

void require_sizes(size_t count, const std::vector<int64_t>& numbers, int64_t least) {
  if (!numbers.empty() && numbers.size() != count) {
    throw Error(std::to_string(numbers.size()) + " numbers where there should be " + std::to_string(count));
  }
  for (const int64_t n : numbers) {
    if (n < least || n > INT32_MAX) throw Error(std::to_string(n) + " is out of range");
  }
}

bool aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}

Scratch::~Scratch() {
  if (data_ != nullptr) {
    if (abi::OrtStatus* status = abi::AllocatorFree(api_, allocator_, data_))
      abi::ReleaseStatus(api_, status);
  }
  if (allocator_ != nullptr) abi::ReleaseAllocator(api_, allocator_);
}

Scratch::Scratch(Scratch&& other) noexcept
    : api_(other.api_), allocator_(other.allocator_), data_(other.data_) {
  other.allocator_ = nullptr;
  other.data_ = nullptr;
}

Execution::Execution(const abi::OrtApi24* api, abi::OrtKernelContext* context, gpu::Device& device)
    : api_(api), context_(context), device_(device) {
  abi::check(api, abi::KernelContext_GetGPUComputeStream(api, context, &stream_));
  size_t n = 0;
  abi::check(api, abi::KernelContext_GetInputCount(api, context, &n));
  inputs_.resize(n);
  present_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const abi::OrtValue* value = nullptr;
    abi::check(api, abi::KernelContext_GetInput(api, context, i, &value));
    if (value == nullptr) continue;
    inputs_[i] = abi::read_tensor(api, value);
    present_[i] = true;
  }
}

size_t Execution::output_count() const {
  size_t n = 0;
  abi::check(api_, abi::KernelContext_GetOutputCount(api_, context_, &n));
  return n;
}

const Tensor& Execution::input(size_t i) const {
  if (!has_input(i)) throw Error("input " + std::to_string(i) + " is required");
  return inputs_[i];
}

std::vector<int64_t> Execution::integers(size_t i) const {
  const Tensor& t = input(i);
  const int64_t n = t.shape.elements();
  if (t.type == ElementType::kInt64) {
    const auto* p = static_cast<const int64_t*>(t.data);
    return {p, p + n};
  }
  if (t.type == ElementType::kInt32) {
    const auto* p = static_cast<const int32_t*>(t.data);
    return {p, p + n};
  }
  throw Error("input " + std::to_string(i) + " must hold integers");
}

float Execution::number(size_t i, float absent) const {
  if (!has_input(i)) return absent;
  const Tensor& t = inputs_[i];
  if (t.shape.elements() != 1) throw Error("input " + std::to_string(i) + " must hold one number");
  if (t.type == ElementType::kFloat) return *static_cast<const float*>(t.data);
  if (t.type == ElementType::kHalf) return *static_cast<const half*>(t.data);
  throw Error("input " + std::to_string(i) + " must be float or float16");
}

void* Execution::output(size_t i, const Shape& shape, ElementType type) const {
  abi::OrtValue* value = nullptr;
  void* data = nullptr;
  abi::check(api_, abi::KernelContext_GetOutput(api_, context_, i, shape.data(), shape.rank(), &value));
  if (value == nullptr) return nullptr;
  abi::check(api_, abi::GetTensorMutableData(api_, value, &data));
  const int64_t bytes = shape.elements() * bytes_of(type);
  if (data == nullptr && bytes > 0) throw Error("no memory of " + std::to_string(bytes) + " bytes");
  return data;
}

Scratch Execution::scratch(size_t bytes) const {
  if (bytes == 0) return {};
  const abi::OrtValue* value = nullptr;
  const abi::OrtMemoryInfo* info = nullptr;
  abi::OrtAllocator* allocator = nullptr;
  void* data = nullptr;
  abi::check(api_, abi::KernelContext_GetInput(api_, context_, 0, &value));
  abi::check(api_, abi::GetTensorMemoryInfo(api_, value, &info));
  abi::check(api_, abi::KernelContext_GetAllocator(api_, context_, info, &allocator));
  abi::OrtStatus* status = abi::KernelContext_GetScratchBuffer(api_, context_, info, bytes, &data);
  Scratch result(api_, allocator, status == nullptr ? data : nullptr);
  abi::check(api_, status);
  if (data == nullptr) throw Error("no scratch memory of " + std::to_string(bytes) + " bytes");
  return result;
}

void Execution::run(const gpu::Plan& plan, std::initializer_list<const void*> inputs,
                    std::initializer_list<void*> outputs) const {
  constexpr int64_t kAlignment = 256;
  constexpr size_t kMost = 8;
  int64_t bytes = 0;
  for (const int64_t size : plan.workspace) bytes += gpu::round_up(size, kAlignment);
  const Scratch memory = scratch(static_cast<size_t>(bytes));
  void* workspace[kMost] = {};
  auto* next = static_cast<char*>(memory.data());
  for (size_t i = 0; i < plan.workspace.size(); ++i) {
    workspace[i] = next;
    next += gpu::round_up(plan.workspace[i], kAlignment);
  }
  device_.run(plan, {inputs.begin(), outputs.begin(), workspace, nullptr}, stream_);
}

void Execution::copy(void* to, const void* from, int64_t bytes) const {
  if (bytes > 0 && to != from) device_.copy(to, from, static_cast<size_t>(bytes), stream_);
}

}  // namespace graphopt::ep
