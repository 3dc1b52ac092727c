#include <algorithm>

#include "blocks/gpu/slices.h"
#include "operators/reduction/reduction/args.h"
#include "operators/reduction/reduction/op.h"

namespace graphopt::gpu {
namespace {

using hip::Combiner;
using hip::ElementFunction;
using hip::ResultFunction;

// Adjacent axes, all reduced or all kept, that are merged into one axis.
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

hip::ReduceFunctions functions_of(Reduction reduction, ElementType type) {
  hip::ReduceFunctions h = {
      Combiner::kSum, ElementFunction::kNothing, ResultFunction::kNothing, 1.0f, 1, 0, 0};
  h.is_unsigned = is_unsigned(type);
  if (reduction == Reduction::kMax) h.combiner = Combiner::kMax;
  if (reduction == Reduction::kMin) h.combiner = Combiner::kMin;
  if (reduction == Reduction::kProduct) h.combiner = Combiner::kProduct;
  if (reduction == Reduction::kLogSumExp) h.combiner = Combiner::kLogSumExp;
  if (reduction == Reduction::kL1 && h.is_unsigned == 0) h.before = ElementFunction::kAbsolute;
  if (reduction == Reduction::kL2 || reduction == Reduction::kSumSquare) h.before = ElementFunction::kSquare;
  if (reduction == Reduction::kL2) h.after = ResultFunction::kRoot;
  if (reduction == Reduction::kLogSum) h.after = ResultFunction::kLog;
  return h;
}

// The suffix of a kernel's name. Floats may change their type; integers keep it.
const char* suffix_of(ElementType from, ElementType to) {
  if (!is_float(from) || from == to) return type_suffix(from);
  return from == ElementType::kHalf ? "_f16_to_f32" : "_f32_to_f16";
}

// Returns the number of work-items per row; short rows share a work-group. Eight work-items, or four that read packs,
// read enough adjacent bytes. Their number is doubled beyond that while each has more elements than it loads at a time.
// Each doubling adds a step that combines their results.
uint32_t row_items_of(int64_t R, ElementType from, bool uses_packs) {
  if (R > 512) return hip::kReduceThreads;
  const int64_t few = uses_packs ? 4 : 8, ahead = is_float(from) ? 32 / bytes_of(from) : 8;
  int64_t row_items = 1;
  while (row_items < 32 && row_items < R && (row_items < few || row_items * ahead < R)) row_items *= 2;
  return static_cast<uint32_t>(row_items);
}

// A sequence of launches. Each launch reads the output of the previous one.
class Steps {
 public:
  Steps(const ReduceProblem& p, int64_t reduced, bool aligned)
      : p_(p), aligned_(aligned), functions_(functions_of(p.reduction, p.type)), from_(p.type) {
    after_ = functions_.after;
    functions_.after = ResultFunction::kNothing;
    if (p.reduction != Reduction::kMean) return;
    scale_ = 1.0f / static_cast<float>(reduced);
    divisor_ = std::max<int64_t>(reduced, 1);
  }

  // Reduces x [outer, R, inner] over R. `is_last`: writes the operator's output.
  void reduce(int64_t outer, int64_t R, int64_t inner, bool is_last) {
    for (;;) {
      const int64_t slices = choose_slices(outer, R, inner, hip::kReduceThreads);
      if (slices == 1) break;
      columns(outer, R * inner, slices * inner, false);
      R = slices;
    }
    if (inner == 1) {
      rows(outer, R, is_last);
    } else {
      columns(outer, R * inner, inner, is_last);
    }
  }

  Plan take() && { return std::move(plan_); }

 private:
  void rows(int64_t rows, int64_t R, bool is_last) {
    const ElementType from = from_;
    const Buffer x = x_, y = next_buffer(rows, is_last);
    if (rows == 0) return;
    hip::ReduceRowsArgs args = {};
    args.functions = functions_;
    args.R = to_u31(R);
    const int64_t pack = 16 / bytes_of(from);
    args.uses_packs = is_float(from) && aligned_ && R % pack == 0;
    args.row_items = row_items_of(R, from, args.uses_packs != 0);
    while (1u << args.shift < args.row_items) ++args.shift;
    const int64_t in_group = hip::kReduceThreads / args.row_items;
    for_each_launch(divide_up(rows, in_group), hip::kReduceThreads, [&](int64_t first, uint32_t count) {
      const int64_t row = first * in_group;
      args.x = offset_by(x, row * R * bytes_of(from));
      args.y = offset_by(y, row * bytes_of(from_));
      args.rows = to_u31(std::min(rows - row, count * in_group));
      plan_.launch(kernel_name({"reduce_rows", suffix_of(from, from_)}), {count}, hip::kReduceThreads, args);
    });
    functions_.before = ElementFunction::kNothing;
  }

  // x [outer, block], y [outer, stride].
  void columns(int64_t outer, int64_t block, int64_t stride, bool is_last) {
    const ElementType from = from_;
    const Buffer x = x_, y = next_buffer(outer * stride, is_last);
    if (outer * stride == 0) return;
    hip::ReduceColumnsArgs args = {};
    args.x = x;
    args.y = y;
    args.functions = functions_;
    args.block = static_cast<uint64_t>(block);
    args.total = to_u31(outer * stride);
    args.stride = make_divisor(stride);
    plan_.launch_items(kernel_name({"reduce_columns", suffix_of(from, from_)}), args.total,
                       hip::kReduceThreads, args);
    functions_.before = ElementFunction::kNothing;
  }

  // Returns the buffer to which a step writes this number of elements and from which the next step reads.
  Buffer next_buffer(int64_t elements, bool is_last) {
    from_ = is_last || !is_float(p_.type) ? p_.type : ElementType::kFloat;
    if (is_last) {
      functions_.after = after_;
      functions_.scale = scale_;
      functions_.divisor = divisor_;
      return x_ = output(0);
    }
    x_ = workspace(static_cast<uint8_t>(plan_.workspace.size()));
    plan_.workspace.push_back(elements * bytes_of(from_));
    return x_;
  }

  const ReduceProblem& p_;
  bool aligned_;  // the address of x is a multiple of 16 bytes
  Plan plan_;
  hip::ReduceFunctions functions_;
  ResultFunction after_ = ResultFunction::kNothing;
  float scale_ = 1.0f;
  int64_t divisor_ = 1;
  Buffer x_ = input(0);
  ElementType from_;
};

}  // namespace

// Reduces one group of adjacent axes after the other, the innermost first.
Plan reduce_plan(const ReduceProblem& p, bool aligned) {
  std::vector<Part> parts = parts_of(p);
  int64_t reduced = 1;
  size_t steps = 0;
  for (const Part& part : parts) {
    if (!part.reduced) continue;
    reduced *= part.size;
    ++steps;
  }
  if (steps == 0) {  // each element is a reduction of one element
    parts.push_back({1, true});
    steps = 1;
  }
  Steps sequence(p, reduced, aligned);
  for (size_t step = 0; step < steps; ++step) {
    size_t at = parts.size() - 1;
    while (!parts[at].reduced) --at;
    int64_t outer = 1, inner = 1;
    for (size_t i = 0; i < at; ++i) outer *= parts[i].size;
    for (size_t i = at + 1; i < parts.size(); ++i) inner *= parts[i].size;
    sequence.reduce(outer, parts[at].size, inner, step + 1 == steps);
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(at));
  }
  return std::move(sequence).take();
}

}  // namespace graphopt::gpu
