// Resize.
#include "operators/image/resize/op.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "operators/kernel_bases.h"

namespace graphopt {
namespace {

using gpu::Coordinates;
using gpu::Interpolation;
using gpu::ResizeAxis;

std::optional<Coordinates> coordinates_of(const Attributes& a) {
  return find_choice<std::string, Coordinates>(a.get_string("coordinate_transformation_mode", "half_pixel"),
                                               {{"half_pixel", Coordinates::kHalfPixel},
                                                {"half_pixel_symmetric", Coordinates::kHalfPixelSymmetric},
                                                {"pytorch_half_pixel", Coordinates::kPytorchHalfPixel},
                                                {"asymmetric", Coordinates::kAsymmetric},
                                                {"align_corners", Coordinates::kAlignCorners},
                                                {"tf_crop_and_resize", Coordinates::kCrop}});
}

std::optional<Interpolation> interpolation_of(const Attributes& a) {
  const std::string mode = a.get_string("mode", "nearest");
  if (mode == "linear") return Interpolation::kLinear;
  if (mode == "cubic") return Interpolation::kCubic;
  if (mode != "nearest") return std::nullopt;
  return find_choice<std::string, Interpolation>(a.get_string("nearest_mode", "round_prefer_floor"),
                                                 {{"round_prefer_floor", Interpolation::kRoundPreferFloor},
                                                  {"round_prefer_ceil", Interpolation::kRoundPreferCeil},
                                                  {"floor", Interpolation::kFloor},
                                                  {"ceil", Interpolation::kCeil}});
}

bool interpolates(Interpolation mode) {
  return mode == Interpolation::kLinear || mode == Interpolation::kCubic;
}

enum class Aspect { kStretch, kNotLarger, kNotSmaller };

std::optional<Aspect> aspect_of(const Attributes& a) {
  return find_choice<std::string, Aspect>(a.get_string("keep_aspect_ratio_policy", "stretch"),
                                          {{"stretch", Aspect::kStretch},
                                           {"not_larger", Aspect::kNotLarger},
                                           {"not_smaller", Aspect::kNotSmaller}});
}

// Returns the bits of `value`; with a type, of `value` converted to this type.
template <class T>
uint64_t bits_of(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
uint64_t bits_of(float value, ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return bits_of(value);
    case ElementType::kHalf:
      return bits_of(half(value));
    case ElementType::kDouble:
      return bits_of(static_cast<double>(value));
    case ElementType::kBfloat16:
      return bits_of(value) >> 16;
    default:
      return static_cast<uint64_t>(std::isfinite(value) ? std::llround(std::clamp(value, -9e18f, 9e18f)) : 0);
  }
}

// The region of interest, scales and sizes are inputs 1 to 3.
class Resize final : public gpu::DeviceKernel {
 public:
  Resize(const Node& node, gpu::Device& device, bool channels_last)
      : DeviceKernel(device),
        coordinates_(coordinates_of(node).value()),
        mode_(interpolation_of(node).value()),
        aspect_(aspect_of(node).value()),
        axes_(node.get_ints("axes", {})),
        cubic_(node.get_float("cubic_coeff_a", -0.75f)),
        outside_(node.get_float("extrapolation_value", 0.0f)),
        antialias_(node.get_bool("antialias")),
        inside_only_(node.get_bool("exclude_outside")),
        channels_last_(channels_last) {}

 private:
  // Returns the axes of the attribute `axes`; by default all.
  std::vector<size_t> named_axes(size_t rank) const {
    std::vector<size_t> named;
    for (const int64_t axis : axes_) {
      named.push_back(axis_of(axis, rank));
      throw_if(std::count(named.begin(), named.end(), named.back()) > 1,
               "the attribute axes names an axis twice");
    }
    for (size_t d = 0; axes_.empty() && d < rank; ++d) named.push_back(d);
    return named;
  }

