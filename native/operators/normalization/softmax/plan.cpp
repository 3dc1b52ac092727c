#include <algorithm>

#include "operators/normalization/softmax/args.h"
#include "operators/normalization/softmax/op.h"

namespace graphopt::gpu {

namespace {

const char* family_of(AxisFunction function) {
  return function == AxisFunction::kSoftmax || function == AxisFunction::kLogSoftmax ? "softmax" : "lp_norm";
}

int32_t function_of(AxisFunction function) {
  if (function == AxisFunction::kLp1) return hip::kSumOfAbsolutes;
  if (function == AxisFunction::kLp2) return hip::kRootOfSquares;
  return function == AxisFunction::kLogSoftmax ? hip::kLogSoftmax : hip::kSoftmax;
}

void add_columns(Plan& plan, int64_t outer, int64_t D, int64_t inner, AxisFunction function, bool half,
                 bool aligned) {
  constexpr int64_t kThreads = hip::kSoftmaxColumns * hip::kSoftmaxParts;
  const bool pairs = half && aligned && inner % 2 == 0;
  const char* kernel =
      float_kernel(kernel_name({family_of(function), pairs ? "_column_pairs" : "_columns"}), half);
  const int64_t groups = divide_up(inner, hip::kSoftmaxColumns * (pairs ? 2 : 1)),
                bytes = (half ? 2 : 4) * D * inner;
  hip::SoftmaxColumnsArgs args = {};
  args.groups = make_divisor(groups);
  args.D = to_u31(D);
  args.inner = to_u31(inner);
  args.function = function_of(function);
  // Each launch processes all columns of its indices of `outer`.
  const int64_t max_count = std::max<int64_t>(1, INT32_MAX / (groups * kThreads));
  for (int64_t first = 0; first < outer; first += max_count) {
    args.x = offset_by(input(0), first * bytes);
    args.y = offset_by(output(0), first * bytes);
    plan.launch(kernel, {to_u31(std::min(max_count, outer - first) * groups)},
                static_cast<uint32_t>(kThreads), args);
  }
}

}  // namespace

Plan softmax_plan(int64_t outer, int64_t D, int64_t inner, AxisFunction function, bool half, bool aligned,
                  const DeviceFacts& device) {
  Plan plan;
  if (outer * D * inner == 0) return plan;
  if (inner > 1) {
    add_columns(plan, outer, D, inner, function, half, aligned);
    return plan;
  }
  const int64_t threads =
      std::clamp<int64_t>(round_up(divide_up(to_u31(D), hip::kSoftmaxKept), device.wave), device.wave, 1024);
  hip::SoftmaxArgs args = {};
  args.D = to_u31(D);
  args.function = function_of(function);
  args.threads = static_cast<int32_t>(threads);
  const int64_t bytes = (half ? 2 : 4) * D;
  for_each_launch(outer, threads, [&](int64_t first, uint32_t count) {
    args.x = offset_by(input(0), first * bytes);
    args.y = offset_by(output(0), first * bytes);
    plan.launch(float_kernel(family_of(function), half), {count}, static_cast<uint32_t>(threads), args);
  });
  return plan;
}

}  // namespace graphopt::gpu
