// cuDNN and MIOpen: convolutions of two spatial axes.
#include <array>
#include <map>
#include <mutex>
#include <tuple>

#include "gpu/driver.h"
#include "gpu/libraries.h"

namespace graphopt::gpu {
namespace {

using Key = std::array<int64_t, 18>;

Key key_of(const ConvNdProblem& p, bool half) {
  return {p.N,           p.groups,      p.C,         p.H,         p.W,         p.M,
          p.OH,          p.OW,          p.kernel[0], p.kernel[1], p.stride[0], p.stride[1],
          p.dilation[0], p.dilation[1], p.pad[0],    p.pad[1],    half,        p.has_bias};
}

void check(int status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string(what) + " failed, status " + std::to_string(status));
}

// What the libraries have in common: a handle for each stream, and descriptors and the chosen algorithm for
// each problem. They are kept, since making them costs more than the convolution of a small image.
template <class Library>
class DnnOf final : public Dnn {
 public:
  size_t conv_workspace(const ConvNdProblem& p, bool half, void* stream) override {
    return convolution(p, half, stream).second->workspace;
  }

  void conv(const ConvNdProblem& p, bool half, const void* x, const void* w, const void* bias, void* y,
            void* workspace, void* stream) override {
    const auto [handle, convolution] = this->convolution(p, half, stream);
    library_.run(handle, *convolution, x, w, bias, y, workspace);
  }

  void forget(void* stream) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return;
    for (const auto& [key, convolution] : found->second.convolutions) library_.destroy(convolution);
    library_.destroy(found->second.handle);
    streams_.erase(found);
  }

 private:
  using Convolution = typename Library::Convolution;
  struct Stream {
    void* handle = nullptr;
    std::map<Key, Convolution> convolutions;
  };

  std::pair<void*, const Convolution*> convolution(const ConvNdProblem& p, bool half, void* stream) {
    Stream* of;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      of = &streams_[stream];
    }
    if (of->handle == nullptr) of->handle = library_.create(stream);
    const Key key = key_of(p, half);
    auto found = of->convolutions.find(key);
    if (found == of->convolutions.end()) {
      found = of->convolutions.emplace(key, library_.describe(of->handle, p, half)).first;
    }
    return {of->handle, &found->second};
  }

  Library library_;
  std::mutex mutex_;
  std::map<void*, Stream> streams_;
};

struct Cudnn {
  struct Convolution {
    void *x = nullptr, *w = nullptr, *y = nullptr, *bias = nullptr, *conv = nullptr;
    int algorithm = 0;
    size_t workspace = 0;
  };
  // cudnnConvolutionFwdAlgoPerf_t
  struct Performance {
    int algorithm, status;
    float milliseconds;
    size_t workspace;
    int determinism, math, reserved[3];
  };

  int (*create_)(void**);
  int (*destroy_)(void*);
  int (*set_stream)(void*, void*);
  int (*create_tensor)(void**);
  int (*set_tensor)(void*, int, int, int, int, int, int);
  int (*destroy_tensor)(void*);
  int (*create_filter)(void**);
  int (*set_filter)(void*, int, int, int, int, int, int);
  int (*destroy_filter)(void*);
  int (*create_conv)(void**);
  int (*set_conv)(void*, int, int, int, int, int, int, int, int);
  int (*set_groups)(void*, int);
  int (*set_math)(void*, int);
  int (*destroy_conv)(void*);
  int (*find)(void*, void*, void*, void*, void*, int, int*, Performance*);
  int (*forward)(void*, const void*, void*, const void*, void*, const void*, void*, int, void*, size_t,
                 const void*, void*, void*);
  int (*add)(void*, const void*, void*, const void*, const void*, void*, void*);

  Cudnn() {
    void* library = open_runtime({"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"}, "cuDNN (libcudnn)");
    resolve(library, "cudnnCreate", create_);
    resolve(library, "cudnnDestroy", destroy_);
    resolve(library, "cudnnSetStream", set_stream);
    resolve(library, "cudnnCreateTensorDescriptor", create_tensor);
    resolve(library, "cudnnSetTensor4dDescriptor", set_tensor);
    resolve(library, "cudnnDestroyTensorDescriptor", destroy_tensor);
    resolve(library, "cudnnCreateFilterDescriptor", create_filter);
    resolve(library, "cudnnSetFilter4dDescriptor", set_filter);
    resolve(library, "cudnnDestroyFilterDescriptor", destroy_filter);
    resolve(library, "cudnnCreateConvolutionDescriptor", create_conv);
    resolve(library, "cudnnSetConvolution2dDescriptor", set_conv);
    resolve(library, "cudnnSetConvolutionGroupCount", set_groups);
    resolve(library, "cudnnSetConvolutionMathType", set_math);
    resolve(library, "cudnnDestroyConvolutionDescriptor", destroy_conv);
    resolve(library, "cudnnGetConvolutionForwardAlgorithm_v7", find);
    resolve(library, "cudnnConvolutionForward", forward);
    resolve(library, "cudnnAddTensor", add);
  }

