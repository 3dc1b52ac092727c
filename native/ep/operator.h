// Standard operators of the provider: what it takes of them, and how a node runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/graph.h"
#include "gpu/device.h"
#include "operators/table.h"

namespace graphopt::ep {

// Device memory for one run of a node, on whose stream it is used.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const abi::OrtApi24* api, abi::OrtAllocator* allocator, void* data)
      : api_(api), allocator_(allocator), data_(data) {}
  ~Scratch();
  Scratch(Scratch&& other) noexcept;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return data_; }

 private:
  const abi::OrtApi24* api_ = nullptr;
  abi::OrtAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
};

// One Compute call.
class Execution {
 public:
  Execution(const abi::OrtApi24* api, abi::OrtKernelContext* context, gpu::Device& device);

  gpu::Device& device() const { return device_; }
  void* stream() const { return stream_; }
  size_t input_count() const { return inputs_.size(); }
  size_t output_count() const;
  bool has_input(size_t i) const { return i < inputs_.size() && present_[i]; }
  const Tensor& input(size_t i) const;
  // An input in host memory that holds integers.
  std::vector<int64_t> integers(size_t i) const;
  // An input in host memory that holds one number; `absent` when it is left out.
  float number(size_t i, float absent) const;
  // Throws Error when there is no memory. Null for an output that is left out and for one
  // without elements.
  void* output(size_t i, const Shape& shape, ElementType type) const;
  void* output(size_t i, const Shape& shape) const { return output(i, shape, input(0).type); }
  Scratch scratch(size_t bytes) const;

  // Enqueues: the plan's inputs and outputs are these addresses.
  void run(const gpu::Plan& plan, std::initializer_list<const void*> inputs,
           std::initializer_list<void*> outputs) const;
  void copy(void* to, const void* from, int64_t bytes) const;

 private:
  const abi::OrtApi24* api_;
  abi::OrtKernelContext* context_;
  gpu::Device& device_;
  void* stream_ = nullptr;
  std::vector<Tensor> inputs_;
  std::vector<bool> present_;
};

class OpKernel {
 public:
  virtual ~OpKernel() = default;
  // Called by many threads at once.
  virtual void run(Execution& e) const = 0;
};

// The setters return the operator.
struct Operator {
  std::string name;
  std::string domain;                             // "" for ONNX
  int first = 1, last = 1;                        // versions of the operator
  std::vector<size_t> host_inputs, host_outputs;  // stay in host memory
  Reuse reuse = Reuse::kNone;
  // Why the provider leaves a node to others; empty when it takes it.
  std::function<std::string(const abi::GraphNode&)> refuse;
  std::function<std::unique_ptr<OpKernel>(const Attributes&)> create;

  Operator& refused(decltype(refuse) why) {
    refuse = std::move(why);
    return *this;
  }
  Operator& reuses(Reuse how) {
    reuse = how;
    return *this;
  }
  Operator& reads_on_host(std::vector<size_t> inputs) {
    host_inputs = std::move(inputs);
    return *this;
  }
  Operator& writes_on_host(std::vector<size_t> outputs) {
    host_outputs = std::move(outputs);
    return *this;
  }
};

// A standard operator that is taken whatever its node looks like.
Operator& add(std::vector<Operator>& table, const char* name, int first, int last,
              decltype(Operator::create) create);

// Those of the files ops_*.cpp.
std::vector<Operator> standard_operators();

}  // namespace graphopt::ep
