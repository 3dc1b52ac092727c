#include "operators/elementwise/logic/op.h"

namespace graphopt::gpu {

Plan logic_plan(const LogicProblem& p, bool aligned) {
  const char* suffix = type_suffix(p.type);
  if (suffix == nullptr) throw std::invalid_argument("comparisons do not support this type");
  const int64_t pack = 16 / bytes_of(p.type);
  if (p.y.elements() == 0) return {};
  hip::LogicArgs args = {};
  fill_operands(args, p.y, p.a, p.binary ? &p.b : nullptr, nullptr, pack, aligned);
  args.a = input(0);
  args.b = p.binary ? input(1) : no_buffer();
  args.op = p.op;
  args.is_unsigned = is_unsigned(p.type);
  return one_launch(kernel_name({"logic", suffix}), divide_up(args.total, pack), hip::kLogicThreads, args);
}

}  // namespace graphopt::gpu