  void* create(void* stream) const {
    void* handle = nullptr;
    check(create_(&handle), "cudnnCreate");
    check(set_stream(handle, stream), "cudnnSetStream");
    return handle;
  }
  void destroy(void* handle) const noexcept { destroy_(handle); }

  Convolution describe(void* handle, const ConvNdProblem& p, bool half) const {
    constexpr int kNchw = 0, kFloat = 0, kHalf = 2, kCrossCorrelation = 1, kTensorOps = 1, kFma = 3,
                  kMost = 8;
    const int type = half ? kHalf : kFloat;
    const auto i32 = [](int64_t v) { return static_cast<int>(to_u31(v)); };
    Convolution c;
    check(create_tensor(&c.x), "cudnnCreateTensorDescriptor");
    check(create_tensor(&c.y), "cudnnCreateTensorDescriptor");
    check(create_tensor(&c.bias), "cudnnCreateTensorDescriptor");
    check(create_filter(&c.w), "cudnnCreateFilterDescriptor");
    check(create_conv(&c.conv), "cudnnCreateConvolutionDescriptor");
    const int channels = i32(p.groups * p.M);
    check(set_tensor(c.x, kNchw, type, i32(p.N), i32(p.groups * p.C), i32(p.H), i32(p.W)), "tensor");
    check(set_tensor(c.y, kNchw, type, i32(p.N), channels, i32(p.OH), i32(p.OW)), "tensor");
    check(set_tensor(c.bias, kNchw, type, 1, channels, 1, 1), "tensor");
    check(set_filter(c.w, type, kNchw, channels, i32(p.C), i32(p.kernel[0]), i32(p.kernel[1])), "filter");
    check(set_conv(c.conv, i32(p.pad[0]), i32(p.pad[1]), i32(p.stride[0]), i32(p.stride[1]),
                   i32(p.dilation[0]), i32(p.dilation[1]), kCrossCorrelation, kFloat),
          "cudnnSetConvolution2dDescriptor");
    check(set_groups(c.conv, i32(p.groups)), "cudnnSetConvolutionGroupCount");
    check(set_math(c.conv, half ? kTensorOps : kFma), "cudnnSetConvolutionMathType");
    Performance found[kMost] = {};
    int count = 0;
    check(find(handle, c.x, c.w, c.conv, c.y, kMost, &count, found),
          "cudnnGetConvolutionForwardAlgorithm_v7");
    for (int i = 0; i < count; ++i) {
      if (found[i].status != 0) continue;
      // A faster algorithm for Tensor cores comes with its own kind of arithmetic.
      check(set_math(c.conv, half ? found[i].math : kFma), "cudnnSetConvolutionMathType");
      c.algorithm = found[i].algorithm;
      c.workspace = found[i].workspace;
      return c;
    }
    throw std::runtime_error("cuDNN has no algorithm for this convolution");
  }

  void destroy(const Convolution& c) const noexcept {
    destroy_tensor(c.x);
    destroy_tensor(c.y);
    destroy_tensor(c.bias);
    destroy_filter(c.w);
    destroy_conv(c.conv);
  }

  void run(void* handle, const Convolution& c, const void* x, const void* w, const void* bias, void* y,
           void* workspace) const {
    const float one = 1, zero = 0;
    check(forward(handle, &one, c.x, x, c.w, w, c.conv, c.algorithm, workspace, c.workspace, &zero, c.y, y),
          "cudnnConvolutionForward");
    if (bias != nullptr) check(add(handle, &one, c.bias, bias, &one, c.y, y), "cudnnAddTensor");
  }
};

struct Miopen {
  struct Convolution {
    void *x = nullptr, *w = nullptr, *y = nullptr, *bias = nullptr, *conv = nullptr;
    uint64_t solution = 0;
    size_t workspace = 0;
  };
  // miopenConvSolution_t
  struct Solution {
    float milliseconds;
    size_t workspace;
    uint64_t id;
    int algorithm;
  };

