// What a kernel sees of ONNX Runtime: its node when it is created, its tensors when it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi/error.h"
#include "abi/ort.h"
#include "abi/shape.h"

namespace graphopt::abi {

struct Tensor {
  const void* data = nullptr;
  ElementType type = ElementType::kUndefined;
  Shape shape;
};

const char* element_type_name(ElementType type);

// The attributes of a node, wherever they are read from. Throws Error when one is missing or of another type.
class Attributes {
 public:
  virtual ~Attributes() = default;
  // T of the op; kUndefined during shape inference, which serves all types.
  virtual ElementType element_type() const = 0;
  virtual float get_float(const char* name) const = 0;
  virtual int64_t get_int(const char* name) const = 0;
  virtual std::vector<int64_t> get_ints(const char* name) const = 0;
};

// Attributes that may be absent, as those of standard operators are; nothing when they are.
class OptionalAttributes {
 public:
  virtual ~OptionalAttributes() = default;
  virtual std::optional<float> find_float(const char* name) const = 0;
  virtual std::optional<int64_t> find_int(const char* name) const = 0;
  virtual std::optional<std::vector<int64_t>> find_ints(const char* name) const = 0;
  virtual std::optional<std::string> find_string(const char* name) const = 0;
};

// Valid during kernel creation.
class NodeInfo final : public Attributes {
 public:
  NodeInfo(const OrtApi* api, const OrtKernelInfo* info, ElementType type)
      : api_(api), info_(info), type_(type) {}

  const OrtApi* api() const { return api_; }
  std::string name() const;
  size_t input_count() const;
  ElementType element_type() const override { return type_; }
  float get_float(const char* name) const override;
  int64_t get_int(const char* name) const override;
  std::vector<int64_t> get_ints(const char* name) const override;

  // -1 where a dim is not known; nothing when the rank is not known.
  std::optional<Shape> input_shape(size_t i) const;

  // The value of an input that can't change between runs, which stays valid as long as the session; else
  // nothing.
  std::optional<Tensor> constant_input(size_t i) const;

 private:
  const OrtApi* api_;
  const OrtKernelInfo* info_;
  ElementType type_;
};

// Valid during one Compute call.
class Context {
 public:
  Context(const OrtApi* api, OrtKernelContext* context) : api_(api), context_(context) {}

  const OrtApi* api() const { return api_; }
  OrtKernelContext* raw() const { return context_; }
  size_t input_count() const;
  Tensor input(size_t i) const;
  void* output(size_t i, const Shape& shape) const;
  // The stream of the provider that runs the node; null on the CPU.
  void* gpu_stream() const;
  // Calls fn(user, i) for each i in [0, total) on the session's intra-op threads and waits. fn must not
  // throw.
  void parallel_for(void (*fn)(void* user, size_t i), size_t total, void* user) const;

 private:
  const OrtApi* api_;
  OrtKernelContext* context_;
};

// The runtime's CPU memory, as a kernel knows it from its creation on.
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

// Blocks out of the session's CPU arena, freed with this object.
class HostArena {
 public:
  HostArena(const Context& context, const HostMemory& memory);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // 64-byte aligned, uninitialised. Throws std::bad_alloc.
  void* allocate(size_t bytes);

 private:
  const OrtApi* api_;
  OrtAllocator* allocator_ = nullptr;
  std::vector<void*> blocks_;
};

// Memory of the GPU that input 0 lies on, for work on the node's stream: it may be freed as soon as that work
// is enqueued.
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

// Called by many threads at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void compute(const Context& context) const = 0;
};

}  // namespace graphopt::abi
