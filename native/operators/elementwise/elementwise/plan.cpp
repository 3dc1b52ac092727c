#include "operators/elementwise/elementwise/args.h"
#include "operators/elementwise/elementwise/op.h"

namespace graphopt::gpu {

namespace {

// What the arguments of floats and of whole numbers share: Y = op(A, B) where the mask says so.
template <typename Args, typename Problem>
Args operands(const Problem& p, int64_t pack, bool aligned) {
  enum { kY, kA, kB, kMask };
  std::vector<std::vector<int64_t>> strides = {contiguous(p.y), broadcast(p.a, p.y)};
  const std::vector<int64_t> none(p.y.rank(), 0);
  strides.push_back(p.binary ? broadcast(p.b, p.y) : none);
  strides.push_back(p.masked ? broadcast(p.mask, p.y) : none);
  Walk walk(p.y, std::move(strides));
  walk.simplify();
  Args args = {};
  args.mask = p.masked ? input(2) : no_buffer();
  args.a = input(0);
  args.b = p.binary ? input(1) : no_buffer();
  args.y = output(0);
  args.vectors = aligned && walk.in_vectors(kY, pack, false) && walk.in_vectors(kA, pack, true) &&
                 walk.in_vectors(kB, pack, true);
  args.total = walk.total();
  args.axes = walk.axes();
  args.mask_strides = walk.strides(kMask);
  args.a_strides = walk.strides(kA);
  args.b_strides = walk.strides(kB);
  args.op = p.op;
  return args;
}

}  // namespace

Plan elementwise_plan(const ElementwiseProblem& p, bool half, bool aligned) {
  const int64_t pack = half ? 8 : 4;
  Plan plan;
  if (p.y.elements() == 0) return plan;
  auto args = operands<hip::ElementwiseArgs>(p, pack, aligned);
  args.p = p.p;
  args.q = p.q;
  plan.launch_items(float_kernel("elementwise", half), divide_up(args.total, pack), hip::kElementwiseThreads,
                    args);
  return plan;
}

Plan add_plan(const Shape& a, const Shape& b, bool half, bool aligned) {
  ElementwiseProblem p;
  p.op = hip::kAddOp;
  p.binary = true;
  p.a = p.y = a;
  p.b = b;
  return elementwise_plan(p, half, aligned);
}

Plan whole_plan(const WholeProblem& p, bool aligned) {
  const int64_t pack = 16 / p.bytes;
  Plan plan;
  if (p.y.elements() == 0) return plan;
  auto args = operands<hip::WholeArgs>(p, pack, aligned);
  args.is_signed = p.is_signed;
  args.low = p.low;
  args.high = p.high;
  plan.launch_items(bits_kernel("whole", p.bytes), divide_up(args.total, pack), hip::kWholeThreads, args);
  return plan;
}

Plan broadcast_plan(const Shape& x, const Shape& y, bool half, bool aligned) {
  ElementwiseProblem p;
  p.a = x;
  p.y = y;
  return elementwise_plan(p, half, aligned);
}

}  // namespace graphopt::gpu
