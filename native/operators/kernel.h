// The interface of a kernel, which computes one node on one device. A session's custom operator, the plugin provider, a
// region, another kernel or a test can run it. Kernels do not depend on ONNX Runtime.
//
//   create   creates a kernel from the attributes, types and known shapes of a Node. Throws Error if the node is
//            invalid.
//   counter  a second kernel that computes the output sizes before each plan. Exists only if these depend on input
//            values.
//   prepare  converts constant weights to the kernel's layout; called once.
//   plan     sets the output shapes, the implementation and the size of the workspace for the tensors of one
//            call. An operator may have several implementations on a device; each can refuse a problem with a
//            reason (operators/implementations.h).
//   run      computes the outputs after all memory is assigned. On the CPU it returns when they are complete; on
//            a device it enqueues the work on a stream.
//
// Plans may be cached. A plan depends on the types, shapes and alignment of the tensors, and on the values of inputs
// that a device kernel reads on the host. It also depends on all other fields of Call that the caller sets, but not on
// memory addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "operators/tensor.h"

namespace graphopt {

namespace gpu {
class Device;
class LibraryChoices;
class Measured;
}  // namespace gpu
namespace cpu {
class Parallel;
}  // namespace cpu

// Attribute types, in the order of AttributeValue's alternatives.
enum class AttributeType { kFloat, kInt, kInts, kString, kStrings };
using AttributeValue =
    std::variant<float, int64_t, std::vector<int64_t>, std::string, std::vector<std::string>>;

// The attributes of a node, independent of their source.
class Attributes {
 public:
  virtual ~Attributes() = default;
  // Returns nothing if there is no such attribute of this type.
  virtual std::optional<AttributeValue> find(const char* name, AttributeType type) const = 0;
  auto find_float(const char* name) const { return find_as<AttributeType::kFloat>(name); }
  auto find_int(const char* name) const { return find_as<AttributeType::kInt>(name); }
  auto find_ints(const char* name) const { return find_as<AttributeType::kInts>(name); }
  auto find_string(const char* name) const { return find_as<AttributeType::kString>(name); }
  auto find_strings(const char* name) const { return find_as<AttributeType::kStrings>(name); }

  // Required attributes. These throw Error if one is missing.
  float get_float(const char* name) const;
  int64_t get_int(const char* name) const;
  std::vector<int64_t> get_ints(const char* name) const;
  // These return `absent` if there is no such attribute of this type.
  float get_float(const char* name, float absent) const { return find_float(name).value_or(absent); }
  int64_t get_int(const char* name, int64_t absent) const { return find_int(name).value_or(absent); }
  bool get_bool(const char* name, bool absent = false) const { return get_int(name, absent) != 0; }
  std::vector<int64_t> get_ints(const char* name, const std::vector<int64_t>& absent) const {
    return find_ints(name).value_or(absent);
  }
  std::string get_string(const char* name, const char* absent) const {
    return find_string(name).value_or(absent);
  }

 private:
  template <AttributeType kType,
            class T = std::variant_alternative_t<static_cast<size_t>(kType), AttributeValue>>
  std::optional<T> find_as(const char* name) const {
    std::optional<AttributeValue> value = find(name, kType);
    return value ? std::optional<T>(std::get<T>(*std::move(value))) : std::nullopt;
  }
};

// One element of any type.
struct Number {
  ElementType type = ElementType::kUndefined;
  uint64_t bits = 0;  // in the low bits
};

// The known properties of an input or output before there is a tensor.
struct Value {
  bool present = false;                        // false if the node omits it
  ElementType type = ElementType::kUndefined;  // kUndefined: unknown or not supported
  std::optional<Shape> shape;                  // -1 for an unknown dim
};

// A node before it runs.
class Node : public Attributes {
 public:
  std::string op, name;
  int version = 0;  // since-version of its operator; 0: unknown
  std::vector<Value> inputs, outputs;

