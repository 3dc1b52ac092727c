#include "operators/elementwise/elementwise/args.h"
#include "operators/elementwise/elementwise/op.h"

namespace graphopt::gpu {

namespace {

// Returns the arguments common to floats and integers: Y = op(A, B), or for Where op(mask, A, B).
template <typename Args, typename Problem>
Args operands(const Problem& p, int64_t pack, bool aligned) {
  Args args = {};
  const Walk walk =
      fill_operands(args, p.y, p.a, p.binary ? &p.b : nullptr, p.masked ? &p.mask : nullptr, pack, aligned);
  args.mask = p.masked ? input(2) : no_buffer();
  args.mask_strides = walk.strides(3);
  args.a = input(0);
  args.b = p.binary ? input(1) : no_buffer();
  args.op = p.op;
  return args;
}

}  // namespace

Plan elementwise_plan(const ElementwiseProblem& p, bool half, bool aligned) {
  const int64_t pack = half ? 8 : 4;
  if (p.y.elements() == 0) return {};
  auto args = operands<hip::ElementwiseArgs>(p, pack, aligned);
  args.p = p.p;
  args.q = p.q;
  return one_launch(float_kernel("elementwise", half), divide_up(args.total, pack), hip::kElementwiseThreads,
                    args);
}

Plan add_plan(const Shape& a, const Shape& b, bool half, bool aligned) {
  ElementwiseProblem p;
  p.op = hip::kAddOp;
  p.binary = true;
  p.a = p.y = a;
  p.b = b;
  return elementwise_plan(p, half, aligned);
}

Plan integer_elementwise_plan(const IntegerElementwiseProblem& p, bool aligned) {
  const int64_t pack = 16 / p.bytes;
  if (p.y.elements() == 0) return {};
  auto args = operands<hip::IntegerElementwiseArgs>(p, pack, aligned);
  args.is_signed = p.is_signed;
  args.low = p.low;
  args.high = p.high;
  return one_launch(bits_kernel("integer_elementwise", p.bytes), divide_up(args.total, pack),
                    hip::kIntegerElementwiseThreads, args);
}

Plan broadcast_plan(const Shape& x, const Shape& y, bool half, bool aligned) {
  ElementwiseProblem p;
  p.a = x;
  p.y = y;
  return elementwise_plan(p, half, aligned);
}

}  // namespace graphopt::gpu