  // Returns the sizes, the scale and the crop of each axis of a tensor of this shape.
  std::vector<ResizeAxis> axes(const Call& call, const Shape& x) const {
    std::vector<ResizeAxis> all(x.rank());
    for (size_t d = 0; d < x.rank(); ++d) {
      all[d].in = all[d].out = gpu::to_i31(x[d]);
    }
    const std::vector<size_t> named = named_axes(x.rank());
    if (call.has_input(3) && call.input(3).shape.elements() > 0) {
      set_sizes(call.integers(3), named, all);
    } else {
      set_scales(call.input(2), named, all);
    }
    for (const size_t d : named) {
      throw_if(!(all[d].scale > 0) || !std::isfinite(all[d].scale),
               "scales must be positive and finite, got ", all[d].scale);
    }
    if (coordinates_ == Coordinates::kCrop) set_crop(call, named, all);
    return all;
  }

  void set_sizes(const std::vector<int64_t>& sizes, const std::vector<size_t>& named,
                 std::vector<ResizeAxis>& all) const {
    throw_if(sizes.size() != named.size(), "one size for each axis is needed");
    float common = 0;  // scale of all axes, unless kStretch
    for (size_t k = 0; k < named.size(); ++k) {
      ResizeAxis& axis = all[named[k]];
      throw_if(sizes[k] < 0 || (axis.in == 0 && sizes[k] > 0), "size ", sizes[k],
               " is not valid for an axis of size ", axis.in);
      axis.out = gpu::to_i31(sizes[k]);
      if (axis.out != axis.in) axis.scale = static_cast<float>(axis.out) / static_cast<float>(axis.in);
      common = k == 0                          ? axis.scale
               : aspect_ == Aspect::kNotLarger ? std::min(common, axis.scale)
                                               : std::max(common, axis.scale);
    }
    if (aspect_ == Aspect::kStretch) {
      // The scale of an empty axis is not used.
      for (const size_t d : named) all[d].scale = all[d].out == 0 ? 1.0f : all[d].scale;
      return;
    }
    for (const size_t d : named) {
      all[d].scale = common;
      all[d].out = gpu::to_i31(static_cast<int64_t>(std::round(common * static_cast<float>(all[d].in))));
    }
  }

  void set_scales(const Tensor& given, const std::vector<size_t>& named, std::vector<ResizeAxis>& all) const {
    throw_if(
        given.type != ElementType::kFloat || given.shape.elements() != static_cast<int64_t>(named.size()),
        "one scale for each axis is needed");
    for (size_t k = 0; k < named.size(); ++k) {
      ResizeAxis& axis = all[named[k]];
      axis.scale = given.as<float>()[k];
      const float out = std::floor(static_cast<float>(axis.in) * axis.scale);
      throw_if(!(out >= 0 && out < 2147483648.0f), "scale ", axis.scale, " gives too many elements");
      axis.out = static_cast<int32_t>(out);
    }
  }

  void set_crop(const Call& call, const std::vector<size_t>& named, std::vector<ResizeAxis>& all) const {
    const Tensor& roi = call.input(1);
    const size_t n = named.size();
    throw_if(!is_float(roi.type) || roi.shape.elements() != static_cast<int64_t>(2 * n),
             "roi must have a start and an end for each axis");
    const auto at = [&roi](size_t i) {
      return roi.type == ElementType::kHalf ? static_cast<float>(roi.as<half>()[i]) : roi.as<float>()[i];
    };
    for (size_t k = 0; k < n; ++k) {
      all[named[k]].first = at(k);
      all[named[k]].last = at(n + k);
    }
  }

  bool changes(const ResizeAxis& a) const {
    if (coordinates_ == Coordinates::kCrop && (a.first != 0 || a.last != 1)) return true;
    return a.in != a.out || a.scale != 1;
  }

  void plan(Call& call, Program& program) const override {
    const Tensor& x = call.input(0);
    std::vector<ResizeAxis> all = axes(call, channels_last_ ? to_channels_first(x.shape) : x.shape);
    const size_t rank = all.size();
    // From here on, the axes are in memory order.
    if (channels_last_) std::rotate(all.begin() + 1, all.begin() + 2, all.end());
    Shape y = x.shape;
    std::vector<size_t> changed;
    for (size_t d = 0; d < rank; ++d) {
      y[d] = all[d].out;
      if (changes(all[d])) changed.push_back(d);
    }
    const Ref out = set_output(call, 0, y);
    if (y.elements() == 0) return;
    if (changed.empty()) {
      program.copy(out, Ref::input(0), x.shape.elements() * bytes_of(x.type));
    } else if (!plan_at_once(call, program, all, changed, out)) {
      plan_one_by_one(call, program, all, std::move(changed), out);
    }
  }

