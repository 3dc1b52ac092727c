// cuDNN: convolutions on NVIDIA GPUs.
#include <algorithm>

#include "device/libraries/dnn.h"

namespace graphopt::gpu {
namespace {

// Returns whether FFT convolution may need fewer multiply-adds than direct convolution. Both are counted for one
// input channel and one output channel, with cuDNN's smallest transform, 32 x 32. FFT convolution then takes one
// transform of the weights, which each run repeats, and one complex multiplication of each tile. cuDNN's own
// heuristics choose FFTs even for a row of 40 pixels: on an H200 this launches 2,112 GEMMs.
bool fft_may_be_faster(const ConvolutionProblem& p) {
  constexpr int64_t kTile = 32, kPoints = kTile * kTile;
  constexpr int64_t kTransform = kPoints * 5 / 4 * 10;  // 5 n log2(n) / 4 multiply-adds for real numbers
  constexpr int64_t kMultiply = kTile * (kTile / 2 + 1) * 4;
  int64_t tiles = p.N, direct = p.N;
  for (const size_t axis : {size_t{1}, size_t{2}}) {
    tiles *= divide_up(p.out[axis], std::max<int64_t>(kTile + 1 - p.kernel[axis], 1));
    direct *= p.out[axis] * p.kernel[axis];
  }
  return direct > kTransform + tiles * kMultiply;
}

// CUDNN_CONVOLUTION_FWD_ALGO_FFT, _FFT_TILING; CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, _FFT_TILING
bool is_fft(int algorithm, bool backward) {
  return backward ? algorithm == 2 || algorithm == 3 : algorithm == 4 || algorithm == 5;
}

struct Cudnn {
  static constexpr const char* kName = "cuDNN";
  static constexpr bool kLoadsInBackground = false;  // its heuristics read no files and compile nothing
  static constexpr bool kHasRelu = true;
  struct Convolution : ConvolutionDescriptors {
    OwnedObject relu;
    int algorithm = 0;
  };
  // cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionBwdDataAlgoPerf_t
  struct Performance {
    int algorithm, status;
    float milliseconds;
    size_t workspace;
    int deterministic, math, reserved[3];
  };
  using Find = LibraryFunction<void*, void*, void*, void*, void*, int, int*, Performance*>;
  using Run = LibraryFunction<void*, const void*, void*, const void*, void*, const void*, void*, int, void*,
                              size_t, const void*, void*, void*>;

  void* library;
  LibraryFunction<void**> create_{library, "cudnnCreate"};
  LibraryFunction<void*> destroy_{library, "cudnnDestroy"};
  LibraryFunction<void*, void*> set_stream{library, "cudnnSetStream"};
  LibraryFunction<void**> create_tensor{library, "cudnnCreateTensorDescriptor"};
  LibraryFunction<void*, int, int, const int*, const int*> set_tensor{library, "cudnnSetTensorNdDescriptor"};
  LibraryFunction<void*> destroy_tensor{library, "cudnnDestroyTensorDescriptor"};
  LibraryFunction<void**> create_filter{library, "cudnnCreateFilterDescriptor"};
  LibraryFunction<void*, int, int, int, const int*> set_filter{library, "cudnnSetFilterNdDescriptor"};
  LibraryFunction<void*> destroy_filter{library, "cudnnDestroyFilterDescriptor"};
  LibraryFunction<void**> create_conv{library, "cudnnCreateConvolutionDescriptor"};
  LibraryFunction<void*, int, const int*, const int*, const int*, int, int> set_conv{
      library, "cudnnSetConvolutionNdDescriptor"};
  LibraryFunction<void*, int> set_groups{library, "cudnnSetConvolutionGroupCount"};
  LibraryFunction<void*, int> set_math{library, "cudnnSetConvolutionMathType"};
  LibraryFunction<void*> destroy_conv{library, "cudnnDestroyConvolutionDescriptor"};
  Find find{library, "cudnnGetConvolutionForwardAlgorithm_v7"};  // x, w, conv, y
  Run forward{library, "cudnnConvolutionForward"};
  Find find_backward{library, "cudnnGetConvolutionBackwardDataAlgorithm_v7"};  // w, dy, conv, dx
  Run backward{library, "cudnnConvolutionBackwardData"};
  LibraryFunction<void*, const void*, void*, const void*, const void*, void*, void*> add{library,
                                                                                         "cudnnAddTensor"};
  LibraryFunction<void**> create_activation{library, "cudnnCreateActivationDescriptor"};
  LibraryFunction<void*, int, int, double> set_activation{library, "cudnnSetActivationDescriptor"};
  LibraryFunction<void*> destroy_activation{library, "cudnnDestroyActivationDescriptor"};
  LibraryFunction<void*, const void*, void*, const void*, void*, const void*, void*, int, void*, size_t,
                  const void*, void*, const void*, void*, const void*, void*, void*, void*>
      forward_with_relu{library, "cudnnConvolutionBiasActivationForward"};

