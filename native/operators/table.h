// The table of kernels: maps operator, device and element type to a function that creates the kernel.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "operators/implementations.h"
#include "operators/inference.h"
#include "operators/kernel.h"
#include "operators/layout.h"
#include "operators/tail.h"

namespace graphopt {

constexpr const char* kDomain = "com.graphopt";
constexpr const char* kMicrosoft = "com.microsoft";  // ONNX Runtime's contrib operators

enum class Operand {
  kTensor,  // has the operator's element type
  kFloat,   // a float tensor for any element type of the operator
  kBool,    // a bool tensor
  kAny,     // any type; the kernel checks it
};

// How outputs may share the memory of input 0.
enum class Reuse {
  kNone,
  kAlias,    // output 0 has the bytes of input 0 and may be the same memory
  kInplace,  // output 0 may be written over input 0
  kParts,    // outputs may be parts of input 0, at the offsets that gpu::DeviceKernel::part returns
};

enum class Where {
  kCpu,
  kGpu,       // in this library's provider and in ONNX Runtime's ROCm provider
  kProvider,  // in this library's provider only
  kPlanning,  // on the host, while a region is planned: operators/movement/shape/arithmetic.h
};

// One operator on one device. The setters return it.
struct Registration {
  std::string name;
  std::string domain;  // "" for ONNX
  Where where = Where::kCpu;
  int first = 1, last = 1;                        // first and last version of the operator
  std::vector<ElementType> types;                 // types of input 0; empty: `refuse` checks them
  std::vector<size_t> host_inputs, host_outputs;  // indices of inputs and outputs in host memory
  bool has_counter = false;                       // whether its kernels have a counter (kernel.h)
  bool alone = false;         // never part of a region, because each run gives a different result
  bool all_numbers = false;   // also accepts uint16, int16, uint32, uint64 and double (is_rare)
  bool packed_types = false;  // also accepts the types of is_packed
  bool float8 = false;        // also accepts float8e4m3fn
  Reuse reuse = Reuse::kNone;
  size_t slices = 0;  // number of first inputs that can be slices (operators/input_slice.h)
  // Indices of inputs that hold sequence lengths. Nodes that compute only lengths, for example from a padding mask,
  // become a separate region. The mask grows with each token; the captured graph of the other nodes remains valid.
  std::vector<size_t> length_inputs;
  // Returns true if a plan for these inputs is also valid for another value of host input i. Empty: only for an equal
  // value.
  std::function<bool(const Call&, size_t i, const Tensor& value)> keeps_plan;
  // Pairs of an input and an output of the same shape, by index. They may share memory if nothing else reads the input.
  std::vector<std::pair<size_t, size_t>> in_place;
  Implementations implementations;  // in order of preference, if there are several
  // Returns why the provider refuses a node; empty if the provider claims it.
  std::function<std::string(const Node&)> refuse;
  std::function<std::unique_ptr<Kernel>(const Node&)> create;
  // Creates a kernel that fuses the nodes after this node (tail.h); empty if the operator has no such kernel. The
  // input with index `residual` is the tail's residual; inputs before it may be omitted.
  std::function<std::unique_ptr<Kernel>(const Node&, const Tail&)> create_with_tail;
  size_t residual = 0;
  // Creates one kernel for several nodes of this operator that differ only in constant inputs 1 and up; empty if the
  // operator has no such kernel. The kernel's inputs are the shared input 0, then input 1 of each node, then input 2
  // of each node, and so on. Its outputs are those of the nodes, contiguous in memory.
  std::function<std::unique_ptr<Kernel>(const Node&, size_t nodes)> create_siblings;

  // Returns how the node's float16 kernels handle layouts. Called for a node with an input 0 of rank 4.
  std::function<Layout(const Node&)> layout = [](const Node&) { return Layout::kFirst; };
  bool has_byte_layouts = false;  // `layout` is also valid for kernels of 8-bit elements
  Layout layout_of(const Node& node) const {
    return is_byte(node.type()) && !has_byte_layouts ? Layout::kFirst : layout(node);
  }
  // Creates the kernel for tensors of rank 4 in channels last, for kFollows and kLast. Constants of rank 4 are in
  // channels last as well.
  std::function<std::unique_ptr<Kernel>(const Node&, const std::optional<Tail>&)> create_channels_last;

  // Properties that the runtime needs for operators of com.graphopt.
  std::vector<Operand> inputs;
  size_t outputs = 1;
  // Types of the outputs if a node may omit some. Empty: all have the operator's type and are required.
  std::vector<ElementType> output_types;
  std::function<void(const ShapeInference&)> infer;
  const char* provider = nullptr;  // null: the CPU provider
  std::string device;              // for the log; empty: this CPU

  Registration& refused(decltype(refuse) why) {
    refuse = std::move(why);
    return *this;
  }
  Registration& reuses(Reuse how) {
    reuse = how;
    return *this;
  }
  Registration& reads_lengths(std::vector<size_t> which) {
    length_inputs = std::move(which);
    return *this;
  }
  Registration& keeps_plans(decltype(keeps_plan) when) {
    keeps_plan = std::move(when);
    return *this;
  }
  Registration& works_in_place(decltype(in_place) which) {
    in_place = std::move(which);
    return *this;
  }
  Registration& with_layout(decltype(layout) how) {
    layout = std::move(how);
    return *this;
  }
  Registration& with_byte_layouts() {
    has_byte_layouts = true;
    return *this;
  }
  Registration& chooses(Implementations from) {
    implementations = std::move(from);
    return *this;
  }
  Registration& reads_on_host(std::vector<size_t> which) {
    host_inputs = std::move(which);
    return *this;
  }
  Registration& accepts_all_numbers() {
    all_numbers = true;
    return *this;
  }
  Registration& accepts_packed_types() {
    packed_types = true;
    return *this;
  }
  Registration& accepts_float8() {
    float8 = true;
    return *this;
  }
  Registration& with_counter() {
    has_counter = true;
    return *this;
  }
  Registration& writes_on_host(std::vector<size_t> which) {
    host_outputs = std::move(which);
    return *this;
  }
};

using Table = std::vector<Registration>;

}  // namespace graphopt
