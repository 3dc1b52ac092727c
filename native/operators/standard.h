// The standard operators that the provider takes, by room (ROOM/op.cpp).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/program.h"
#include "operators/implementations.h"
#include "operators/matmul/plan.h"
#include "operators/table.h"

namespace graphopt::ep {

using gpu::Program;
using gpu::Ref;

// The table for one device, while it is made.
class Operators {
 public:
  explicit Operators(gpu::Device& device) : device_(device) {}

  // An operator that is taken whatever its node looks like; its kernel is a K, made of a node, the device and
  // what follows here.
  template <class K, class... Args>
  Registration& add(const char* name, int first, int last, Args... args) {
    Registration& r = table.emplace_back();
    r.name = name;
    r.first = first;
    r.last = last;
    r.refuse = [](const Node&) { return std::string(); };
    r.create = [&device = device_, args...](const Node& node) {
      return std::make_unique<K>(node, device, args...);
    };
    return r;
  }

  Table table;

 private:
  gpu::Device& device_;
};

void add_convolutions(Operators& operators);
void add_elementwise(Operators& operators);
void add_linear(Operators& operators);
void add_movement(Operators& operators);
void add_reductions(Operators& operators);
void add_shape(Operators& operators);

// All of them.
Table standard_operators(gpu::Device& device);

// The device's tensors of a node must all be float or all be float16: which T kernels need.
std::string refuse_mixed_floats(const Node& node, const std::vector<size_t>& host_inputs = {});

// From a negative axis, too. Throws Error when it is out of range.
size_t axis_of(int64_t axis, size_t rank);

// An attribute of a window, where it is given, has `count` numbers and none below `least`.
void require_sizes(size_t count, const std::vector<int64_t>& numbers, int64_t least);

bool is_half(const Tensor& tensor);

// Sets an output on the device, of the type of input 0 if none is given.
Ref set_output(Call& call, size_t i, const Shape& shape, ElementType type);
Ref set_output(Call& call, size_t i, const Shape& shape);

// One product on the way, Y = A B. The problem is used up.
struct Product {
  gpu::GemmProblem problem;
  bool half;
  const Call& call;
  Program& program;
  gpu::Device& device;
  Ref a, b, y;
};
// By the vendor's library, and by a kernel of our own: an implementation of its own each.
const char* refuse_library(Product& product);
void plan_library(Product& product);
void plan_own(Product& product);

// y = x, repeated along its axes of size 1.
void broadcast(const Call& call, Program& program, Ref x, const Shape& from, bool half, const Shape& to,
               Ref y);

}  // namespace graphopt::ep