  int (*create_)(void**, void*);
  int (*destroy_)(void*);
  int (*create_tensor)(void**);
  int (*set_tensor)(void*, int, int, int, int, int);
  int (*destroy_tensor)(void*);
  int (*create_conv)(void**);
  int (*set_conv)(void*, int, int, int, int, int, int, int);
  int (*set_groups)(void*, int);
  int (*destroy_conv)(void*);
  int (*find)(void*, void*, void*, void*, void*, size_t, size_t*, Solution*);
  int (*compile)(void*, void*, void*, void*, void*, uint64_t);
  int (*forward)(void*, void*, const void*, void*, const void*, void*, void*, void*, void*, size_t, uint64_t);
  int (*add)(void*, const void*, void*, const void*, const void*, void*, void*);

  Miopen() {
    void* library = open_runtime({"libMIOpen.so.1", "libMIOpen.so"}, "MIOpen (libMIOpen)");
    resolve(library, "miopenCreateWithStream", create_);
    resolve(library, "miopenDestroy", destroy_);
    resolve(library, "miopenCreateTensorDescriptor", create_tensor);
    resolve(library, "miopenSet4dTensorDescriptor", set_tensor);
    resolve(library, "miopenDestroyTensorDescriptor", destroy_tensor);
    resolve(library, "miopenCreateConvolutionDescriptor", create_conv);
    resolve(library, "miopenInitConvolutionDescriptor", set_conv);
    resolve(library, "miopenSetConvolutionGroupCount", set_groups);
    resolve(library, "miopenDestroyConvolutionDescriptor", destroy_conv);
    resolve(library, "miopenConvolutionForwardGetSolution", find);
    resolve(library, "miopenConvolutionForwardCompileSolution", compile);
    resolve(library, "miopenConvolutionForwardImmediate", forward);
    resolve(library, "miopenConvolutionForwardBias", add);
  }

  void* create(void* stream) const {
    void* handle = nullptr;
    check(create_(&handle, stream), "miopenCreateWithStream");
    return handle;
  }
  void destroy(void* handle) const noexcept { destroy_(handle); }

  Convolution describe(void* handle, const ConvNdProblem& p, bool half) const {
    constexpr int kHalf = 0, kFloat = 1, kConvolution = 0;
    const int type = half ? kHalf : kFloat;
    const auto i32 = [](int64_t v) { return static_cast<int>(to_u31(v)); };
    Convolution c;
    for (void** tensor : {&c.x, &c.y, &c.bias, &c.w})
      check(create_tensor(tensor), "miopenCreateTensorDescriptor");
    check(create_conv(&c.conv), "miopenCreateConvolutionDescriptor");
    const int channels = i32(p.groups * p.M);
    check(set_tensor(c.x, type, i32(p.N), i32(p.groups * p.C), i32(p.H), i32(p.W)), "tensor");
    check(set_tensor(c.y, type, i32(p.N), channels, i32(p.OH), i32(p.OW)), "tensor");
    check(set_tensor(c.bias, type, 1, channels, 1, 1), "tensor");
    check(set_tensor(c.w, type, channels, i32(p.C), i32(p.kernel[0]), i32(p.kernel[1])), "filter");
    check(set_conv(c.conv, kConvolution, i32(p.pad[0]), i32(p.pad[1]), i32(p.stride[0]), i32(p.stride[1]),
                   i32(p.dilation[0]), i32(p.dilation[1])),
          "miopenInitConvolutionDescriptor");
    check(set_groups(c.conv, i32(p.groups)), "miopenSetConvolutionGroupCount");
    Solution best = {};
    size_t count = 0;
    check(find(handle, c.w, c.x, c.conv, c.y, 1, &count, &best), "miopenConvolutionForwardGetSolution");
    if (count == 0) throw std::runtime_error("MIOpen has no algorithm for this convolution");
    check(compile(handle, c.w, c.x, c.conv, c.y, best.id), "miopenConvolutionForwardCompileSolution");
    c.solution = best.id;
    c.workspace = best.workspace;
    return c;
  }

  void destroy(const Convolution& c) const noexcept {
    for (void* tensor : {c.x, c.y, c.bias, c.w}) destroy_tensor(tensor);
    destroy_conv(c.conv);
  }

  void run(void* handle, const Convolution& c, const void* x, const void* w, const void* bias, void* y,
           void* workspace) const {
    const float one = 1, zero = 0;
    check(forward(handle, c.w, w, c.x, x, c.conv, c.y, y, workspace, c.workspace, c.solution),
          "miopenConvolutionForwardImmediate");
    if (bias != nullptr)
      check(add(handle, &one, c.bias, bias, &zero, c.y, y), "miopenConvolutionForwardBias");
  }
};

}  // namespace

std::unique_ptr<Dnn> open_cudnn() { return std::make_unique<DnnOf<Cudnn>>(); }
std::unique_ptr<Dnn> open_miopen() { return std::make_unique<DnnOf<Miopen>>(); }

}  // namespace graphopt::gpu