  bool has_input(size_t i) const { return i < inputs.size() && inputs[i].present; }
  // Returns the element type of the first input.
  ElementType type() const { return inputs.empty() ? ElementType::kUndefined : inputs[0].type; }
  // Returns the value of a constant input; nothing if the input is not constant. The value stays valid until the kernel
  // that was created from the node is destroyed. It is in device memory if the kernel reads the input there.
  virtual std::optional<Tensor> constant(size_t i) const = 0;
  // Returns the element of a tensor attribute with one element; nothing if the attribute is missing or the class does
  // not override this function. Throws Error if the attribute has another number of elements.
  virtual std::optional<Number> find_number(const char* name) const {
    (void)name;
    return std::nullopt;
  }
};

// State that plan passes to run: one value of at most kBytes bytes, stored inline.
class State {
 public:
  State() = default;
  ~State() { reset(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  template <class T, class... Args>
  T& emplace(Args&&... args) {
    static_assert(sizeof(T) <= kBytes && alignof(T) <= alignof(std::max_align_t));
    reset();
    T* value = new (bytes_) T{std::forward<Args>(args)...};
    if constexpr (!std::is_trivially_destructible_v<T>) {
      destroy_ = [](void* p) { static_cast<T*>(p)->~T(); };
    }
    return *value;
  }
  // Returns the emplaced value, which must be a T.
  template <class T>
  const T& get() const {
    return *std::launder(reinterpret_cast<const T*>(bytes_));
  }

 private:
  static constexpr size_t kBytes = 384;
  void reset() {
    if (destroy_ != nullptr) destroy_(bytes_);
    destroy_ = nullptr;
  }

  alignas(std::max_align_t) unsigned char bytes_[kBytes];
  void (*destroy_)(void*) = nullptr;
};

// One call of a kernel. The caller sets the fields above `---`. Then plan sets workspace_bytes, state, and the outputs
// except their memory. Then the caller sets `workspace` and the memory of the outputs.
struct Call {
  Tensors inputs;
  Tensors outputs;  // as many as the node has
  // A power of two that divides the addresses of all tensors on the device, outputs included.
  size_t alignment = 256;
  // The stream of a device kernel.
  void* stream = nullptr;
  // The threads of a CPU kernel; plan depends on their number.
  cpu::Parallel* parallel = nullptr;

  // Bit mask of implementations that accepted the work and then failed.
  uint32_t failed = 0;
  // Index of the only implementation that may be chosen; -1: any.
  int only = -1;
  // The vendor libraries that may be used; null: the environment variables decide.
  const gpu::LibraryChoices* libraries = nullptr;
  // Stores the fastest implementation of each problem; null: the first one that accepts the call is used.
  gpu::Measured* measured = nullptr;

  // ---
  size_t workspace_bytes = 0;
  State state;

  void* workspace = nullptr;  // aligned to 256 bytes on a device, to 64 bytes on the CPU

  bool has_input(size_t i) const { return i < inputs.size() && inputs[i].present(); }
  // Throws Error if the input is omitted.
  const Tensor& input(size_t i) const;
  // Returns an integer input in host memory. A uint64 beyond the range of int64 wraps to a negative value.
  std::vector<int64_t> integers(size_t i) const;
  // Returns the value of an integer input with one element. Throws Error with `name` if it has another number of
  // elements.
  int64_t integer(size_t i, const char* name) const;
  // Returns the value of a float or float16 input with one element, in host memory; `absent` if the input is
  // omitted.
  float number(size_t i, float absent) const;
  // Returns true if 16-byte loads and stores may be used.
  bool aligned() const { return alignment >= 16; }

  void set_output(size_t i, const Shape& shape, ElementType type, Place place);
};

// Alignment in bytes of each output of a kernel with contiguous outputs (Registration::create_siblings).
constexpr int64_t kSiblingAlignment = 256;

// Several threads may call plan and run concurrently. Both throw Error for invalid tensors.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Returns the device on which run enqueues its work; null if run computes on the CPU.
  virtual gpu::Device* device() const { return nullptr; }
  // Called once, before the first plan; `node` is the node that the kernel was created from.
  virtual void prepare(const Node& node) { (void)node; }
  // Returns a kernel that the caller runs on the same inputs and device before each plan, or null. Its output 0
  // determines the sizes of this kernel's outputs. The caller waits for it and appends all its outputs to this
  // kernel's inputs. Its output 0 is then in host memory.
  virtual const Kernel* counter() const { return nullptr; }
  virtual void plan(Call& call) const = 0;
  // Omitted outputs have no memory. Returns false if an implementation failed without side effects: its bit is then
  // set in Call::failed, and the call must be planned again.
  virtual bool run(Call& call) const = 0;
};

}  // namespace graphopt
