// The contract of a kernel: how one node is computed on one device. Whoever runs nodes calls kernels through
// it: a session's custom operator, the plugin provider, a region of nodes, another kernel, a test. A kernel
// sees attributes and plain tensors, and nothing of ONNX Runtime.
//
//   create   from a Node: attributes, types, what is known of shapes. Throws Error for what is wrong with it.
//   counter  of an operator whose outputs are as large as values say: what finds out, before each plan.
//   prepare  weights that never change are brought into the layout that the kernel wants, once.
//   plan     for the tensors of one call: what the outputs are, which implementation computes them, how much
//            workspace there must be. An operator may have several on a device, each with a reason why it
//            does not take a problem: operators/implementations.h.
//   run      with all memory in place: computes before it returns (CPU), or enqueues on a stream (device).
//
// What plan leaves may be kept. It depends on the types, shapes and alignment of the tensors, on the values
// of those inputs that a kernel for a device reads on the host, and on what the caller fills in besides
// memory.
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

// The types of attributes, in the order of AttributeValue's alternatives.
enum class AttributeType { kFloat, kInt, kInts, kString, kStrings };
using AttributeValue =
    std::variant<float, int64_t, std::vector<int64_t>, std::string, std::vector<std::string>>;

// The attributes of a node, wherever they are read from.
class Attributes {
 public:
  virtual ~Attributes() = default;
  // Nothing when there is no such attribute of this type.
  virtual std::optional<AttributeValue> find(const char* name, AttributeType type) const = 0;
  auto find_float(const char* name) const { return find_as<AttributeType::kFloat>(name); }
  auto find_int(const char* name) const { return find_as<AttributeType::kInt>(name); }
  auto find_ints(const char* name) const { return find_as<AttributeType::kInts>(name); }
  auto find_string(const char* name) const { return find_as<AttributeType::kString>(name); }
  auto find_strings(const char* name) const { return find_as<AttributeType::kStrings>(name); }

  // Those that must be there. They throw Error.
  float get_float(const char* name) const;
  int64_t get_int(const char* name) const;
  std::vector<int64_t> get_ints(const char* name) const;
  // `absent` when there is no such attribute of this type.
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

// One number of any type.
struct Number {
  ElementType type = ElementType::kUndefined;
  uint64_t bits = 0;  // in the lower ones
};

// What is known of an input or output before there is a tensor.
struct Value {
  bool present = false;                        // the node does not leave it out
  ElementType type = ElementType::kUndefined;  // kUndefined: not known, or of a type that we don't know
  std::optional<Shape> shape;                  // -1 where a dim is not known
};

// A node before it runs.
class Node : public Attributes {
 public:
  std::string op, name;
  int version = 0;  // of its operator; 0: not known
  std::vector<Value> inputs, outputs;

  bool has_input(size_t i) const { return i < inputs.size() && inputs[i].present; }
  // The element type of its first input.
  ElementType type() const { return inputs.empty() ? ElementType::kUndefined : inputs[0].type; }
  // The value of an input that never changes, valid as long as the kernel that is made from it; nothing for
  // other inputs. On the device where that is where the kernel reads it.
  virtual std::optional<Tensor> constant(size_t i) const = 0;
  // The one number of an attribute that is a tensor. Nothing, too, from those who make no kernel of the node.
  // Throws Error when it holds more, or none.
  virtual std::optional<Number> find_number(const char* name) const {
    (void)name;
    return std::nullopt;
  }
};

// What plan leaves for run. Small values are kept in place.
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
  // What was emplaced, which must have been a T.
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

// One call of a kernel. The caller fills in what is above the line, plan what is below, and then the caller
// the memory of the outputs and the workspace.
struct Call {
  Tensors inputs;
  Tensors outputs;  // as many as the node has
  // A power of two that divides the addresses of all tensors on the device, outputs included.
  size_t alignment = 256;
  // Where a kernel for a device enqueues.
  void* stream = nullptr;
  // Whose threads a kernel for the CPU uses; plan looks at their number.
  cpu::Parallel* parallel = nullptr;

  // Implementations, by their bits, that said they would and then did not.
  uint32_t failed = 0;
  // The only implementation that may be chosen where there are several; -1: any.
  int only = -1;
  // Which of the vendor's libraries may be used; null: whatever the environment says.
  const gpu::LibraryChoices* libraries = nullptr;
  // What remembers which implementation is the fastest; null: the first one that takes the call.
  gpu::Measured* measured = nullptr;

  // ---
  // Type and shape of each output, and whose memory it needs.
  size_t workspace_bytes = 0;  // on the device, aligned to 256 bytes; of a kernel for the CPU: to 64 bytes
  State state;

  void* workspace = nullptr;

  bool has_input(size_t i) const { return i < inputs.size() && inputs[i].present(); }
  // Throws Error when it is left out.
  const Tensor& input(size_t i) const;
  // An input in host memory that holds integers; a uint64 beyond int64 is the negative number of its bits.
  std::vector<int64_t> integers(size_t i) const;
  // The only one of such an input. Throws Error that names the input where it holds more, or none.
  int64_t integer(size_t i, const char* name) const;
  // An input in host memory that holds one number; `absent` when it is left out.
  float number(size_t i, float absent) const;
  // Whether 16-byte loads and stores may be used.
  bool aligned() const { return alignment >= 16; }

  void set_output(size_t i, const Shape& shape, ElementType type, Place place);
};

// Where outputs lie one behind another (Registration::create_siblings), each begins at a multiple of so many
// bytes.
constexpr int64_t kSiblingAlignment = 256;

// plan and run are called by many threads at once. They throw Error for what is wrong with the tensors.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Where run enqueues; null when it computes on the CPU.
  virtual gpu::Device* device() const { return nullptr; }
  // Called once, before anything is planned; `node` is the one that the kernel was made from.
  virtual void prepare(const Node& node) { (void)node; }
  // A kernel on the same inputs and device that is run before each plan: its output 0 are numbers that decide
  // how large the outputs are. The caller waits for them, and hands this kernel its outputs as inputs behind
  // those of the node, output 0 in host memory.
  virtual const Kernel* counter() const { return nullptr; }
  virtual void plan(Call& call) const = 0;
  // Outputs that the node leaves out have no memory. False when an implementation failed before it did
  // anything: `failed` says which, and the call is to be planned again.
  virtual bool run(Call& call) const = 0;
};

}  // namespace graphopt
