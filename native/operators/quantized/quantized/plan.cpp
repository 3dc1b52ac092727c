#include <algorithm>
#include <cmath>
#include <limits>

#include "operators/quantized/quantized/op.h"

namespace graphopt::gpu {

namespace {

constexpr int64_t kPack = 16;

// Returns the arguments common to the kernels that process lines.
template <class Args>
Args lines_of(const QuantizedLines& p) {
  to_u31(p.outer * p.size * p.inner);
  Args args = {};
  args.x = input(0);
  args.y_scale = input(3);
  args.y_zero = p.y_zero ? input(4) : no_buffer();
  args.y = output(0);
  args.lines = to_u31(p.outer * p.inner);
  args.inner = make_divisor(p.inner);
  args.size = to_u31(p.size);
  args.is_signed = p.is_signed;
  return args;
}

// `adjacent`: lines that kQuantizedLineItems work-items process.
template <class Args>
void launch_lines(Plan& plan, const char* name, const Args& args, int64_t adjacent = 1) {
  const int64_t lines = hip::kQuantizedThreads / hip::kQuantizedLineItems * adjacent;
  plan.launch(name, {to_u31(divide_up(args.lines, lines))}, hip::kQuantizedThreads, args);
}

}  // namespace

Plan quantized_plan(const QuantizedProblem& p, bool aligned) {
  if (p.y.elements() == 0) return {};
  const bool table = p.op == QuantizedOp::kTable, binary = p.op != QuantizedOp::kActivate && !table;
  hip::QuantizedArgs args = {};
  fill_operands(args, p.y, p.a, binary ? &p.b : nullptr, nullptr, kPack, aligned);
  const auto given = [](bool has, uint8_t i) { return has ? input(i) : no_buffer(); };
  args.a = input(0);
  args.a_scale = given(!table, 1);
  args.a_zero = given(p.a_zero, 2);
  args.b = given(binary, 3);
  args.b_scale = given(binary, 4);
  args.b_zero = given(binary && p.b_zero, 5);
  args.y_scale = given(!table, 6);
  args.y_zero = given(p.y_zero, 7);
  args.table = given(table, 1);
  args.act = p.act;
  args.op = p.op;
  args.is_signed = p.is_signed;
  return one_launch("quantized", divide_up(args.total, kPack), hip::kQuantizedThreads, args);
}

Plan quantized_mean_plan(const QuantizedLines& p, bool aligned) {
  Plan plan;
  if (p.outer * p.inner == 0) return plan;
  auto args = lines_of<hip::QuantizedMeanArgs>(p);
  args.x_scale = input(1);
  args.x_zero = p.x_zero ? input(2) : no_buffer();
  if (aligned && p.inner % hip::kQuantizedAdjacent == 0) {
    launch_lines(plan, "quantized_mean_adjacent", args, hip::kQuantizedAdjacent * hip::kQuantizedWords);
  } else {
    launch_lines(plan, "quantized_mean", args);
  }
  return plan;
}

Plan quantized_softmax_plan(const QuantizedLines& p) {
  Plan plan;
  if (p.outer * p.size * p.inner == 0) return plan;
  auto args = lines_of<hip::QuantizedSoftmaxArgs>(p);
  args.table = input(1);
  launch_lines(plan, "quantized_softmax", args);
  return plan;
}

Plan quantized_exponentials_plan(int64_t size) {
  hip::ExponentialsArgs args = {};
  args.x_scale = input(0);
  args.table = output(0);
  // The limit is computed as in ONNX Runtime's CPU kernel, because the results must round equally.
  constexpr double kSpare = 5;
  const double limit = std::log(std::numeric_limits<float>::max() / static_cast<float>(size));
  args.largest = std::max(0.0, limit - kSpare);
  return one_launch("quantized_exponentials", Grid{1}, hip::kExponentials, args);
}

}  // namespace graphopt::gpu