  // Plans the resize of rows and columns in one launch. Returns false if another axis is resized or no kernel
  // supports it.
  bool plan_at_once(const Call& call, Program& program, const std::vector<ResizeAxis>& all,
                    const std::vector<size_t>& changed, Ref out) const {
    const Tensor& x = call.input(0);
    const size_t rank = all.size(), rows = rank - (channels_last_ ? 3 : 2);
    if (!is_float(x.type) || rank < (channels_last_ ? 4u : 3u)) return false;
    if (mode_ == Interpolation::kCubic || coordinates_ == Coordinates::kCrop ||
        (antialias_ && interpolates(mode_))) {
      return false;
    }
    if (changed.front() < rows || changed.back() > rows + 1) return false;
    gpu::ResizeProblem p;
    p.planes = x.shape.elements(0, rows);
    p.rows = all[rows];
    p.columns = all[rows + 1];
    p.coordinates = coordinates_;
    p.mode = mode_;
    program.launch(channels_last_ ? gpu::resize_channels_last_plan(p, x.shape[3], call.aligned())
                                  : gpu::resize_plan(p, is_half(x), call.aligned()),
                   {Ref::input(0)}, {out});
    return true;
  }

  void plan_one_by_one(const Call& call, Program& program, const std::vector<ResizeAxis>& all,
                       std::vector<size_t> changed, Ref out) const {
    const Tensor& x = call.input(0);
    const auto growth = [&all](size_t d) { return static_cast<double>(all[d].out) / std::max(1, all[d].in); };
    std::stable_sort(changed.begin(), changed.end(),
                     [&](size_t a, size_t b) { return growth(a) < growth(b); });
    Shape now = x.shape;
    Ref from = Ref::input(0);
    bool half_in = is_half(x);
    for (const size_t d : changed) {
      const bool is_last = d == changed.back();
      gpu::ResizeOneProblem p;
      p.outer = now.elements(0, d);
      p.inner = now.elements(d + 1);
      p.axis = all[d];
      p.coordinates = coordinates_;
      p.mode = mode_;
      p.cubic = cubic_;
      p.antialias = antialias_;
      p.inside_only = inside_only_ && mode_ == Interpolation::kCubic;
      p.bytes = bytes_of(x.type);
      p.half_in = half_in;
      p.half_out = is_last && is_half(x);
      p.outside = interpolates(mode_) ? bits_of(outside_) : bits_of(outside_, x.type);
      now[d] = p.axis.out;
      const Ref to =
          is_last ? out : program.reserve(now.elements() * (interpolates(mode_) ? int64_t{4} : p.bytes));
      program.launch(gpu::resize_one_plan(p), {from}, {to});
      from = to;
      half_in = false;
    }
  }

  Coordinates coordinates_;
  Interpolation mode_;
  Aspect aspect_;
  std::vector<int64_t> axes_;
  float cubic_, outside_;
  bool antialias_, inside_only_, channels_last_;
};

std::string refuse_resize(const Node& node) {
  const auto mode = interpolation_of(node);
  if (!coordinates_of(node) || !mode || !aspect_of(node)) return "this mode is not known";
  if (!is_float(node.type()) && interpolates(*mode)) return "the mode interpolates integers";
  const auto& x = node.inputs.front().shape;
  return !x ? "the rank is not known" : "";
}

}  // namespace

void add_resize(Kernels& kernels) {
  kernels.add_with_both_layouts("Resize", 11, 19, kernel<Resize>)
      .refused(refuse_resize)
      .reads_on_host({1, 2, 3})
      .accepts_all_numbers()
      .with_byte_layouts();
}

}  // namespace graphopt
