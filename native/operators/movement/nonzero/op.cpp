// NonZero and Compress, whose outputs are as large as values say.
#include "operators/movement/nonzero/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"
#include "operators/movement/gather/op.h"
#include "operators/movement/nonzero/args.h"

namespace graphopt {
namespace {

// A scalar is one number.
Shape with_axes(const Shape& x) { return x.rank() == 0 ? Shape{1} : x; }

gpu::NonzeroType numbers(ElementType type) {
  const bool has_sign_of_zero =
      is_float(type) || type == ElementType::kDouble || type == ElementType::kBfloat16;
  return {bytes_of(type), has_sign_of_zero};
}

// Counts what is not zero in input `which`, of the first `most` numbers.
class Counter final : public gpu::DeviceKernel {
 public:
  Counter(gpu::Device& device, size_t which, int64_t (*most)(const Call& call, int64_t axis),
          int64_t axis = 0)
      : DeviceKernel(device), which_(which), most_(most), axis_(axis) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(which_);
    const int64_t total = most_(call, axis_);
    const Ref all = set_output(call, 0, Shape{1}, ElementType::kInt64),
              starts = set_output(call, 1, Shape{gpu::nonzero_parts(total)}, ElementType::kInt32);
    program.launch(gpu::nonzero_count_plan(total, numbers(x.type)), {Ref::input(which_)}, {all, starts});
  }

  size_t which_;
  int64_t (*most_)(const Call& call, int64_t axis);
  int64_t axis_;
};

int64_t all_elements(const Call& call, int64_t) { return call.input(0).shape.elements(); }

// Input 1 is their number, 2 what is in front of each part.
class NonZero final : public gpu::DeviceKernel {
 public:
  NonZero(const Node&, gpu::Device& device) : DeviceKernel(device), counter_(device, 0, all_elements) {}
  const Kernel* counter() const override { return &counter_; }

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const Shape shape = with_axes(x.shape);
    const int64_t all = call.integers(1).at(0);
    const Ref y = set_output(call, 0, Shape{static_cast<int64_t>(shape.rank()), all}, ElementType::kInt64);
    program.launch(gpu::nonzero_places_plan(shape, numbers(x.type), all), {Ref::input(0), Ref::input(2)},
                   {y});
  }

  Counter counter_;
};

constexpr int64_t kFlat = INT64_MIN;  // no axis: of the data as one row

// How many conditions are read: there may be fewer than places along the axis, and those beyond its end do not
// count.
int64_t conditions(const Call& call, int64_t axis) {
  const Shape& x = call.input(0).shape;
  const int64_t size = axis == kFlat ? x.elements() : x[axis_of(axis, x.rank())];
  return std::min(size, call.input(1).shape.elements());
}

// Input 2 is how many conditions hold, 3 how many in front of each part.
class Compress final : public gpu::DeviceKernel {
 public:
  Compress(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        axis_(node.find_int("axis").value_or(kFlat)),
        counter_(device, 1, conditions, axis_) {}
  const Kernel* counter() const override { return &counter_; }

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    const int64_t all = call.integers(2).at(0);
    const Shape from = axis_ == kFlat ? Shape{x.shape.elements()} : x.shape;
    const size_t axis = axis_ == kFlat ? 0 : axis_of(axis_, from.rank());
    Shape shape = from;
    shape[axis] = all;
    const Ref y = set_output(call, 0, shape);
    gpu::GatherProblem p;
    p.outer = from.elements(0, axis);
    p.size = from[axis];
    p.inner = from.elements(axis + 1);
    p.indices = all;
    p.bytes = bytes_of(x.type);
    const Ref places = program.reserve(all * 8);
    program.launch(gpu::nonzero_places_plan(Shape{conditions(call, axis_)}, numbers(ElementType::kBool), all),
                   {Ref::input(1), Ref::input(3)}, {places});
    program.launch(gpu::gather_plan(p, call.aligned()), {Ref::input(0), places}, {y});
  }

  int64_t axis_;
  Counter counter_;
};

std::string refuse_compress(const Node& node) {
  return node.inputs[1].type == ElementType::kBool ? "" : "conditions that are not bool";
}

std::string refuse_nonzero(const Node& node) {
  const auto& x = node.inputs[0].shape;
  return x && x->rank() > hip::kNonzeroMostAxes ? "rank above 8" : "";
}

}  // namespace

void add_nonzero(Kernels& kernels) {
  kernels.add_onnx<NonZero>("NonZero", 9, 28).refused(refuse_nonzero).takes_rare_types().counts_first();
  kernels.add_onnx<Compress>("Compress", 9, 28).refused(refuse_compress).takes_rare_types().counts_first();
}

}  // namespace graphopt
