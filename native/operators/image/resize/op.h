// Resize on a GPU.
#pragma once

#include <optional>

#include "device/launch.h"
#include "operators/image/resize/args.h"

namespace graphopt::gpu {

using hip::Interpolation;

enum class Coordinates : int32_t {
  kHalfPixel,
  kPytorchHalfPixel,
  kAsymmetric,
  kAlignCorners,
  kHalfPixelSymmetric,
  kCrop,  // tf_crop_and_resize: positions outside of X have the attribute extrapolation_value
};

struct ResizeAxis {
  int32_t in = 1, out = 1;
  float scale = 1;            // from the input `scales`, or computed from `sizes`
  float first = 0, last = 1;  // for kCrop: start and end of the crop, as fractions of X
};

struct ResizeProblem {
  int64_t planes = 1;
  ResizeAxis rows, columns;
  Coordinates coordinates = Coordinates::kHalfPixel;
  Interpolation mode = Interpolation::kRoundPreferFloor;
};

// Nearest and linear, for two axes at once. `aligned`: the address of y is a multiple of 16 bytes. `rows_each`
// overrides the rows of a work-item, for tests.
Plan resize_plan(const ResizeProblem& p, bool half, bool aligned, std::optional<int64_t> rows_each = {});
// The same in float16 and channels last; `planes` is the number of images. `aligned`: both addresses are multiples of
// 16 bytes.
Plan resize_channels_last_plan(const ResizeProblem& p, int64_t channels, bool aligned);

// One axis, with any interpolation and any coordinates.
struct ResizeOneProblem {
  int64_t outer = 1, inner = 1;
  ResizeAxis axis;
  Coordinates coordinates = Coordinates::kHalfPixel;
  Interpolation mode = Interpolation::kRoundPreferFloor;
  float cubic = -0.75f;      // a of the cubic
  bool antialias = false;    // if the axis shrinks, the weights cover all elements of X
  bool inside_only = false;  // elements beyond X have weight 0; else the edge elements are repeated
  // The value that kCrop writes outside of X: the bits of an element, or of a float if elements are interpolated.
  uint64_t outside = 0;
  int64_t bytes = 4;                       // per element, if elements are copied
  bool half_in = false, half_out = false;  // type of interpolated elements: float16, else float
};
Plan resize_one_plan(const ResizeOneProblem& p);

}  // namespace graphopt::gpu
