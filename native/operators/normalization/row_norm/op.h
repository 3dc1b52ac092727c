// FusedLayerNorm[Add[Sum]], FusedAdaLayerNorm[Add[Sum]], FusedRmsNorm[Add[Sum]];
// FusedLayerNorm[AddSum]IntoWindows, FusedLayerNormAddSumFromWindows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "device/launch.h"
#include "operators/normalization/row_norm/windows.h"
#include "operators/operator.h"

namespace graphopt {

// The order of rows: image order or window order (windows.h). kImages: all tensors are in image order. kIntoWindows: Y
// is in window order and, without a residual, may have padding rows, which are 0. kFromWindows: the residual is in
// window order.
enum class RowOrder { kImages, kIntoWindows, kFromWindows };

// LayerNorm subtracts the mean and adds beta; RMSNorm does neither (beta is null).
struct RowNormProblem {
  int64_t rows = 0, D = 0;
  float epsilon = 1e-5f;
  bool rms = false;
  bool has_residual = false;
  bool writes_sum = false;         // S = X + R is a second output
  bool has_beta = true;            // false: no beta; only for a LayerNorm on a GPU
  int64_t images = 1;              // gamma and beta are [images, D]; each image has rows / images rows of X
  bool writes_statistics = false;  // of each row; only on a GPU
  RowOrder order = RowOrder::kImages;
  hip::RowWindows windows = {};
};

// FusedLayerNorm, FusedRmsNorm and FusedAdaLayerNorm. The last one can have a gamma and a beta for each
// image.
class RowNormOp final : public Operator<RowNormProblem> {
 public:
  static std::vector<RowNormOp> all();
  std::string name() const override;
  std::vector<Operand> inputs() const override;
  size_t outputs() const override { return sum_ ? 2 : 1; }
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;

 private:
  bool rms_ = false, ada_ = false, add_ = false, sum_ = false;
  float epsilon_ = 0.0f;
};

// Returns the RowWindows of images with fewer than 2^31 rows including padding. The shift must be less than
// the size of a padded image.
hip::RowWindows row_windows(int64_t height, int64_t width, int64_t window_height, int64_t window_width,
                            int64_t down, int64_t right);

// FusedLayerNormIntoWindows and FusedLayerNormAddSumFromWindows: images [N, H, W, D] or [N, H W, D], windows
// [.., h w, D]. FusedLayerNormAddSumIntoWindows: images [N, H W, D] of complete windows.
class RowNormWindowsOp final : public Operator<RowNormProblem> {
 public:
  static std::vector<RowNormWindowsOp> all();
  std::string name() const override;
  std::vector<Operand> inputs() const override;
  size_t outputs() const override { return add_ ? 2 : 1; }
  void read(const Node& node) override;
  Problem problem(const Shapes& inputs) const override;
  Shape output(const Shapes& inputs) const override;
  Shape output_shape(const Shape& y, size_t i) const override;
  void infer(const ShapeInference& node) const override;

 private:
  void read_sizes(const Attributes& node);
  int64_t windows() const;  // per image
  double rows_of_image() const;
  // Returns N of a shape [N, H, W, D] or [N, H W, D]. Throws Error for other shapes.
  int64_t images(const Shape& x) const;

  bool add_ = false, into_ = true;
  float epsilon_ = 0.0f;
  int64_t height_ = 1, width_ = 1, window_height_ = 1, window_width_ = 1, down_ = 0, right_ = 0;
};

}  // namespace graphopt

namespace graphopt::cpu {

// T is float or graphopt::half. gamma and beta are [images, D]. residual is null unless p.has_residual, beta is
// null if p.rms, and sum is null unless p.writes_sum. y may be x.
GRAPHOPT_CPU_KERNEL(size_t, row_norm_workspace, (const RowNormProblem& p, size_t workers), (p, workers))
GRAPHOPT_CPU_KERNEL(void, row_norm,
                    (const RowNormProblem& p, const T* x, const T* residual, const T* gamma, const T* beta,
                     T* y, T* sum, Parallel& parallel, void* workspace),
                    (p, x, residual, gamma, beta, y, sum, parallel, workspace))

}  // namespace graphopt::cpu

namespace graphopt::gpu {

// Inputs X, optional R, gamma, beta unless p.rms. Outputs Y, optional S and, with p.writes_statistics, a float tensor
// with the means of all rows, then 1 / sqrt(variance + epsilon) of all rows. `aligned`: all pointers are multiples of
// 16. Throws std::invalid_argument if D or the number of rows is 2^31 or more.
Plan row_norm_plan(const RowNormProblem& p, bool half, bool aligned, const DeviceFacts& device);

}  // namespace graphopt::gpu
