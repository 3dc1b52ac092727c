// Reductions, and pools over all pixels.
#include "operators/reduction/reduction/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {
ReducedAxes::ReducedAxes(const Attributes& node)
    : axes_(node.get_ints("axes", {})),
      keepdims_(node.get_bool("keepdims", true)),
      empty_is_all_(!node.get_bool("noop_with_empty_axes")) {}

std::vector<bool> ReducedAxes::reduced(const Call& call) const {
  const std::vector<int64_t> axes = call.has_input(1) ? call.integers(1) : axes_;
  const size_t rank = call.input(0).shape.rank();
  std::vector<bool> result(rank, axes.empty() && empty_is_all_);
  for (const int64_t axis : axes) result[axis_of(axis, rank)] = true;
  return result;
}

Shape ReducedAxes::output_shape(const Shape& x, const std::vector<bool>& reduced) const {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (!reduced[d] || keepdims_) dims.push_back(reduced[d] ? 1 : x[d]);
  }
  Shape y(dims.size());
  std::copy(dims.begin(), dims.end(), y.data());
  return y;
}

namespace {

Planner plan_reduce(const Node& node, gpu::Reduction reduction, bool channels_last) {
  const ReducedAxes axes(node);
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    gpu::ReduceProblem p = {x.shape, axes.reduced(call), reduction, x.type};
    if (channels_last) std::rotate(p.reduced.begin() + 1, p.reduced.begin() + 2, p.reduced.end());
    program.launch(gpu::reduce_plan(p, call.aligned()), {Ref::input(0)},
                   {set_output(call, 0, axes.output_shape(x.shape, p.reduced))});
  };
}

std::string refuse_axes(const Node& node) {
  if (node.get_bool("noop_with_empty_axes")) {
    const bool named = !node.get_ints("axes", {}).empty();
    const auto given = node.has_input(1) ? node.constant(1) : std::nullopt;
    if (!named && (!given || given->shape.elements() == 0))
      return "noop_with_empty_axes is set, and axes may be empty";
  }
  return "";
}

// For LogSumExp. ONNX Runtime's CPU kernel rounds each exponential of an integer down before adding it, so
// only the largest element counts. This contradicts ONNX, but models were made with that kernel.
std::string refuse_log_sum_exp(const Node& node) {
  return is_float(node.type()) ? refuse_axes(node) : "the type is neither float nor float16";
}

std::string refuse_reduction(const Node& node) {
  const ElementType type = node.type();
  return is_float(type) || (is_integer(type) && bytes_of(type) >= 4) ? refuse_axes(node) : no_kernel(type);
}

// Max and Min also have kernels for bytes.
std::string refuse_max_or_min(const Node& node) {
  const ElementType type = node.type();
  return bytes_of(type) == 1 ? refuse_axes(node) : refuse_reduction(node);
}

gpu::ReduceProblem middle_axis(int64_t outer, int64_t R, int64_t inner, gpu::Reduction reduction,
                               ElementType type) {
  return {{outer, R, inner}, {false, true, false}, reduction, type};
}

// Reduces all axes except batch and channels.
Planner plan_global_pool(const Node&, gpu::Reduction reduction, bool channels_last) {
  return [=](Call& call, Program& program) {
    const Tensor& x = call.input(0);
    throw_if(x.shape.rank() < 2, "X must have rank 2 or more");
    Shape y = x.shape;
    const size_t first = channels_last ? 1 : 2, end = channels_last ? y.rank() - 1 : y.rank();
    int64_t pixels = 1;
    for (size_t d = first; d < end; ++d) {
      pixels *= y[d];
      y[d] = 1;
    }
    const int64_t images = x.shape[0], channels = y.elements(1);
    const Ref out = set_output(call, 0, y);
    program.launch(gpu::reduce_plan(middle_axis(channels_last ? images : images * channels, pixels,
                                                channels_last ? channels : 1, reduction, x.type),
                                    call.aligned()),
                   {Ref::input(0)}, {out});
  };
}

std::string refuse_global_pool(const Node& node) {
  const auto& x = node.inputs.front().shape;
  if (!is_float(node.inputs.front().type)) return "the type is neither float nor float16";
  return !x || x->rank() < 3 ? "the rank is below 3" : "";
}

}  // namespace

void add_reduction(Kernels& kernels) {
  const auto reduce = [&](const char* name, gpu::Reduction reduction, std::string (*refuse)(const Node&)) {
    kernels.add_with_both_layouts(name, 1, 28, plan_reduce, reduction)
        .refused(refuse)
        .reads_on_host({1})
        .accepts_all_numbers();
  };
  reduce("ReduceMean", gpu::Reduction::kMean, refuse_reduction);
  reduce("ReduceSum", gpu::Reduction::kSum, refuse_reduction);
  reduce("ReduceMax", gpu::Reduction::kMax, refuse_max_or_min);
  reduce("ReduceMin", gpu::Reduction::kMin, refuse_max_or_min);
  reduce("ReduceProd", gpu::Reduction::kProduct, refuse_reduction);
  reduce("ReduceL1", gpu::Reduction::kL1, refuse_reduction);
  reduce("ReduceSumSquare", gpu::Reduction::kSumSquare, refuse_reduction);
  reduce("ReduceL2", gpu::Reduction::kL2, refuse_reduction);
  reduce("ReduceLogSum", gpu::Reduction::kLogSum, refuse_reduction);
  reduce("ReduceLogSumExp", gpu::Reduction::kLogSumExp, refuse_log_sum_exp);
  const auto pool = [&](const char* name, gpu::Reduction reduction) {
    kernels.add_with_both_layouts(name, 1, 22, plan_global_pool, reduction).refused(refuse_global_pool);
  };
  pool("GlobalAveragePool", gpu::Reduction::kMean);
  pool("GlobalMaxPool", gpu::Reduction::kMax);
}

}  // namespace graphopt
