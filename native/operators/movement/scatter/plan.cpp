#include <stdexcept>

#include "operators/movement/scatter/op.h"

namespace graphopt::gpu {
namespace {

// `scalars`: every target is one element, and all pointers are multiples of 16.
const char* reduction_for(ElementType type, bool scalars) {
  // Sums and products wrap around and are the same bits for signed and unsigned integers, so these share
  // kernels. Minima and maxima differ, so uint8 has its own kernels.
  const char* suffix = type == ElementType::kUint8 ? "_u8" : type_suffix(type);
  if (suffix == nullptr) throw std::invalid_argument("the reduction does not support this type");
  return kernel_name({scalars ? "scatter_reduce_scalars" : "scatter_reduce", suffix});
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
  if (k > kMaxAxes) throw std::invalid_argument("an index tuple has at most 5 indices");
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
  const bool scalars = p.reduction != ScatterReduction::kNone && aligned && p.inner == 1;
  const int64_t element = bytes_of(p.type);
  static_assert(sizeof(hip::ScatterLinked<uint8_t>) == sizeof(hip::ScatterLinked<uint32_t>));
  const int64_t link_bytes = !scalars       ? 4
                             : element == 8 ? sizeof(hip::ScatterLinked<uint64_t>)
                                            : sizeof(hip::ScatterLinked<uint32_t>);
  enum { kFirst, kNext };
  plan.workspace.push_back(targets * 4);

  hip::ScatterClearArgs clear = {};
  clear.first = workspace(kFirst);
  clear.targets = targets;
  plan.launch_items("scatter_clear", divide_up(targets, hip::kScatterElements), hip::kScatterThreads, clear);
  if (p.indices.elements() > 0) {
    hip::ScatterLinkArgs link = p.elements ? link_elements(p) : link_tuples(p);
    plan.workspace.push_back(link.count * link_bytes);
    link.index = input(1);
    link.updates = input(2);
    link.first = workspace(kFirst);
    link.next = workspace(kNext);
    link.narrow = p.narrow;
    plan.launch_items(scalars ? bits_kernel("scatter_link_scalars", element) : "scatter_link", link.count,
                      hip::kScatterThreads, link);
  } else {
    plan.workspace.push_back(link_bytes);
  }

  int64_t inner = p.inner, bytes = p.bytes;
  const char* name = nullptr;
  if (p.reduction != ScatterReduction::kNone) {
    name = reduction_for(p.type, scalars);
  } else {
    if (bytes == 8) {
      bytes = 4;
      inner *= 2;
    }
    if (aligned && inner * bytes % 16 == 0) {
      inner = inner * bytes / 16;
      bytes = 16;
    }
    name = bits_kernel("scatter_take", bytes);
  }
  hip::ScatterApplyArgs apply = {};
  apply.x = input(0);
  apply.updates = input(2);
  apply.first = workspace(kFirst);
  apply.next = workspace(kNext);
  apply.y = output(0);
  apply.total = to_u31(targets * inner);
  apply.inner = make_divisor(inner);
  apply.reduction = p.reduction;
  plan.launch_items(name, divide_up(apply.total, hip::kScatterElements), hip::kScatterThreads, apply);
  return plan;
}

}  // namespace graphopt::gpu
