// Wraps the runtime's kernel interface: the node at kernel creation, and tensors and memory at execution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "operators/kernel.h"
#include "runtime/abi/error.h"
#include "runtime/abi/ort.h"
#include "runtime/abi/ort_ep.h"

namespace graphopt::abi {

// A node during the creation of its kernel; valid until the kernel is created.
class NodeInfo final : public Node {
 public:
  NodeInfo(const OrtApi* api, const OrtKernelInfo* info, const std::string& operator_name);

  std::optional<AttributeValue> find(const char* name, AttributeType type) const override;
  std::optional<Tensor> constant(size_t i) const override;
  std::optional<Number> find_number(const char* name) const override;

 private:
  const OrtApi* api_;
  const OrtKernelInfo* info_;
};

// Reads the type, shape and address of a tensor, which is assumed to be in host memory. The overload for
// runtimes from 1.24 on does not allocate.
void read_tensor(const OrtApi* api, const OrtValue* value, Tensor& tensor);
void read_tensor(const OrtApi24* api, const OrtValue* value, Tensor& tensor);

// Reads a tensor of one element and releases it. Throws Error for any other number of elements.
Number take_number(const OrtApi* api, OrtValue* value, const char* name);

// The context of one Compute call.
class Context {
 public:
  // `newer`: the same table if the runtime is 1.24 or newer, else null.
  Context(const OrtApi* api, const OrtApi24* newer, OrtKernelContext* context)
      : api_(api), newer_(newer), context_(context) {}

  const OrtApi* api() const { return api_; }
  OrtKernelContext* raw() const { return context_; }
  void read(const OrtValue* value, Tensor& tensor) const {
    if (newer_ != nullptr) {
      read_tensor(newer_, value, tensor);
    } else {
      read_tensor(api_, value, tensor);
    }
  }
  size_t input_count() const;
  // Returns null for an omitted input.
  const OrtValue* input(size_t i) const;
  // Returns null for an omitted output and for an output without elements. If `on_gpu`, throws Error for an output in
  // ordinary host memory. ONNX Runtime 1.32 passes such an output to the kernel if the caller has bound it and the
  // session's default memory is host memory (OrtEp::GetDefaultMemoryDevice).
  void* output(size_t i, const Shape& shape, bool on_gpu) const;
  // The stream of the provider that runs the node; null on the CPU.
  void* gpu_stream() const;
  // Calls fn(user, i) for each i in [0, total) on the session's intra-op threads and waits. fn must not
  // throw.
  void parallel_for(void (*fn)(void* user, size_t i), size_t total, void* user) const;

 private:
  const OrtApi* api_;
  const OrtApi24* newer_;
  OrtKernelContext* context_;
};

// Describes the runtime's CPU memory. Created once for each kernel.
class HostMemory {
 public:
  explicit HostMemory(const OrtApi* api);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  const OrtMemoryInfo* info() const { return info_; }

 private:
  const OrtApi* api_;
  OrtMemoryInfo* info_ = nullptr;
};

// Uninitialized memory from the session's CPU arena, 64-byte aligned.
class HostScratch {
 public:
  // Throws std::bad_alloc.
  HostScratch(const Context& context, const HostMemory& memory, size_t bytes);
  ~HostScratch();
  HostScratch(const HostScratch&) = delete;
  HostScratch& operator=(const HostScratch&) = delete;

  void* data() const { return data_; }

 private:
  const OrtApi* api_;
  OrtAllocator* allocator_ = nullptr;
  void *block_ = nullptr, *data_ = nullptr;
};

// Memory on the same GPU as input 0, for work on the node's stream. It may be freed as soon as that work is enqueued.
class DeviceScratch {
 public:
  DeviceScratch(const Context& context, size_t bytes);
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;

  void* data() const { return data_; }

 private:
  const OrtApi* api_;
  OrtAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace graphopt::abi
