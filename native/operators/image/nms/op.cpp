// NonMaxSuppression: the selection decides how large the output is, and so is made before it; what is left is a
// copy.
#include "operators/image/nms/op.h"

#include <algorithm>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

// Boxes [B, N, 4], scores [B, C, N], the most boxes of a class, thresholds of overlap and score.
gpu::NmsProblem problem_of(const Call& call, bool centered) {
  const Shape &boxes = call.input(0).shape, &scores = call.input(1).shape;
  if (boxes.rank() != 3 || scores.rank() != 3 || boxes[2] != 4 || boxes[0] != scores[0] ||
      boxes[1] != scores[2]) {
    throw Error("boxes of " + boxes.text() + " and scores of " + scores.text() + " do not fit");
  }
  gpu::NmsProblem p;
  p.B = scores[0];
  p.C = scores[1];
  p.N = scores[2];
  p.centered = centered;
  if (call.has_input(2)) {
    const std::vector<int64_t> most = call.integers(2);
    if (most.size() != 1) throw Error("the most boxes of a class must be one number");
    p.most = std::clamp<int64_t>(most[0], 0, p.N);
  }
  p.overlap = call.number(3, 0.0f);
  if (!(p.overlap >= 0 && p.overlap <= 1)) throw Error("the threshold of overlap must be between 0 and 1");
  if (call.has_input(4)) p.score = call.number(4, 0.0f);
  return p;
}

class Selection final : public gpu::DeviceKernel {
 public:
  Selection(gpu::Device& device, bool centered) : DeviceKernel(device), centered_(centered) {}

 private:
  void plan(Call& call, Program& program) const override {
    const gpu::NmsProblem p = problem_of(call, centered_);
    const int64_t rows = p.B * p.C * p.most;
    const Ref number = set_output(call, 0, Shape{rows > 0 ? 1 : 0}, ElementType::kInt64),
              all = set_output(call, 1, Shape{rows, 3}, ElementType::kInt64);
    if (rows > 0) {
      program.launch(gpu::nms_plan(p), {Ref::input(0), Ref::input(1)}, {number, all});
    } else {
      program.reserve(1);  // the runtime has no memory of 0 bytes
    }
  }

  bool centered_;
};

class NonMaxSuppression final : public gpu::DeviceKernel {
 public:
  NonMaxSuppression(const Node& node, gpu::Device& device)
      : DeviceKernel(device), selection_(device, node.find_int("center_point_box").value_or(0) != 0) {}
  const Kernel* counter() const override { return &selection_; }

 private:
  // The last two inputs are what the selection has put out.
  void plan(Call& call, Program& program) const override {
    const size_t rows = call.inputs.size() - 1;
    const std::vector<int64_t> number = call.integers(rows - 1);
    const int64_t all = number.empty() ? 0 : number[0];
    const Ref y = set_output(call, 0, Shape{all, 3}, ElementType::kInt64);
    program.copy(y, Ref::input(rows), all * 3 * 8);
  }

  Selection selection_;
};

std::string refuse_nms(const Node& node) {
  for (const size_t i : {size_t{0}, size_t{1}}) {
    if (node.inputs[i].type != ElementType::kFloat) return "boxes and scores that are not float";
  }
  return "";
}

}  // namespace

void add_nms(Kernels& kernels) {
  kernels.add_onnx<NonMaxSuppression>("NonMaxSuppression", 10, 11)
      .refused(refuse_nms)
      .reads_on_host({2, 3, 4})
      .counts_first();
}

}  // namespace graphopt
