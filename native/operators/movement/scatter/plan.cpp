#include <stdexcept>

#include "operators/movement/scatter/op.h"

namespace graphopt::gpu {
namespace {

// `each`: every target is one element, and all pointers are multiples of 16.
const char* reduction_for(ElementType type, bool each) {
  switch (type) {
    case ElementType::kFloat:
      return each ? "scatter_reduce_each_f32" : "scatter_reduce_f32";
    case ElementType::kHalf:
      return each ? "scatter_reduce_each_f16" : "scatter_reduce_f16";
    case ElementType::kUint8:
      return each ? "scatter_reduce_each_u8" : "scatter_reduce_u8";
    case ElementType::kInt8:
      return each ? "scatter_reduce_each_i8" : "scatter_reduce_i8";
    case ElementType::kInt32:
    case ElementType::kUint32:  // sums and products wrap around, and are the same bits
      return each ? "scatter_reduce_each_i32" : "scatter_reduce_i32";
    case ElementType::kInt64:
    case ElementType::kUint64:
      return each ? "scatter_reduce_each_i64" : "scatter_reduce_i64";
    default:
      throw std::invalid_argument("no reduction of this type");
  }
}

// Of updates of so many bytes, and how many a link takes.
struct Link {
  const char* kernel;
  int64_t bytes;
};
Link link_each(int64_t bytes) {
  switch (bytes) {
    case 1:
      return {"scatter_link_each_b8", sizeof(hip::ScatterLinked<uint8_t>)};
    case 2:
      return {"scatter_link_each_b16", sizeof(hip::ScatterLinked<uint16_t>)};
    case 4:
      return {"scatter_link_each_b32", sizeof(hip::ScatterLinked<uint32_t>)};
    default:
      return {"scatter_link_each_b64", sizeof(hip::ScatterLinked<uint64_t>)};
  }
}

hip::ScatterLinkArgs link_elements(const ScatterProblem& p) {
  std::vector<int64_t> strides = contiguous(p.sizes);
  for (size_t d = 0; d < p.sizes.rank(); ++d) {
    if (d != p.axis && p.indices[d] > p.sizes[d]) {
      throw std::invalid_argument("indices " + p.indices.text() + " do not fit into " + p.sizes.text());
    }
  }
  hip::ScatterLinkArgs args = {};
  args.axis_stride = to_i31(strides[p.axis]);
  args.sizes[0] = to_i31(p.sizes[p.axis]);
  strides[p.axis] = 0;
  Walk walk(p.indices, {strides});
  walk.simplify();
  args.count = walk.total();
  args.axes = walk.axes();
  args.strides = walk.strides(0);
  return args;
}

hip::ScatterLinkArgs link_tuples(const ScatterProblem& p) {
  const size_t k = p.sizes.rank();
  if (k > kMostAxes) throw std::invalid_argument("a tuple of more than 5 indices");
  hip::ScatterLinkArgs args = {};
  args.tuple = static_cast<int32_t>(k);
  const std::vector<int64_t> strides = contiguous(p.sizes);
  for (size_t d = 0; d < k; ++d) {
    args.sizes[d] = to_i31(p.sizes[d]);
    args.strides.s[d] = to_i31(strides[d]);
  }
  args.count = to_u31(p.indices.elements() / p.indices[p.indices.rank() - 1]);
  return args;
}

}  // namespace

Plan scatter_plan(const ScatterProblem& p, bool aligned) {
  Plan plan;
  const uint32_t targets = to_u31(p.sizes.elements());
  if (targets == 0 || p.inner == 0) return plan;
  const int64_t group = hip::kScatterThreads * hip::kScatterElements;
  const bool each = p.how != ScatterHow::kNone && aligned && p.inner == 1;
  const Link one = each ? link_each(bytes_of(p.type)) : Link{"scatter_link", 4};
  enum { kFirst, kNext };
  plan.workspace.push_back(targets * 4);

  hip::ScatterClearArgs clear = {};
  clear.first = workspace(kFirst);
  clear.targets = targets;
  plan.launch("scatter_clear", {to_u31(divide_up(targets, group))}, hip::kScatterThreads, clear);
  if (p.indices.elements() > 0) {
    hip::ScatterLinkArgs link = p.elements ? link_elements(p) : link_tuples(p);
    plan.workspace.push_back(link.count * one.bytes);
    link.index = input(1);
    link.updates = input(2);
    link.first = workspace(kFirst);
    link.next = workspace(kNext);
    link.narrow = p.narrow;
    plan.launch(one.kernel, {to_u31(divide_up(link.count, hip::kScatterThreads))}, hip::kScatterThreads,
                link);
  } else {
    plan.workspace.push_back(one.bytes);
  }

  int64_t inner = p.inner, bytes = p.bytes;
  const char* name = nullptr;
  if (p.how != ScatterHow::kNone) {
    name = reduction_for(p.type, each);
  } else {
    if (bytes == 8) {
      bytes = 4;
      inner *= 2;
    }
    if (aligned && inner * bytes % 16 == 0) {
      inner = inner * bytes / 16;
      bytes = 16;
    }
    name = bytes == 16  ? "scatter_take_b128"
           : bytes == 4 ? "scatter_take_b32"
           : bytes == 2 ? "scatter_take_b16"
                        : "scatter_take_b8";
  }
  hip::ScatterApplyArgs apply = {};
  apply.x = input(0);
  apply.updates = input(2);
  apply.first = workspace(kFirst);
  apply.next = workspace(kNext);
  apply.y = output(0);
  apply.total = to_u31(targets * inner);
  apply.inner = make_divisor(inner);
  apply.how = p.how;
  plan.launch(name, {to_u31(divide_up(apply.total, group))}, hip::kScatterThreads, apply);
  return plan;
}

}  // namespace graphopt::gpu
