// TopK, ArgMax and ArgMin.
#include "operators/reduction/top_k/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

std::optional<gpu::Ordered> ordered(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return gpu::Ordered::kFloat;
    case ElementType::kHalf:
      return gpu::Ordered::kHalf;
    case ElementType::kInt64:
      return gpu::Ordered::kInt64;
    case ElementType::kInt32:
      return gpu::Ordered::kInt32;
    case ElementType::kInt8:
      return gpu::Ordered::kInt8;
    case ElementType::kUint8:
      return gpu::Ordered::kUint8;
    case ElementType::kInt16:
      return gpu::Ordered::kInt16;
    case ElementType::kUint16:
      return gpu::Ordered::kUint16;
    case ElementType::kUint32:
      return gpu::Ordered::kUint32;
    case ElementType::kUint64:
      return gpu::Ordered::kUint64;
    default:
      return std::nullopt;
  }
}

// x as [outer, R, inner] around an axis.
template <class Problem>
size_t split_at(int64_t given, const Tensor& x, Problem& p) {
  const size_t axis = axis_of(given, x.shape.rank());
  p.outer = x.shape.elements(0, axis);
  p.R = x.shape[axis];
  p.inner = x.shape.elements(axis + 1);
  p.order = ordered(x.type).value();
  return axis;
}

class TopK final : public gpu::DeviceKernel {
 public:
  TopK(const Node& node, gpu::Device& device)
      : DeviceKernel(device),
        axis_(node.find_int("axis").value_or(-1)),
        k_(node.find_int("k").value_or(0)),
        smallest_(node.find_int("largest").value_or(1) == 0) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    gpu::TopKProblem p;
    const size_t axis = split_at(axis_, x, p);
    p.K = k_;
    if (call.has_input(1)) {
      const std::vector<int64_t> k = call.integers(1);
      if (k.size() != 1) throw Error("K must be one number");
      p.K = k[0];
    }
    if (p.K < 0 || p.K > p.R) {
      throw Error("K is " + std::to_string(p.K) + " of " + std::to_string(p.R) + " numbers");
    }
    p.smallest = smallest_;
    Shape y = x.shape;
    y[axis] = p.K;
    const Ref values = set_output(call, 0, y), indices = set_output(call, 1, y, ElementType::kInt64);
    program.launch(gpu::top_k_plan(p), {Ref::input(0)}, {values, indices});
  }

  int64_t axis_, k_;
  bool smallest_;
};

class ArgExtreme final : public gpu::DeviceKernel {
 public:
  ArgExtreme(const Node& node, gpu::Device& device, bool smallest)
      : DeviceKernel(device),
        axis_(node.find_int("axis").value_or(0)),
        keep_(node.find_int("keepdims").value_or(1) != 0),
        last_(node.find_int("select_last_index").value_or(0) != 0),
        smallest_(smallest) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    gpu::ArgProblem p;
    const size_t axis = split_at(axis_, x, p);
    if (p.R == 0) throw Error("an axis of 0 numbers has no largest and no smallest");
    p.smallest = smallest_;
    p.last = last_;
    Shape y(x.shape.rank() - (keep_ ? 0 : 1));
    for (size_t d = 0, to = 0; d < x.shape.rank(); ++d) {
      if (d != axis) {
        y[to++] = x.shape[d];
      } else if (keep_) {
        y[to++] = 1;
      }
    }
    program.launch(gpu::arg_plan(p), {Ref::input(0)}, {set_output(call, 0, y, ElementType::kInt64)});
  }

  int64_t axis_;
  bool keep_, last_, smallest_;
};

std::string refuse_ordered(const Node& node) {
  const auto& x = node.inputs.front();
  if (!ordered(x.type)) return std::string("no order for ") + element_type_name(x.type);
  return x.shape && x.shape->rank() == 0 ? "a scalar has no axis" : "";
}

}  // namespace

void add_top_k(Kernels& kernels) {
  kernels.add_onnx<TopK>("TopK", 1, 24).refused(refuse_ordered).takes_rare_types().reads_on_host({1});
  kernels.add_onnx<ArgExtreme>("ArgMax", 1, 13, false).refused(refuse_ordered).takes_rare_types();
  kernels.add_onnx<ArgExtreme>("ArgMin", 1, 13, true).refused(refuse_ordered).takes_rare_types();
}

}  // namespace graphopt
