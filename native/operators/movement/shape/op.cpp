// Operators that change a tensor's shape but not its bytes, and Shape and Size.
#include <algorithm>

#include "operators/kernel_bases.h"
#include "operators/layout.h"
#include "operators/movement/shape/arithmetic.h"
#include "operators/movement/shape/views.h"

namespace graphopt {
namespace {

// Output 0 holds the bytes of input 0 in the shape that Of computes (views.h).
template <class Of>
Planner plan_view(const Node& node) {
  return [shape = Of(node)](Call& call, Program& program) {
    const Shape y = shape.of(call);
    program.copy(set_output(call, 0, y), Ref::input(0), static_cast<int64_t>(call.input(0).bytes()));
  };
}

std::string refuse_dropout(const Node& node) {
  if (node.outputs.size() > 1 && node.outputs[1].present) return "the mask output is used";
  if (!node.has_input(2)) return "";
  const auto training = node.constant(2);
  if (!training || training->type != ElementType::kBool || training->shape.elements() != 1) {
    return "training_mode is not constant";
  }
  return *training->as<bool>() ? "training_mode is set" : "";
}

// Writes to host memory; enqueues no work.
class ShapeOf final : public Kernel {
 public:
  ShapeOf(const Node& node, gpu::Device& device)
      : device_(device), start_(node.get_int("start", 0)), end_(node.find_int("end")) {}

  gpu::Device* device() const override { return &device_; }

  void plan(Call& call) const override {
    const auto [begin, end] = range(call);
    call.set_output(0, {end - begin}, ElementType::kInt64, Place::kHost);
  }

  bool run(Call& call) const override {
    const int64_t* dims = call.inputs[0].shape.data();
    const auto [begin, end] = range(call);
    std::copy(dims + begin, dims + end, call.outputs[0].as<int64_t>());
    return true;
  }

 private:
  std::pair<int64_t, int64_t> range(const Call& call) const {
    const auto rank = static_cast<int64_t>(call.input(0).shape.rank());
    const auto clamp = [rank](int64_t i) {
      return std::min(std::max<int64_t>(i < 0 ? i + rank : i, 0), rank);
    };
    const int64_t begin = clamp(start_);
    return {begin, std::max(begin, clamp(end_.value_or(rank)))};
  }

  gpu::Device& device_;
  int64_t start_;
  std::optional<int64_t> end_;
};

// Writes to host memory; enqueues no work.
class SizeOf final : public Kernel {
 public:
  SizeOf(const Node&, gpu::Device& device) : device_(device) {}

  gpu::Device* device() const override { return &device_; }
  void plan(Call& call) const override { call.set_output(0, Shape(), ElementType::kInt64, Place::kHost); }
  bool run(Call& call) const override {
    *call.outputs[0].as<int64_t>() = call.inputs[0].shape.elements();
    return true;
  }

 private:
  gpu::Device& device_;
};

}  // namespace

std::unique_ptr<Kernel> make_view(gpu::Device& device) {
  return std::make_unique<PlannedKernel>(device, [](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    program.copy(set_output(call, 0, x.shape), Ref::input(0), static_cast<int64_t>(x.bytes()));
  });
}

void add_shape(Kernels& kernels) {
  const auto view = [&](const char* name, const auto& plan) -> Registration& {
    return kernels.add_onnx(name, 1, 25, plan)
        .reuses(Reuse::kAlias)
        .accepts_all_numbers()
        .accepts_packed_types();
  };
  view("Identity", plan_view<IdentityShape>);
  view("Reshape", plan_view<ReshapeShape>).reads_on_host({1}).first = 5;
  view("Flatten", plan_view<FlattenShape>);
  view("Squeeze", plan_view<SqueezeShape>).reads_on_host({1});
  view("Unsqueeze", plan_view<UnsqueezeShape>).reads_on_host({1});
  kernels.add_onnx("Dropout", 7, 22, plan_view<IdentityShape>)
      .refused(refuse_dropout)
      .reuses(Reuse::kAlias)
      .reads_on_host({1, 2});
  kernels.add_onnx("Shape", 1, 25, kernel<ShapeOf>)
      .writes_on_host({0})
      .accepts_all_numbers()
      .accepts_packed_types();
  kernels.add_onnx("Size", 1, 25, kernel<SizeOf>)
      .writes_on_host({0})
      .accepts_all_numbers()
      .accepts_packed_types();
  add_host_arithmetic(kernels);
  add_host_copies(kernels);
}

}  // namespace graphopt