  Cudnn(void* handle, LibraryMode) : library(handle) {}

  OwnedObject create(void* stream) const {
    OwnedObject handle = make(create_, destroy_);
    set_stream.check(handle.get(), stream);
    return handle;
  }

  bool can_be_captured(const Device&) const { return true; }

  std::optional<Convolution> prepare(void* handle, const ConvolutionProblem& p, bool half, Device&) const {
    constexpr int kNchw = 0, kNhwc = 1, kFloat = 0, kHalf = 2, kCrossCorrelation = 1, kTensorOps = 1,
                  kFma = 3, kMaxResults = 8;
    const int type = half ? kHalf : kFloat;
    const Arrays a(p);
    Convolution c;
    c.transposed = p.transposed;
    describe_tensors(*this, type, a, p.channels_last, c);
    c.w = make(create_filter, destroy_filter);
    set_filter.check(c.w.get(), type, p.channels_last ? kNhwc : kNchw, a.dims(), a.w.data());
    c.conv = make(create_conv, destroy_conv);
    set_conv.check(c.conv.get(), a.axes, a.pad.data(), a.stride.data(), a.dilation.data(), kCrossCorrelation,
                   kFloat);
    set_groups.check(c.conv.get(), to_i31(p.groups));
    set_math.check(c.conv.get(), half ? kTensorOps : kFma);
    if (has_relu(p)) {
      constexpr int kRelu = 1, kPropagateNan = 1;
      c.relu = make(create_activation, destroy_activation);
      set_activation.check(c.relu.get(), kRelu, kPropagateNan, 0.0);
    }
    Performance found[kMaxResults] = {};
    int count = 0;
    void *const of_x = c.x.get(), *const of_w = c.w.get(), *const of_conv = c.conv.get(),
                *const of_y = c.y.get();
    const int status = p.transposed
                           ? find_backward(handle, of_w, of_x, of_conv, of_y, kMaxResults, &count, found)
                           : find(handle, of_x, of_w, of_conv, of_y, kMaxResults, &count, found);
    for (int i = 0; i < count && status == 0; ++i) {
      // A gradient algorithm that is not deterministic may add in another order in each run.
      if (found[i].status != 0 || (p.transposed && found[i].deterministic == 0)) continue;
      if (is_fft(found[i].algorithm, p.transposed) && !fft_may_be_faster(p)) continue;
      // In float16, the algorithm may require another math type for the Tensor Cores.
      set_math.check(c.conv.get(), half ? found[i].math : kFma);
      c.algorithm = found[i].algorithm;
      c.workspace = found[i].workspace;
      return c;
    }
    return std::nullopt;
  }

  void run(void* handle, const Convolution& c, const void* x, const void* w, const void* bias,
           const void* residual, void* y, void* workspace) const {
    const float one = 1, zero = 0;
    if (c.relu != nullptr) {
      forward_with_relu.check(handle, &one, c.x.get(), x, c.w.get(), w, c.conv.get(), c.algorithm, workspace,
                              c.workspace, residual != nullptr ? &one : &zero, c.y.get(),
                              residual != nullptr ? residual : y, c.bias.get(), bias, c.relu.get(), c.y.get(),
                              y);
      return;
    }
    if (c.transposed) {
      backward.check(handle, &one, c.w.get(), w, c.x.get(), x, c.conv.get(), c.algorithm, workspace,
                     c.workspace, &zero, c.y.get(), y);
    } else {
      forward.check(handle, &one, c.x.get(), x, c.w.get(), w, c.conv.get(), c.algorithm, workspace,
                    c.workspace, &zero, c.y.get(), y);
    }
    if (bias != nullptr) add.check(handle, &one, c.bias.get(), bias, &one, c.flat_y.get(), y);
  }
};

}  // namespace

FoundLibrary find_cudnn(const DeviceFacts& device, LibraryMode mode) {
  return find_vendor_library("cuDNN", device, mode, {"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"});
}

std::unique_ptr<OpenLibrary<Dnn>> open_cudnn(Device& device, const FoundLibrary& found, LibraryMode mode) {
  return std::make_unique<OpenDnn<Cudnn>>(device, found, mode);
}

}  // namespace graphopt::gpu
