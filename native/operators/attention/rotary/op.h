// FusedRotary[Interleaved]; RotaryEmbedding on a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "device/launch.h"
#include "operators/input_slice.h"
#include "operators/operator.h"

namespace graphopt {

// Y = X cos + rotated(X) sin. Y [n[0], n[1], n[2], D]; X, cos and sin are padded to rank 4 with leading axes of size 1.
struct FusedRotaryProblem {
  std::array<int64_t, 3> n = {1, 1, 1};
  std::array<int64_t, 3> x = {}, cos = {}, sin = {};  // strides in elements; 0: broadcast
  int64_t x_offset = 0;  // of the first element, in elements; not 0 only on a GPU, where X can be a slice
  int64_t D = 0;
  bool interleaved = false;  // the two elements of a pair are adjacent; otherwise D / 2 apart

  int64_t rows() const { return n[0] * n[1] * n[2]; }
};

class FusedRotaryOp final : public Operator<FusedRotaryProblem> {
 public:
  static std::vector<FusedRotaryOp> all();
  std::string name() const override { return interleaved_ ? "FusedRotaryInterleaved" : "FusedRotary"; }
  std::vector<Operand> inputs() const override { return std::vector<Operand>(3, Operand::kTensor); }
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  void infer(const ShapeInference& node) const override;

 private:
  void require_rank(size_t rank) const;

  bool interleaved_ = false;
  std::vector<int64_t> perm_;
  std::optional<InputSlice> slice_;  // X
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half.
GRAPHOPT_CPU_KERNEL(size_t, fused_rotary_workspace, (const FusedRotaryProblem& p, size_t workers),
                    (p, workers))
GRAPHOPT_CPU_KERNEL(void, fused_rotary,
                    (const FusedRotaryProblem& p, const T* x, const T* cos, const T* sin, T* y,
                     Parallel& parallel, void* workspace),
                    (p, x, cos, sin, y, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs X, cos, sin; output Y. Throws std::invalid_argument if one of them has 2^31 elements or more. `aligned`: all
// pointers are multiples of 16.
Plan fused_rotary_plan(const FusedRotaryProblem& p, bool half, bool aligned);

// X [B, S, N, H], or [B, N, S, H] with heads_first; cos and sin [positions, half]. The first 2 half elements of a head
// are rotated. one_id: ids has the position of token 0 of all sequences.
struct RotaryProblem {
  int64_t B = 1, S = 1, N = 1, H = 1, half = 1, positions = 1;
  bool heads_first = false, one_id = false, interleaved = false, has_ids = true;
};

// Inputs X, ids, cos, sin; output Y. Throws std::invalid_argument if a size is 2^31 or more.
Plan rotary_plan(const RotaryProblem& p, bool half, bool aligned);

}  // namespace graphopt::gpu
