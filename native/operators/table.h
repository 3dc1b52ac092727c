// The table of kernels: operator x device x element type -> how a kernel is made.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "operators/implementations.h"
#include "operators/inference.h"
#include "operators/kernel.h"
#include "operators/layout.h"
#include "operators/tail.h"

namespace graphopt {

constexpr const char* kDomain = "com.graphopt";
constexpr const char* kMicrosoft = "com.microsoft";  // of ONNX Runtime's own operators

enum class Operand {
  kTensor,  // of the operator's element type
  kFloat,   // a float tensor, whatever the operator's element type is
  kBool,    // a bool tensor
  kAny,     // of a type that the kernel looks at
};

// What the memory of output 0 may be.
enum class Reuse {
  kNone,
  kAlias,    // output 0 has the bytes of input 0 and may be the same memory
  kInplace,  // output 0 may be written over input 0
};

enum class Where {
  kCpu,
  kGpu,       // in every provider of ours and in ONNX Runtime's
  kProvider,  // in our own alone
  kPlanning,  // on the host, while a region is planned: operators/movement/shape/arithmetic.h
};

// One operator on one device. The setters return it.
struct Registration {
  std::string name;
  std::string domain;  // "" for ONNX
  Where where = Where::kCpu;
  int first = 1, last = 1;                        // versions of the operator
  std::vector<ElementType> types;                 // of input 0; empty: refuse looks at them
  std::vector<size_t> host_inputs, host_outputs;  // stay in host memory
  bool counts = false;                            // its kernel has a counter
  bool alone = false;                             // in no region: each run is another
  bool rare_types = false;                        // is_rare's are not refused for all nodes
  bool packed_types = false;                      // is_packed's neither
  Reuse reuse = Reuse::kNone;
  Implementations implementations;  // in order of preference, where there are several
  // Why a node is left to others; empty when it is taken.
  std::function<std::string(const Node&)> refuse;
  std::function<std::unique_ptr<Kernel>(const Node&)> create;
  // Where there is a kernel for the node with what follows it; its residual is input `residual`, and inputs
  // before that may be left out.
  std::function<std::unique_ptr<Kernel>(const Node&, const Tail&)> create_with_tail;
  size_t residual = 0;
  // Where there is a kernel for several nodes of this name that differ in nothing but constant inputs 1 and
  // up: its inputs are input 0, then inputs 1 of all nodes, then inputs 2 and so on; its outputs are those of
  // the nodes, one behind another in memory.
  std::function<std::unique_ptr<Kernel>(const Node&, size_t nodes)> create_siblings;

  // In float16, of a node whose input 0 has rank 4.
  std::function<Layout(const Node&)> layout = [](const Node&) { return Layout::kFirst; };
  // The kernel for tensors of rank 4 in channels last, with kFollows and kLast. Constants of rank 4 are so, too.
  std::function<std::unique_ptr<Kernel>(const Node&, const std::optional<Tail>&)> create_channels_last;

  // What the runtime must know of an operator of our domain.
  std::vector<Operand> inputs;
  size_t outputs = 1;
  // The types of outputs that a node may leave out; empty: all have the operator's type and must be there.
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
  Registration& lies(decltype(layout) how) {
    layout = std::move(how);
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
  Registration& takes_rare_types() {
    rare_types = true;
    return *this;
  }
  Registration& takes_packed_types() {
    packed_types = true;
    return *this;
  }
  Registration& counts_first() {
    counts = true;
    return *this;
  }
  Registration& writes_on_host(std::vector<size_t> which) {
    host_outputs = std::move(which);
    return *this;
  }
};

using Table = std::vector<Registration>;

}  // namespace graphopt
