#include <algorithm>

#include "operators/reduction/args.h"
#include "operators/reduction/op.h"

namespace graphopt::gpu {
namespace {

using hip::After;
using hip::Before;
using hip::Join;

// Neighbouring axes as one.
struct Part {
  int64_t size;
  bool reduced;
};

std::vector<Part> parts_of(const ReduceProblem& p) {
  std::vector<Part> parts;
  for (size_t d = 0; d < p.x.rank(); ++d) {
    if (p.x[d] == 1) continue;
    if (parts.empty() || parts.back().reduced != p.reduced[d]) {
      parts.push_back({p.x[d], p.reduced[d]});
    } else {
      parts.back().size *= p.x[d];
    }
  }
  return parts;
}

hip::ReduceHow how_of(Reduction how) {
  hip::ReduceHow h = {Join::kSum, Before::kNothing, After::kNothing, 1.0f, 1};
  switch (how) {
    case Reduction::kSum:
    case Reduction::kMean:
      break;
    case Reduction::kMax:
      h.join = Join::kMax;
      break;
    case Reduction::kMin:
      h.join = Join::kMin;
      break;
    case Reduction::kProduct:
      h.join = Join::kProduct;
      break;
    case Reduction::kL1:
      h.before = Before::kAbsolute;
      break;
    case Reduction::kL2:
      h.before = Before::kSquare;
      h.after = After::kRoot;
      break;
    case Reduction::kSumSquare:
      h.before = Before::kSquare;
      break;
    case Reduction::kLogSum:
      h.after = After::kLog;
      break;
    case Reduction::kLogSumExp:
      h.join = Join::kLogSumExp;
      break;
  }
  return h;
}

int64_t size_of(ElementType type) {
  return type == ElementType::kInt64 ? 8 : type == ElementType::kHalf ? 2 : 4;
}

// From one type to another, of floats; integers stay what they are.
struct Kernels {
  const char *rows, *columns;
};
Kernels kernels_of(ElementType from, ElementType to) {
  if (from == ElementType::kInt32) return {"reduce_rows_i32", "reduce_columns_i32"};
  if (from == ElementType::kInt64) return {"reduce_rows_i64", "reduce_columns_i64"};
  if (from == ElementType::kHalf) {
    if (to == ElementType::kHalf) return {"reduce_rows_f16", "reduce_columns_f16"};
    return {"reduce_rows_f16_to_f32", "reduce_columns_f16_to_f32"};
  }
  // The last of several steps: rows are reduced in the first.
  if (to == ElementType::kHalf) return {nullptr, "reduce_columns_f32_to_f16"};
  return {"reduce_rows_f32", "reduce_columns_f32"};
}

void reduce_once(Plan& plan, Buffer x, Buffer y, int64_t outer, int64_t R, int64_t inner,
                 const hip::ReduceHow& how, ElementType from, ElementType to) {
  if (outer * inner == 0) return;
  const Kernels kernels = kernels_of(from, to);
  if (inner == 1) {
    hip::ReduceRowsArgs args = {};
    args.how = how;
    args.R = to_u31(R);
    for_each_launch(outer, hip::kReduceThreads, [&](int64_t first, uint32_t count) {
      args.x = behind(x, first * R * size_of(from));
      args.y = behind(y, first * size_of(to));
      plan.launch(kernels.rows, {count}, hip::kReduceThreads, args);
    });
    return;
  }
  hip::ReduceColumnsArgs args = {};
  args.x = x;
  args.y = y;
  args.how = how;
  args.total = to_u31(outer * inner);
  args.R = to_u31(R);
  args.inner = make_divisor(inner);
  plan.launch(kernels.columns, {to_u31(divide_up(args.total, hip::kReduceThreads))}, hip::kReduceThreads,
              args);
}

}  // namespace

// The innermost reduced axes first: then what is left is small.
Plan reduce_plan(const ReduceProblem& p) {
  Plan plan;
  std::vector<Part> parts = parts_of(p);
  int64_t reduced = 1;
  size_t steps = 0;
  for (const Part& part : parts) {
    if (!part.reduced) continue;
    reduced *= part.size;
    ++steps;
  }
  if (steps == 0) {  // numbers of one
    parts.push_back({1, true});
    steps = 1;
  }
  const bool integers = p.type == ElementType::kInt32 || p.type == ElementType::kInt64;
  const ElementType between = integers ? p.type : ElementType::kFloat;
  hip::ReduceHow how = how_of(p.how);
  const After after = how.after;
  Buffer x = input(0);
  ElementType from = p.type;
  for (size_t step = 0; step < steps; ++step) {
    size_t at = parts.size() - 1;
    while (!parts[at].reduced) --at;
    int64_t outer = 1, inner = 1;
    for (size_t i = 0; i < at; ++i) outer *= parts[i].size;
    for (size_t i = at + 1; i < parts.size(); ++i) inner *= parts[i].size;
    const bool last = step + 1 == steps;
    how.after = last ? after : After::kNothing;
    if (last && p.how == Reduction::kMean) {
      how.scale = 1.0f / static_cast<float>(reduced);
      how.divisor = std::max<int64_t>(reduced, 1);
    }
    const ElementType to = last ? p.type : between;
    Buffer y = output(0);
    if (!last) {
      y = workspace(static_cast<uint8_t>(step));
      plan.workspace.push_back(outer * inner * size_of(to));
    }
    reduce_once(plan, x, y, outer, parts[at].size, inner, how, from, to);
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(at));
    how.before = Before::kNothing;
    x = y;
    from = to;
  }
  return plan;
}

}  // namespace graphopt::gpu
