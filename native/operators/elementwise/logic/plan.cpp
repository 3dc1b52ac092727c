#include "operators/elementwise/logic/op.h"

namespace graphopt::gpu {
namespace {

struct LogicKernel {
  const char* name;
  int64_t pack;  // elements of 16 bytes
  bool is_unsigned = false;
};

LogicKernel kernel_for(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return {"logic_f32", 4};
    case ElementType::kHalf:
      return {"logic_f16", 8};
    case ElementType::kBool:
    case ElementType::kInt8:
      return {"logic_i8", 16};
    case ElementType::kUint8:
      return {"logic_i8", 16, true};
    case ElementType::kInt16:
      return {"logic_i16", 8};
    case ElementType::kUint16:
      return {"logic_i16", 8, true};
    case ElementType::kInt32:
      return {"logic_i32", 4};
    case ElementType::kUint32:
      return {"logic_i32", 4, true};
    case ElementType::kInt64:
      return {"logic_i64", 2};
    case ElementType::kUint64:
      return {"logic_i64", 2, true};
    default:
      throw std::invalid_argument("no comparison of this type");
  }
}

}  // namespace

Plan logic_plan(const LogicProblem& p, bool aligned) {
  const auto [name, pack, is_unsigned] = kernel_for(p.type);
  Plan plan;
  if (p.y.elements() == 0) return plan;
  enum { kY, kA, kB };
  std::vector<std::vector<int64_t>> strides = {contiguous(p.y), broadcast(p.a, p.y)};
  strides.push_back(p.binary ? broadcast(p.b, p.y) : std::vector<int64_t>(p.y.rank(), 0));
  Walk walk(p.y, std::move(strides));
  walk.simplify();
  hip::LogicArgs args = {};
  args.a = input(0);
  args.b = p.binary ? input(1) : no_buffer();
  args.y = output(0);
  args.total = walk.total();
  args.axes = walk.axes();
  args.a_strides = walk.strides(kA);
  args.b_strides = walk.strides(kB);
  args.op = p.op;
  args.is_unsigned = is_unsigned;
  args.vectors = aligned && walk.in_vectors(kY, pack, false) && walk.in_vectors(kA, pack, true) &&
                 walk.in_vectors(kB, pack, true);
  const int64_t group = hip::kLogicThreads * pack;
  plan.launch(name, {to_u31(divide_up(args.total, group))}, hip::kLogicThreads, args);
  return plan;
}

}  // namespace graphopt::gpu
