// Gather, GatherElements and GatherND.
#include "operators/movement/gather/op.h"

#include <algorithm>

#include "operators/movement/gather/indexed.h"

namespace graphopt {

void require_equal_ranks(const Call& call) {
  if (call.input(1).shape.rank() != call.input(0).shape.rank()) {
    throw Error("indices of another rank than the data");
  }
}

std::string refuse_elements(const Node& node) {
  const auto& x = node.inputs[0].shape;
  if (!x) return "the rank is not known";
  return x->rank() > gpu::kMostAxes ? "rank above 5" : "";
}

int64_t tuple_length(const Call& call) {
  const Shape& indices = call.input(1).shape;
  if (indices.rank() == 0) throw Error("indices without an axis");
  return indices[indices.rank() - 1];
}

Shape pointed_at(const Shape& indices, const Shape& x, size_t indexed) {
  const size_t tuples = indices.rank() - 1;
  Shape shape(tuples + x.rank() - indexed);
  std::copy(indices.data(), indices.data() + tuples, shape.data());
  std::copy(x.data() + indexed, x.data() + x.rank(), shape.data() + tuples);
  return shape;
}

std::string refuse_tuples(const Node& node) {
  const auto& index = node.inputs[1].shape;
  if (!index || index->rank() == 0) return "the rank of the indices is not known";
  const int64_t k = (*index)[index->rank() - 1];
  return k < 0 || k > static_cast<int64_t>(gpu::kMostAxes) ? "tuples of more than 5 indices" : "";
}

namespace {

class Gather final : public AlongAxis {
 public:
  using AlongAxis::AlongAxis;

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &index = call.input(1);
    const size_t axis = this->axis(call), added = index.shape.rank();
    Shape y(x.shape.rank() - 1 + added);
    for (size_t d = 0; d < axis; ++d) y[d] = x.shape[d];
    for (size_t d = 0; d < added; ++d) y[axis + d] = index.shape[d];
    for (size_t d = axis + 1; d < x.shape.rank(); ++d) y[d - 1 + added] = x.shape[d];
    gpu::GatherProblem p;
    p.outer = x.shape.elements(0, axis);
    p.size = x.shape[axis];
    p.inner = x.shape.elements(axis + 1);
    p.indices = index.shape.elements();
    p.bytes = bytes_of(x.type);
    p.narrow = index.type == ElementType::kInt32;
    const Ref out = set_output(call, 0, y);
    program.launch(gpu::gather_plan(p, call.aligned()), {Ref::input(0), Ref::input(1)}, {out});
  }
};

class GatherElements final : public AlongAxis {
 public:
  using AlongAxis::AlongAxis;

 private:
  void plan(Call& call, Program& program) const override {
    require_equal_ranks(call);
    const Tensor &x = call.input(0), &index = call.input(1);
    gpu::GatherElementsProblem p;
    p.x = x.shape;
    p.index = index.shape;
    p.axis = axis(call);
    p.bytes = bytes_of(x.type);
    p.narrow = index.type == ElementType::kInt32;
    const Ref y = set_output(call, 0, index.shape);
    program.launch(gpu::gather_elements_plan(p), {Ref::input(0), Ref::input(1)}, {y});
  }
};

class GatherND final : public gpu::DeviceKernel {
 public:
  GatherND(const Node& node, gpu::Device& device)
      : DeviceKernel(device), batch_dims_(node.find_int("batch_dims").value_or(0)) {}

 private:
  void plan(Call& call, Program& program) const override {
    const Tensor &x = call.input(0), &index = call.input(1);
    const size_t tuples = index.shape.rank();
    const int64_t k = tuple_length(call);
    if (batch_dims_ < 0 || batch_dims_ >= static_cast<int64_t>(tuples) || k < 0 ||
        batch_dims_ + k > static_cast<int64_t>(x.shape.rank())) {
      throw Error("tuples of " + std::to_string(k) + " indices behind " + std::to_string(batch_dims_) +
                  " axes do not fit " + x.shape.text());
    }
    const auto batch = static_cast<size_t>(batch_dims_), first = batch + static_cast<size_t>(k);
    gpu::GatherNDProblem p;
    for (size_t d = 0; d < batch; ++d) {
      if (x.shape[d] != index.shape[d]) throw Error("data and indices differ in an axis of the batch");
    }
    p.batch = x.shape.elements(0, batch);
    p.sizes.assign(x.shape.data() + batch, x.shape.data() + first);
    p.inner = x.shape.elements(first);
    p.bytes = bytes_of(x.type);
    p.rows = index.shape.elements(batch, tuples - 1);
    const Ref out = set_output(call, 0, pointed_at(index.shape, x.shape, first));
    program.launch(gpu::gather_nd_plan(p, call.aligned()), {Ref::input(0), Ref::input(1)}, {out});
  }

  int64_t batch_dims_;
};

}  // namespace

void add_gather(Kernels& kernels) {
  kernels.add_onnx<Gather>("Gather", 1, 13).takes_rare_types();
  kernels.add_onnx<GatherElements>("GatherElements", 11, 13).refused(refuse_elements).takes_rare_types();
  kernels.add_onnx<GatherND>("GatherND", 11, 13).refused(refuse_tuples).takes_rare_types();
}

}  // namespace graphopt
