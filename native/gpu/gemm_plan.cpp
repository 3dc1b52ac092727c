#include "gpu/gemm_plan.h"

#include <stdexcept>

namespace graphopt::gpu {
namespace {

constexpr int64_t kTileM = 64, kTileN = 32, kThreads = 128;  // hip/gemm.hip, hip/conv.hip
constexpr int64_t kMostGrid = 65535;                         // of the grid's second and third axis

}  // namespace

Plan gemm_plan(const GemmProblem& p, bool half) {
  Plan plan;
  if (p.M * p.N * p.batch.elements() == 0) return plan;
  struct {
    int32_t row, column;
  } a, b;
  const auto M = static_cast<int32_t>(to_u31(p.M)), N = static_cast<int32_t>(to_u31(p.N)),
             K = static_cast<int32_t>(to_u31(p.K));
  a = p.transpose_a ? decltype(a){1, M} : decltype(a){K, 1};
  b = p.transpose_b ? decltype(b){1, K} : decltype(b){N, 1};
  Walk walk(p.batch, {p.a_batch, p.b_batch});
  walk.simplify();
  const int64_t batch = walk.total();
  if (batch > kMostGrid || divide_up(p.M, kTileM) > kMostGrid) {
    throw std::invalid_argument("a product of too many matrices, or of too many rows");
  }
  plan.launches.push_back(Launch(half ? "gemm_f16" : "gemm_f32", to_u31(divide_up(p.N, kTileN)),
                                 to_u31(divide_up(p.M, kTileM)), to_u31(batch), kThreads)
                              .add(input(0))
                              .add(input(1))
                              .add(output(0))
                              .add(M)
                              .add(N)
                              .add(K)
                              .add(a)
                              .add(b)
                              .add(walk.axes())
                              .add(walk.strides(0))
                              .add(walk.strides(1))
                              .add(p.alpha)
                              .add(p.beta));
  return plan;
}

Plan conv_plan(const ConvNdProblem& p, bool half) {
  Plan plan;
  const int64_t pixels = p.N * p.OH * p.OW;
  if (pixels * p.M * p.groups == 0) return plan;
  struct {
    int32_t kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
  } window;
  const auto i32 = [](int64_t v) { return static_cast<int32_t>(to_u31(v)); };
  window = {i32(p.kernel[0]), i32(p.kernel[1]), i32(p.stride[0]),   i32(p.stride[1]),
            i32(p.pad[0]),    i32(p.pad[1]),    i32(p.dilation[0]), i32(p.dilation[1])};
  to_u31(p.H * p.W);
  const int64_t taps = p.kernel[0] * p.kernel[1];
  to_u31(p.C * taps);
  if (p.groups > kMostGrid || divide_up(p.M, kTileM) > kMostGrid) {
    throw std::invalid_argument("a convolution of too many groups or channels");
  }
  plan.launches.push_back(Launch(half ? "conv_f16" : "conv_f32", to_u31(divide_up(pixels, kTileN)),
                                 to_u31(divide_up(p.M, kTileM)), to_u31(p.groups), kThreads)
                              .add(input(0))
                              .add(input(1))
                              .add(p.has_bias ? input(2) : no_buffer())
                              .add(output(0))
                              .add(i32(p.M))
                              .add(i32(p.C))
                              .add(i32(p.H))
                              .add(i32(p.W))
                              .add(i32(p.groups))
                              .add(window)
                              .add(to_u31(pixels))
                              .add(make_divisor(p.OH * p.OW))
                              .add(make_divisor(p.OW))
                              .add(make_divisor(taps))
                              .add(make_divisor(p.kernel[1])));
  return plan;
}

}  // namespace graphopt::gpu
