// Gather, GatherElements and GatherND.
#include "operators/movement/gather/op.h"

#include <algorithm>

#include "operators/movement/gather/indexed.h"
#include "operators/movement/movement/op.h"

namespace graphopt {
void require_equal_ranks(const Call& call) {
  throw_if(call.input(1).shape.rank() != call.input(0).shape.rank(),
           "indices must have the rank of the data");
}

std::string refuse_elements(const Node& node) {
  const auto& x = node.inputs[0].shape;
  if (!x) return "the rank is not known";
  return x->rank() > gpu::kMaxAxes ? "the rank is above 5" : "";
}

int64_t tuple_length(const Call& call) {
  const Shape& indices = call.input(1).shape;
  throw_if(indices.rank() == 0, "indices must have rank 1 or more");
  return indices[indices.rank() - 1];
}

Shape selected_shape(const Shape& indices, const Shape& x, size_t indexed) {
  const size_t axes = indices.rank() - 1;
  Shape shape(axes + x.rank() - indexed);
  std::copy(indices.data(), indices.data() + axes, shape.data());
  std::copy(x.data() + indexed, x.data() + x.rank(), shape.data() + axes);
  return shape;
}

Shape gathered(const Shape& x, const Shape& indices, size_t axis) {
  Shape y(x.rank() - 1 + indices.rank());
  std::copy(x.data(), x.data() + axis, y.data());
  std::copy(indices.data(), indices.data() + indices.rank(), y.data() + axis);
  std::copy(x.data() + axis + 1, x.data() + x.rank(), y.data() + axis + indices.rank());
  return y;
}

std::string refuse_tuples(const Node& node) {
  const auto& index = node.inputs[1].shape;
  if (!index || index->rank() == 0) return "the rank of the indices is not known";
  const int64_t k = (*index)[index->rank() - 1];
  if (k < 0) return "the number of indices in a tuple is not known";
  return k > static_cast<int64_t>(gpu::kMaxAxes) ? "a tuple has more than 5 indices" : "";
}

namespace {

Planner plan_gather(const Node& node) {
  return
      [given = node.get_int("axis", 0), known = node.find_int(kConstantIndex)](Call& call, Program& program) {
        const Tensor &x = call.input(0), &index = call.input(1);
        const size_t axis = axis_of(given, x.shape.rank());
        const int64_t size = x.shape[axis];
        if (known && *known >= -size && *known < size && x.shape.elements(0, axis) == 1) {
          const Shape y = gathered(x.shape, index.shape, axis);
          gpu::StridedCopy part = gpu::copy_to(y, gpu::contiguous(y), bytes_of(x.type));
          part.x_offset = (*known + (*known < 0 ? size : 0)) * x.shape.elements(axis + 1);
          plan_part(call, program, part, 0);
          return;
        }
        gpu::GatherProblem p;
        std::tie(p.outer, p.size, p.inner) = split_at(x.shape, axis);
        p.indices = index.shape.elements();
        p.bytes = bytes_of(x.type);
        p.narrow = index.type == ElementType::kInt32;
        const Ref out = set_output(call, 0, gathered(x.shape, index.shape, axis));
        program.launch(gpu::gather_plan(p, call.aligned()), {Ref::input(0), Ref::input(1)}, {out});
      };
}

Planner plan_gather_elements(const Node& node) {
  return [given = node.get_int("axis", 0)](Call& call, Program& program) {
    require_equal_ranks(call);
    const Tensor &x = call.input(0), &index = call.input(1);
    gpu::GatherElementsProblem p;
    p.x = x.shape;
    p.index = index.shape;
    p.axis = axis_of(given, x.shape.rank());
    p.bytes = bytes_of(x.type);
    p.narrow = index.type == ElementType::kInt32;
    const Ref y = set_output(call, 0, index.shape);
    program.launch(gpu::gather_elements_plan(p), {Ref::input(0), Ref::input(1)}, {y});
  };
}

Planner plan_gather_nd(const Node& node) {
  const int64_t batch_dims = node.get_int("batch_dims", 0);
  return [=](Call& call, Program& program) {
    const Tensor &x = call.input(0), &index = call.input(1);
    const size_t rank = index.shape.rank();
    const int64_t k = tuple_length(call);
    throw_if(batch_dims < 0 || batch_dims >= static_cast<int64_t>(rank) || k < 0 ||
                 batch_dims + k > static_cast<int64_t>(x.shape.rank()),
             "batch_dims ", batch_dims, " and tuples of ", k, " indices exceed the rank of the data, ",
             x.shape, ", or of the indices, ", index.shape);
    const auto batch = static_cast<size_t>(batch_dims), first = batch + static_cast<size_t>(k);
    gpu::GatherNDProblem p;
    for (size_t d = 0; d < batch; ++d) {
      throw_if(x.shape[d] != index.shape[d], "data and indices must have equal batch axes");
    }
    p.batch = x.shape.elements(0, batch);
    p.sizes.assign(x.shape.data() + batch, x.shape.data() + first);
    p.inner = x.shape.elements(first);
    p.bytes = bytes_of(x.type);
    p.rows = index.shape.elements(batch, rank - 1);
    const Ref out = set_output(call, 0, selected_shape(index.shape, x.shape, first));
    program.launch(gpu::gather_nd_plan(p, call.aligned()), {Ref::input(0), Ref::input(1)}, {out});
  };
}

}  // namespace

void add_gather(Kernels& kernels) {
  kernels.add_onnx("Gather", 1, 13, plan_gather).reuses(Reuse::kParts).accepts_all_numbers();
  kernels.add_onnx("GatherElements", 11, 13, plan_gather_elements)
      .refused(refuse_elements)
      .accepts_all_numbers();
  kernels.add_onnx("GatherND", 11, 13, plan_gather_nd).refused(refuse_tuples).accepts_all_numbers();
}

}  // namespace graphopt
