#include "operators/movement/index_add/op.h"

#include "operators/kernel_bases.h"

namespace graphopt {

IndexAddProblem IndexAddOp::problem(const Shapes& inputs) const {
  const Shape &data = inputs[0], &indices = inputs[1], &updates = inputs[2];
  IndexAddProblem p{data, updates, axis_of(axis_, data.rank()), false};
  throw_if(updates.rank() != data.rank(), "updates ", updates, " and data ", data,
           " must have the same rank");
  throw_if(indices.rank() != 1, "indices must have rank 1, got ", indices);
  p.one_index = indices[0] == 1;
  throw_if(!p.one_index && indices[0] != updates[p.axis], "updates ", updates, " need ", updates[p.axis],
           " indices, got ", indices);
  for (size_t i = 0; i < data.rank(); ++i) {
    throw_if(i != p.axis && updates[i] > data[i], "updates ", updates, " are larger than data ", data);
  }
  return p;
}

namespace {

template <class Index>
void require_indices_in_range(const Tensor& indices, int64_t n) {
  const auto* values = indices.as<const Index>();
  for (int64_t i = 0; i < indices.shape[0]; ++i) {
    const auto index = static_cast<int64_t>(values[i]);
    throw_if(index < -n || index >= n, "index ", index, " is out of range for an axis of size ", n);
  }
}

// The kernel is float only and ignores the type parameter of add_cpu.
template <class>
class IndexAddCpu final : public CpuKernel<IndexAddOp> {
 public:
  using CpuKernel::CpuKernel;

  bool run(Call& call) const override {
    const Problem& p = problem(call);
    const Tensor& indices = call.inputs[1];
    const bool narrow = indices.type == ElementType::kInt32;
    throw_if(!narrow && indices.type != ElementType::kInt64, "indices must be int32 or int64, got ",
             element_type_name(indices.type));
    // Without updates the function body reads no index.
    if (p.updates.elements() > 0) {
      (narrow ? require_indices_in_range<int32_t> : require_indices_in_range<int64_t>)(indices,
                                                                                       p.data[p.axis]);
    }
    cpu::index_add<float>(p, data<float>(call, 0), indices.data, narrow, data<float>(call, 2),
                          call.outputs[0].as<float>(), *call.parallel);
    return true;
  }

 private:
  size_t workspace(const Problem&, size_t) const override { return 0; }
};

}  // namespace

void add_index_add(Kernels& kernels) {
  kernels.add_cpu<IndexAddOp, IndexAddCpu>(Reuse::kInplace, {ElementType::kFloat});
}

}  // namespace graphopt
