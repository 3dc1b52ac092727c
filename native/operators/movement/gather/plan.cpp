#include <stdexcept>

#include "operators/movement/gather/args.h"
#include "operators/movement/gather/elements_args.h"
#include "operators/movement/gather/op.h"

namespace graphopt::gpu {
namespace {

struct Row {
  int64_t elements, bytes;  // bytes of an element
};

// Returns a row as elements of 16 bytes if possible, else with the given element size. Elements of 8 bytes become two
// of 4, because there are no kernels for 8 bytes.
Row widest(int64_t elements, int64_t bytes, bool aligned) {
  if (bytes == 8) {
    bytes = 4;
    elements *= 2;
  }
  if (aligned && elements * bytes % 16 == 0) return {elements * bytes / 16, 16};
  return {elements, bytes};
}

}  // namespace

Plan gather_plan(const GatherProblem& p, bool aligned) {
  const auto [inner, bytes] = widest(p.inner, p.bytes, aligned);
  const int64_t total = p.outer * p.indices * inner;
  if (total == 0) return {};
  const char* name = bits_kernel("gather", bytes);
  hip::GatherArgs args = {};
  args.x = input(0);
  args.index = input(1);
  args.y = output(0);
  args.total = to_u31(total);
  args.inner = make_divisor(inner);
  args.indices = make_divisor(p.indices);
  args.size = to_u31(p.size);
  args.narrow = p.narrow;
  return one_launch(name, total, hip::kGatherThreads, args);
}

Plan gather_elements_plan(const GatherElementsProblem& p) {
  if (p.index.elements() == 0) return {};
  std::vector<int64_t> strides = contiguous(p.x);
  for (size_t d = 0; d < p.x.rank(); ++d) {
    if (d != p.axis && p.index[d] > p.x[d]) {
      throw std::invalid_argument("indices " + p.index.text() + " do not fit into " + p.x.text());
    }
  }
  to_u31(p.x.elements());
  hip::GatherElementsArgs args = {};
  args.axis_stride = to_i31(strides[p.axis]);
  strides[p.axis] = 0;
  Walk walk(p.index, {strides});
  walk.simplify();
  args.x = input(0);
  args.index = input(1);
  args.y = output(0);
  args.total = walk.total();
  args.axes = walk.axes();
  args.x_strides = walk.strides(0);
  args.size = to_u31(p.x[p.axis]);
  args.narrow = p.narrow;
  return one_launch(bits_kernel("gather_elements", p.bytes), divide_up(args.total, hip::kGatherElements),
                    hip::kGatherElementsThreads, args);
}

Plan gather_nd_plan(const GatherNDProblem& p, bool aligned) {
  const auto [inner, bytes] = widest(p.inner, p.bytes, aligned);
  const int64_t total = p.batch * p.rows * inner;
  if (total == 0) return {};
  if (p.sizes.size() > kMaxAxes) throw std::invalid_argument("an index tuple has at most 5 indices");
  hip::GatherNDArgs args = {};
  int64_t stride = inner;
  for (size_t j = p.sizes.size(); j-- > 0;) {
    args.sizes[j] = to_i31(p.sizes[j]);
    args.strides.s[j] = to_i31(stride);
    stride *= p.sizes[j];
  }
  to_u31(p.batch * stride);
  args.x = input(0);
  args.index = input(1);
  args.y = output(0);
  args.total = to_u31(total);
  args.inner = make_divisor(inner);
  args.rows = make_divisor(p.rows);
  args.batch_stride = to_u31(stride);
  args.k = static_cast<int32_t>(p.sizes.size());
  return one_launch(bits_kernel("gather_nd", bytes), total, hip::kGatherElementsThreads, args);
}

}  // namespace graphopt::gpu
