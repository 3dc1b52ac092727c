// ScaleShift[Add][act]: y = act(x scale[c] + shift[c] + r). BatchNormalization: y = (x - mean[c]) scale[c] /
// sqrt(variance[c] + epsilon) + shift[c]. The last step of a convolution with PRelu: y = x + shift[c] + r, multiplied
// by slope[c] if negative.
//
// Bound by memory: X (and R) are read once and Y is written once; 2 FLOPs per element besides the activation.
// A work-group processes kTile consecutive elements, 16 bytes per work-item: a larger tile would leave too
// few work-groups for one image. docs/measurements/gpu_h200.md compares the kernel with a copy. Launch:
// operators/normalization/scale_shift/plan.cpp.
#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "operators/normalization/scale_shift/args.h"

namespace graphopt::hip {

// y = act(z) with z = (x - mean) scale + shift + r. A negative z is first multiplied by slope.
struct Coefficients {
  float mean, scale, shift, slope;
};

// Computes y of one launch. coefficients(c) returns the coefficients of channel c.
template <class T, class Args, class GetCoefficients>
DEVICE void apply_by_channel(const Args& args, const T* residual, const Activation& act,
                             const GetCoefficients& coefficients) {
  const T* x = args.x;
  T* y = args.y;
  const Divisor &inner = args.inner, &channels = args.channels;
  constexpr int kSize = Pack<T>::kSize;
  constexpr uint32_t kTile = kScaleShiftThreads * kSize;
  const auto channel_of = [&](uint32_t plane) {
    const uint32_t c = plane - divide(plane, channels) * channels.d + args.first_channel;
    return c < channels.d ? c : c - channels.d;
  };
  const auto shifted = [](const Coefficients& of, T from) {
    return (to_float(from) - of.mean) * of.scale + of.shift;
  };
  const auto sloped = [](float z, float slope) { return z < 0.0f ? z * slope : z; };  // NaN is kept
  const uint32_t begin = static_cast<uint32_t>(block_x()) * kTile;

  if (args.vectors != 0 && args.total - begin >= kTile) {
    const uint32_t i = begin + static_cast<uint32_t>(thread_x()) * kSize;
    const Pack<T> in = load_pack(x + i);
    Pack<T> add = {};
    if (residual != nullptr) add = load_pack(residual + i);
    const uint32_t plane = divide(i, inner);
    uint32_t offset = i - plane * inner.d;
    uint32_t c = channel_of(plane);
    Coefficients of = coefficients(c);
    float value[kSize], slope[kSize];
    if (inner.d % kSize == 0) {  // the entire vector has one channel
      UNROLL for (int j = 0; j < kSize; ++j) {
        value[j] = shifted(of, in.v[j]);
        slope[j] = of.slope;
      }
    } else {
      UNROLL for (int j = 0; j < kSize; ++j) {
        if (offset == inner.d) {
          offset = 0;
          c = c + 1 == channels.d ? 0 : c + 1;
          of = coefficients(c);
        }
        value[j] = shifted(of, in.v[j]);
        slope[j] = of.slope;
        ++offset;
      }
    }
    if (residual != nullptr) {
      UNROLL for (int j = 0; j < kSize; ++j) value[j] += to_float(add.v[j]);
    }
    UNROLL for (int j = 0; j < kSize; ++j) value[j] = sloped(value[j], slope[j]);
    activate(act, value);
    Pack<T> out;
    UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = from_float<T>(value[j]);
    store_pack(y + i, out);
    return;
  }

  const uint32_t end = args.total - begin < kTile ? args.total : begin + kTile;
  for (uint32_t i = begin + static_cast<uint32_t>(thread_x()); i < end; i += kScaleShiftThreads) {
    const Coefficients of = coefficients(channel_of(divide(i, inner)));
    float value[1] = {shifted(of, x[i])};
    if (residual != nullptr) value[0] += to_float(residual[i]);
    value[0] = sloped(value[0], of.slope);
    activate(act, value);
    y[i] = from_float<T>(value[0]);
  }
}

template <class T>
DEVICE void scale_shift(const ScaleShiftArgs& args) {
  const T *scale = args.scale, *shift = args.shift, *residual = args.residual;
  apply_by_channel<T>(args, residual, args.act, [&](uint32_t c) {
    return Coefficients{0.0f, to_float(scale[c]), to_float(shift[c]), 1.0f};
  });
}

template <class T>
DEVICE void shift_prelu(const ShiftPReluArgs& args) {
  const T *slope = args.slope, *shift = args.shift, *residual = args.residual;
  apply_by_channel<T>(args, residual, Activation{}, [&](uint32_t c) {
    return Coefficients{0.0f, 1.0f, to_float(shift[c]), to_float(slope[c])};
  });
}

// BatchNormalization of x of type T, with statistics and parameters of type P.
template <class T, class P>
DEVICE void batch_norm(const BatchNormArgs& args) {
  const P *scale = args.scale, *shift = args.shift, *mean = args.mean, *variance = args.variance;
  const T* no_residual = nullptr;
  apply_by_channel<T>(args, no_residual, Activation{}, [&](uint32_t c) {
    return Coefficients{to_float(mean[c]),
                        to_float(scale[c]) * rsqrt_exact(to_float(variance[c]) + args.epsilon),
                        to_float(shift[c]), 1.0f};
  });
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(scale_shift, scale_shift<T>, kScaleShiftThreads, ScaleShiftArgs, x, scale, shift, residual, y)
FLOAT_KERNELS(shift_prelu, shift_prelu<T>, kScaleShiftThreads, ShiftPReluArgs, x, slope, shift, residual, y)
FLOAT_KERNELS(batch_norm, (batch_norm<T, T>), kScaleShiftThreads, BatchNormArgs, x, scale, shift, mean,
              variance, y)
KERNEL_OF(batch_norm_f16_of_f32, (batch_norm<half_t, float>), kScaleShiftThreads, BatchNormArgs, x, scale,
          shift, mean, variance, y)
