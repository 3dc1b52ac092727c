// cuDNN and MIOpen: convolutions of two and three spatial axes, and transposed ones, which are to a library
// the gradient of a convolution's input.
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "device/driver.h"
#include "device/libraries/libraries.h"
#include "device/libraries/stream_lock.h"

namespace graphopt::gpu {
namespace {

constexpr size_t kMostDims = 2 + kSpatialAxes;
using Key = std::array<int64_t, 10 + 6 * kSpatialAxes>;

bool has_relu(const ConvolutionProblem& p) { return p.act.kind == ActivationKind::kRelu; }

Key key_of(const ConvolutionProblem& p, bool half) {
  Key key = {p.N,        p.groups,        p.C,         p.M,           half, p.transposed,
             p.has_bias, p.channels_last, has_relu(p), p.has_residual};
  size_t n = 10;
  for (const auto* axes : {&p.in, &p.out, &p.kernel, &p.stride, &p.dilation, &p.pad}) {
    for (const int64_t v : *axes) key[n++] = v;
  }
  return key;
}

// The arrays that libraries take. Two spatial axes where the first of three is not used.
struct Arrays {
  using Dims = std::array<int, kMostDims>;
  int axes = 3;
  Dims x = {}, y = {}, w = {}, bias = {}, flat_y = {};  // flat_y: two spatial axes, to which bias is added
  std::array<int, kSpatialAxes> pad = {}, stride = {}, dilation = {};

  explicit Arrays(const ConvolutionProblem& p) {
    const bool three = p.in[0] != 1 || p.out[0] != 1 || p.kernel[0] != 1;
    axes = three ? 3 : 2;
    const int x_channels = to_i31(p.x_channels()), y_channels = to_i31(p.y_channels());
    x[0] = y[0] = flat_y[0] = to_i31(p.N);
    x[1] = x_channels;
    y[1] = flat_y[1] = y_channels;
    // The convolution whose gradient a transposed one is goes from y's channels to x's.
    w[0] = p.transposed ? x_channels : y_channels;
    w[1] = to_i31(p.transposed ? p.M : p.C);
    for (size_t i = 0; i < static_cast<size_t>(axes); ++i) {
      const size_t d = three ? i : i + 1;
      x[2 + i] = to_i31(p.in[d]);
      y[2 + i] = to_i31(p.out[d]);
      w[2 + i] = to_i31(p.kernel[d]);
      pad[i] = to_i31(p.pad[d]);
      stride[i] = to_i31(p.stride[d]);
      dilation[i] = to_i31(p.dilation[d]);
    }
    flat_y[2] = to_i31(p.out[0] * p.out[1]);
    flat_y[3] = to_i31(p.out[2]);
    bias = {1, y_channels, 1, 1};
  }

  int dims() const { return 2 + axes; }
  // The strides of a contiguous tensor [N, C, ..], whose channels may lie last.
  static Dims strides(const Dims& shape, int dims, bool channels_last) {
    Dims result = {};
    int64_t elements = 1;
    const auto add = [&](size_t d) {
      result[d] = to_i31(elements);
      elements *= shape[d];
    };
    if (channels_last) add(1);
    for (auto d = static_cast<size_t>(dims); d-- > 2;) add(d);
    if (!channels_last) add(1);
    add(0);
    return result;
  }
};

void check(int status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string(what) + " failed, status " + std::to_string(status));
}

// What both libraries make of a problem.
struct Described {
  void *x = nullptr, *w = nullptr, *y = nullptr, *bias = nullptr, *flat_y = nullptr, *conv = nullptr;
  bool transposed = false;
  size_t workspace = 0;
};

// A tensor's descriptor, by functions that both libraries have.
template <class Library>
void describe(const Library& library, int type, const Arrays::Dims& shape, int dims, bool channels_last,
              void*& descriptor) {
  check(library.create_tensor(&descriptor), Library::kCreateTensor);
  check(library.set_tensor(descriptor, type, dims, shape.data(),
                           Arrays::strides(shape, dims, channels_last).data()),
        Library::kSetTensor);
}

// Fills in the descriptors of all tensors but W.
template <class Library>
void describe_tensors(const Library& library, int type, const Arrays& a, bool channels_last, Described& c) {
  describe(library, type, a.x, a.dims(), channels_last, c.x);
  describe(library, type, a.y, a.dims(), channels_last, c.y);
  describe(library, type, a.bias, 4, channels_last, c.bias);
  describe(library, type, a.flat_y, 4, channels_last, c.flat_y);
}

// What the libraries have in common: a handle for each stream, and descriptors and the chosen algorithm for
// each problem. They are kept, since making them costs more than the convolution of a small image.
//
// Where a library reads databases and loads or builds kernels for a problem (kBesideRuns), a thread of its
// own does all of that, one for each stream, and has the stream's handle as long as it does: until it is
// done, what would wait for it runs on kernels of our own.
template <class Library>
class DnnOf final : public Dnn {
 public:
  DnnOf(Device& device, const FoundLibrary& found, Use use)
      : device_(device), library_(found.file.handle, use) {}

  std::optional<size_t> conv_workspace(const ConvolutionProblem& p, bool half, void* stream,
                                       const char*& why) override {
    Stream& of = stream_of(stream);
    const std::unique_lock<StreamLock> lock(of.lock, std::try_to_lock);
    why = kBusy;
    if (!lock.owns_lock()) return std::nullopt;
    const Known& known = convolution_of(of, p, half, stream);
    if (known.ready) return known.convolution->workspace;
    why = known.why.empty() ? kBusy : known.why.c_str();  // what is there once stays
    return std::nullopt;
  }

  bool has_relu() const override { return Library::kHasRelu; }

  bool conv(const ConvolutionProblem& p, bool half, const void* x, const void* w, const void* bias,
            const void* residual, void* y, void* workspace, void* stream) override {
    Stream& of = stream_of(stream);
    const std::unique_lock<StreamLock> lock(of.lock, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    Known& known = convolution_of(of, p, half, stream);
    if (!known.ready) return false;
    try {
      library_.run(of.handle, *known.convolution, x, w, bias, residual, y, workspace);
      return true;
    } catch (const std::exception& e) {  // refused when it is to run: it stays refused
      device_.forget_errors();
      if (device_.is_capturing(stream)) return false;
      refuse(known, p, e.what());
      return false;
    }
  }

  size_t finish_loading() override {
    std::vector<std::shared_ptr<Stream>> all;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [stream, of] : streams_) all.push_back(of);
    }
    size_t loaded = 0;
    for (const auto& of : all) {
      std::unique_lock<StreamLock> lock(of->lock);
      of->idle.wait(lock, [&] { return !of->loading; });
      loaded += std::exchange(of->loaded, 0);
    }
    return loaded;
  }

  void forget(void* stream) noexcept override {
    std::shared_ptr<Stream> gone;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = streams_.find(stream);
      if (found == streams_.end()) return;
      gone = std::move(found->second);
      streams_.erase(found);
    }
    if (gone->loader.joinable()) gone->loader.join();
    for (const auto& [key, known] : gone->convolutions) {
      if (known.convolution) library_.destroy(*known.convolution);
    }
    if (gone->handle != nullptr) library_.destroy(gone->handle);
  }

 private:
  static constexpr const char* kBusy = "it is still loading what it has for this";

  struct Known {
    std::optional<typename Library::Convolution> convolution;
    bool ready = false;
    std::string why;  // it has no algorithm, or has refused it: set once
  };
  struct Wanted {
    Known* known;
    ConvolutionProblem p;
    bool half;
  };
  struct Stream {
    StreamLock lock;  // of all that follows
    void* handle = nullptr;
    std::map<Key, Known> convolutions;
    std::thread loader;
    bool loading = false;
    std::vector<Wanted> wanted;  // of the loader
    size_t loaded = 0;           // since somebody asked
    std::condition_variable_any idle;
  };

  Stream& stream_of(void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& slot = streams_[stream];
    if (slot == nullptr) slot = std::make_shared<Stream>();
    return *slot;
  }

  // The convolution of a stream whose lock is held.
  Known& convolution_of(Stream& of, const ConvolutionProblem& p, bool half, void* stream) {
    const Key key = key_of(p, half);
    const auto found = of.convolutions.find(key);
    if (found != of.convolutions.end()) return found->second;
    Known& known = of.convolutions[key];
    if (Library::kBesideRuns) {
      of.wanted.push_back({&known, p, half});
      start(of, stream);
    } else {
      prepare(of, {&known, p, half}, stream);
    }
    return known;
  }

  void start(Stream& of, void* stream) {
    if (of.loading) return;
    if (of.loader.joinable()) of.loader.join();  // it has done its last work
    of.loading = true;
    of.loader = std::thread([this, &of, stream] {
      const std::lock_guard<StreamLock> lock(of.lock);
      while (!of.wanted.empty()) {
        const Wanted one = std::move(of.wanted.back());
        of.wanted.pop_back();
        prepare(of, one, stream);
        if (one.known->ready) ++of.loaded;
      }
      of.loading = false;
      raise_library_generation();
      of.idle.notify_all();
    });
  }

  void prepare(Stream& of, const Wanted& one, void* stream) {
    try {
      const OnDevice on(device_);
      if (of.handle == nullptr) of.handle = library_.create(stream);
      one.known->convolution = library_.prepare(of.handle, one.p, one.half, device_);
      one.known->ready = one.known->convolution.has_value();
      if (!one.known->ready) refuse(*one.known, one.p, "has no algorithm");
    } catch (const std::exception& e) {
      refuse(*one.known, one.p, e.what());
    }
    device_.forget_errors();
  }

  void refuse(Known& known, const ConvolutionProblem& p, const std::string& why) {
    if (known.convolution) library_.destroy(*known.convolution);
    known.convolution.reset();
    known.ready = false;
    known.why = std::string(Library::kName) + " " + why;
    std::fprintf(
        stderr,
        "graphopt: %s for a convolution of X [%lld,%lld,%lld,%lld,%lld], slower kernels of our own run\n",
        known.why.c_str(), static_cast<long long>(p.N), static_cast<long long>(p.x_channels()),
        static_cast<long long>(p.in[0]), static_cast<long long>(p.in[1]), static_cast<long long>(p.in[2]));
  }

  Device& device_;
  Library library_;
  std::mutex mutex_;
  std::map<void*, std::shared_ptr<Stream>> streams_;
};

struct Cudnn {
  static constexpr const char* kName = "cuDNN";
  static constexpr bool kBesideRuns = false;  // its heuristics read nothing and build nothing
  static constexpr bool kHasRelu = true;
  static constexpr const char* kCreateTensor = "cudnnCreateTensorDescriptor";
  static constexpr const char* kSetTensor = "cudnnSetTensorNdDescriptor";
  struct Convolution : Described {
    void* relu = nullptr;
    int algorithm = 0;
  };
  // cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionBwdDataAlgoPerf_t
  struct Performance {
    int algorithm, status;
    float milliseconds;
    size_t workspace;
    int deterministic, math, reserved[3];
  };
  using Find = int(void*, void*, void*, void*, void*, int, int*, Performance*);
  using Run = int(void*, const void*, void*, const void*, void*, const void*, void*, int, void*, size_t,
                  const void*, void*, void*);

  int (*create_)(void**);
  int (*destroy_)(void*);
  int (*set_stream)(void*, void*);
  int (*create_tensor)(void**);
  int (*set_tensor)(void*, int, int, const int*, const int*);
  int (*destroy_tensor)(void*);
  int (*create_filter)(void**);
  int (*set_filter)(void*, int, int, int, const int*);
  int (*destroy_filter)(void*);
  int (*create_conv)(void**);
  int (*set_conv)(void*, int, const int*, const int*, const int*, int, int);
  int (*set_groups)(void*, int);
  int (*set_math)(void*, int);
  int (*destroy_conv)(void*);
  Find* find;  // x, w, conv, y
  Run* forward;
  Find* find_backward;  // w, dy, conv, dx
  Run* backward;
  int (*add)(void*, const void*, void*, const void*, const void*, void*, void*);
  int (*create_activation)(void**);
  int (*set_activation)(void*, int, int, double);
  int (*destroy_activation)(void*);
  int (*forward_with_relu)(void*, const void*, void*, const void*, void*, const void*, void*, int, void*,
                           size_t, const void*, void*, const void*, void*, const void*, void*, void*, void*);

  Cudnn(void* library, Use) {
    resolve(library, "cudnnCreate", create_);
    resolve(library, "cudnnDestroy", destroy_);
    resolve(library, "cudnnSetStream", set_stream);
    resolve(library, "cudnnCreateTensorDescriptor", create_tensor);
    resolve(library, "cudnnSetTensorNdDescriptor", set_tensor);
    resolve(library, "cudnnDestroyTensorDescriptor", destroy_tensor);
    resolve(library, "cudnnCreateFilterDescriptor", create_filter);
    resolve(library, "cudnnSetFilterNdDescriptor", set_filter);
    resolve(library, "cudnnDestroyFilterDescriptor", destroy_filter);
    resolve(library, "cudnnCreateConvolutionDescriptor", create_conv);
    resolve(library, "cudnnSetConvolutionNdDescriptor", set_conv);
    resolve(library, "cudnnSetConvolutionGroupCount", set_groups);
    resolve(library, "cudnnSetConvolutionMathType", set_math);
    resolve(library, "cudnnDestroyConvolutionDescriptor", destroy_conv);
    resolve(library, "cudnnGetConvolutionForwardAlgorithm_v7", find);
    resolve(library, "cudnnConvolutionForward", forward);
    resolve(library, "cudnnGetConvolutionBackwardDataAlgorithm_v7", find_backward);
    resolve(library, "cudnnConvolutionBackwardData", backward);
    resolve(library, "cudnnAddTensor", add);
    resolve(library, "cudnnCreateActivationDescriptor", create_activation);
    resolve(library, "cudnnSetActivationDescriptor", set_activation);
    resolve(library, "cudnnDestroyActivationDescriptor", destroy_activation);
    resolve(library, "cudnnConvolutionBiasActivationForward", forward_with_relu);
  }

  void* create(void* stream) const {
    void* handle = nullptr;
    check(create_(&handle), "cudnnCreate");
    check(set_stream(handle, stream), "cudnnSetStream");
    return handle;
  }
  void destroy(void* handle) const noexcept { destroy_(handle); }

  std::optional<Convolution> prepare(void* handle, const ConvolutionProblem& p, bool half, Device&) const {
    constexpr int kNchw = 0, kNhwc = 1, kFloat = 0, kHalf = 2, kCrossCorrelation = 1, kTensorOps = 1,
                  kFma = 3, kMost = 8;
    const int type = half ? kHalf : kFloat;
    const Arrays a(p);
    Convolution c;
    c.transposed = p.transposed;
    describe_tensors(*this, type, a, p.channels_last, c);
    check(create_filter(&c.w), "cudnnCreateFilterDescriptor");
    check(set_filter(c.w, type, p.channels_last ? kNhwc : kNchw, a.dims(), a.w.data()),
          "cudnnSetFilterNdDescriptor");
    check(create_conv(&c.conv), "cudnnCreateConvolutionDescriptor");
    check(
        set_conv(c.conv, a.axes, a.pad.data(), a.stride.data(), a.dilation.data(), kCrossCorrelation, kFloat),
        "cudnnSetConvolutionNdDescriptor");
    check(set_groups(c.conv, to_i31(p.groups)), "cudnnSetConvolutionGroupCount");
    check(set_math(c.conv, half ? kTensorOps : kFma), "cudnnSetConvolutionMathType");
    if (has_relu(p)) {
      constexpr int kRelu = 1, kPropagateNan = 1;
      check(create_activation(&c.relu), "cudnnCreateActivationDescriptor");
      check(set_activation(c.relu, kRelu, kPropagateNan, 0.0), "cudnnSetActivationDescriptor");
    }
    Performance found[kMost] = {};
    int count = 0;
    const int status = p.transposed ? find_backward(handle, c.w, c.x, c.conv, c.y, kMost, &count, found)
                                    : find(handle, c.x, c.w, c.conv, c.y, kMost, &count, found);
    for (int i = 0; i < count && status == 0; ++i) {
      // Gradients may come from an algorithm that adds in any order.
      if (found[i].status != 0 || (p.transposed && found[i].deterministic == 0)) continue;
      // A faster algorithm for Tensor cores comes with its own kind of arithmetic.
      check(set_math(c.conv, half ? found[i].math : kFma), "cudnnSetConvolutionMathType");
      c.algorithm = found[i].algorithm;
      c.workspace = found[i].workspace;
      return c;
    }
    destroy(c);
    return std::nullopt;
  }

  void destroy(const Convolution& c) const noexcept {
    for (void* tensor : {c.x, c.y, c.bias, c.flat_y}) destroy_tensor(tensor);
    destroy_filter(c.w);
    destroy_conv(c.conv);
    if (c.relu != nullptr) destroy_activation(c.relu);
  }

  void run(void* handle, const Convolution& c, const void* x, const void* w, const void* bias,
           const void* residual, void* y, void* workspace) const {
    const float one = 1, zero = 0;
    if (c.relu != nullptr) {
      check(forward_with_relu(handle, &one, c.x, x, c.w, w, c.conv, c.algorithm, workspace, c.workspace,
                              residual != nullptr ? &one : &zero, c.y, residual != nullptr ? residual : y,
                              c.bias, bias, c.relu, c.y, y),
            "cudnnConvolutionBiasActivationForward");
      return;
    }
    if (c.transposed) {
      check(
          backward(handle, &one, c.w, w, c.x, x, c.conv, c.algorithm, workspace, c.workspace, &zero, c.y, y),
          "cudnnConvolutionBackwardData");
    } else {
      check(forward(handle, &one, c.x, x, c.w, w, c.conv, c.algorithm, workspace, c.workspace, &zero, c.y, y),
            "cudnnConvolutionForward");
    }
    if (bias != nullptr) check(add(handle, &one, c.bias, bias, &one, c.flat_y, y), "cudnnAddTensor");
  }
};

struct Miopen {
  static constexpr const char* kName = "MIOpen";
  static constexpr bool kBesideRuns = true;
  static constexpr bool kHasRelu = false;
  static constexpr const char* kCreateTensor = "miopenCreateTensorDescriptor";
  static constexpr const char* kSetTensor = "miopenSetTensorDescriptor";
  struct Convolution : Described {
    uint64_t solution = 0;
  };
  // miopenConvSolution_t
  struct Solution {
    float milliseconds;
    size_t workspace;
    uint64_t id;
    int algorithm;
  };
  using Find = int(void*, void*, void*, void*, void*, size_t, size_t*, Solution*);
  using Compile = int(void*, void*, void*, void*, void*, uint64_t);
  using Run = int(void*, void*, const void*, void*, const void*, void*, void*, void*, void*, size_t,
                  uint64_t);

  int (*create_)(void**, void*);
  int (*destroy_)(void*);
  int (*create_tensor)(void**);
  int (*set_tensor)(void*, int, int, const int*, const int*);
  int (*destroy_tensor)(void*);
  int (*create_conv)(void**);
  int (*set_conv)(void*, int, const int*, const int*, const int*, int);
  int (*set_groups)(void*, int);
  int (*set_attribute)(void*, int, int);
  int (*destroy_conv)(void*);
  Find* find;  // w, x, conv, y
  Compile* compile;
  Run* forward;
  Find* find_backward;  // dy, w, conv, dx
  Compile* compile_backward;
  Run* backward;
  int (*add)(void*, const void*, void*, const void*, const void*, void*, void*);
  // miopenConvAlgoPerf_t
  struct Performance {
    int algorithm;
    float milliseconds;
    size_t workspace;
  };
  using WorkspaceSize = int(void*, void*, void*, void*, void*, size_t*);
  using Measure = int(void*, void*, const void*, void*, const void*, void*, void*, void*, int, int*,
                      Performance*, void*, size_t, bool);
  WorkspaceSize* workspace_size;           // w, x, conv, y
  WorkspaceSize* workspace_size_backward;  // dy, w, conv, dx
  Measure* measure;                        // x, w, conv, y
  Measure* measure_backward;               // dy, w, conv, dx
  bool measures_;

  Miopen(void* library, Use use) : measures_(use == Use::kFind) {
    resolve(library, "miopenSetConvolutionAttribute", set_attribute);
    resolve(library, "miopenCreateWithStream", create_);
    resolve(library, "miopenDestroy", destroy_);
    resolve(library, "miopenCreateTensorDescriptor", create_tensor);
    resolve(library, "miopenSetTensorDescriptor", set_tensor);
    resolve(library, "miopenDestroyTensorDescriptor", destroy_tensor);
    resolve(library, "miopenCreateConvolutionDescriptor", create_conv);
    resolve(library, "miopenInitConvolutionNdDescriptor", set_conv);
    resolve(library, "miopenSetConvolutionGroupCount", set_groups);
    resolve(library, "miopenDestroyConvolutionDescriptor", destroy_conv);
    resolve(library, "miopenConvolutionForwardGetSolution", find);
    resolve(library, "miopenConvolutionForwardCompileSolution", compile);
    resolve(library, "miopenConvolutionForwardImmediate", forward);
    resolve(library, "miopenConvolutionBackwardDataGetSolution", find_backward);
    resolve(library, "miopenConvolutionBackwardDataCompileSolution", compile_backward);
    resolve(library, "miopenConvolutionBackwardDataImmediate", backward);
    resolve(library, "miopenConvolutionForwardBias", add);
    resolve(library, "miopenConvolutionForwardGetWorkSpaceSize", workspace_size);
    resolve(library, "miopenConvolutionBackwardDataGetWorkSpaceSize", workspace_size_backward);
    resolve(library, "miopenFindConvolutionForwardAlgorithm", measure);
    resolve(library, "miopenFindConvolutionBackwardDataAlgorithm", measure_backward);
  }

  void* create(void* stream) const {
    void* handle = nullptr;
    check(create_(&handle, stream), "miopenCreateWithStream");
    return handle;
  }
  void destroy(void* handle) const noexcept { destroy_(handle); }

  // Reads MIOpen's databases, and builds the kernel where none of them has it.
  std::optional<Convolution> prepare(void* handle, const ConvolutionProblem& p, bool half,
                                     Device& device) const {
    constexpr int kHalf = 0, kFloat = 1, kConvolution = 0;
    const int type = half ? kHalf : kFloat;
    const Arrays a(p);
    Convolution c;
    c.transposed = p.transposed;
    describe_tensors(*this, type, a, p.channels_last, c);
    describe(*this, type, a.w, a.dims(), p.channels_last, c.w);
    check(create_conv(&c.conv), "miopenCreateConvolutionDescriptor");
    check(set_conv(c.conv, a.axes, a.pad.data(), a.stride.data(), a.dilation.data(), kConvolution),
          "miopenInitConvolutionNdDescriptor");
    check(set_groups(c.conv, to_i31(p.groups)), "miopenSetConvolutionGroupCount");
    // float16 in bfloat16's precision is what gfx90a takes for some of these otherwise; algorithms that add
    // in another order each time are the default.
    constexpr int kFp16AlternativeAttribute = 0, kDeterministicAttribute = 1;
    check(set_attribute(c.conv, kFp16AlternativeAttribute, 0), "miopenSetConvolutionAttribute");
    check(set_attribute(c.conv, kDeterministicAttribute, 1), "miopenSetConvolutionAttribute");
    // What is measured is in its database of the user from then on, and the best of it comes first.
    if (measures_) measure_all(c, a, half ? 2 : 4, device);
    Solution best = {};
    size_t count = 0;
    const int status = p.transposed ? find_backward(handle, c.x, c.w, c.conv, c.y, 1, &count, &best)
                                    : find(handle, c.w, c.x, c.conv, c.y, 1, &count, &best);
    if (status != 0 || count == 0) {
      destroy(c);
      return std::nullopt;
    }
    c.solution = best.id;
    c.workspace = best.workspace;
    const int built = c.transposed ? compile_backward(handle, c.x, c.w, c.conv, c.y, c.solution)
                                   : compile(handle, c.w, c.x, c.conv, c.y, c.solution);
    if (built != 0) {
      destroy(c);
      check(built, "CompileSolution");
    }
    return c;
  }

  // Builds and runs every algorithm of the library's, on memory and a stream of its own: that of the session
  // may be recorded. That none runs shows when the best is asked for.
  void measure_all(const Convolution& c, const Arrays& a, size_t element, Device& device) const {
    const auto bytes = [&](const Arrays::Dims& shape) {
      size_t size = element;
      for (int d = 0; d < a.dims(); ++d) size *= static_cast<size_t>(shape[static_cast<size_t>(d)]);
      return (size + 255) / 256 * 256;
    };
    const size_t x = bytes(a.x), w = bytes(a.w), y = bytes(a.y);
    void* stream = device.create_stream();
    void *handle = nullptr, *memory = nullptr;
    size_t workspace = 0;
    try {
      handle = create(stream);
      check(c.transposed ? workspace_size_backward(handle, c.x, c.w, c.conv, c.y, &workspace)
                         : workspace_size(handle, c.w, c.x, c.conv, c.y, &workspace),
            "GetWorkSpaceSize");
      memory = device.allocate(x + w + y + workspace);
      char* at = static_cast<char*>(memory);
      Performance found = {};
      int count = 0;
      (c.transposed ? measure_backward : measure)(handle, c.x, at, c.w, at + x, c.conv, c.y, at + x + w, 1,
                                                  &count, &found, at + x + w + y, workspace, false);
      device.synchronize(stream);
    } catch (const std::exception&) {  // no memory for it: the library's own order has to do
      device.forget_errors();
    }
    if (memory != nullptr) device.free(memory);
    if (handle != nullptr) destroy(handle);
    device.destroy_stream(stream);
  }

  void destroy(const Convolution& c) const noexcept {
    for (void* tensor : {c.x, c.y, c.bias, c.flat_y, c.w}) destroy_tensor(tensor);
    destroy_conv(c.conv);
  }

  void run(void* handle, const Convolution& c, const void* x, const void* w, const void* bias, const void*,
           void* y, void* workspace) const {
    const float one = 1, zero = 0;
    if (c.transposed) {
      check(backward(handle, c.x, x, c.w, w, c.conv, c.y, y, workspace, c.workspace, c.solution),
            "miopenConvolutionBackwardDataImmediate");
    } else {
      check(forward(handle, c.w, w, c.x, x, c.conv, c.y, y, workspace, c.workspace, c.solution),
            "miopenConvolutionForwardImmediate");
    }
    if (bias != nullptr)
      check(add(handle, &one, c.bias, bias, &zero, c.flat_y, y), "miopenConvolutionForwardBias");
  }
};

// MIOpen's packages of kernels that are built already: miopen-hip-gfx942kdb and others; none for most of
// RDNA. A file is for a count of processors as the runtime gives it, in hexadecimal above 64, or for all of
// an architecture (MIOpen's src/binary_cache.cpp, GetDb; include/miopen/handle.hpp, GetDbBasename), and
// devices with XNACK have files of their own (target_properties.cpp, InitDbId).
bool has_kernel_database(const std::string& library, const DeviceFacts& device) {
  const char* given = std::getenv("MIOPEN_SYSTEM_DB_PATH");  // empty: not given (src/db_path.cpp.in)
  const std::string folder = given != nullptr && *given != '\0'
                                 ? std::string(given)
                                 : folder_of(folder_of(library)) + "/share/miopen/db";
  const bool xnack = device.features.find(":xnack+") != std::string::npos;
  const std::string all = folder + "/" + device.arch + (xnack ? "_xnack" : "");
  const auto processors = static_cast<unsigned>(device.multiprocessors);
  char count[16];
  if (processors <= 64) {
    std::snprintf(count, sizeof count, "_%u", processors);
  } else {
    std::snprintf(count, sizeof count, "%x", processors);
  }
  return access((all + count + ".kdb").c_str(), F_OK) == 0 || access((all + ".kdb").c_str(), F_OK) == 0;
}

}  // namespace

FoundLibrary find_cudnn(const DeviceFacts&, Use use) {
  return find_vendor_library("cuDNN", use, {"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"});
}

// By default only where no kernel has to be built.
FoundLibrary find_miopen(const DeviceFacts& device, Use use) {
  FoundLibrary found = find_vendor_library("MIOpen", use, {"libMIOpen.so.1", "libMIOpen.so"});
  if (found.problem.code.empty() && use < Use::kBuild && !has_kernel_database(found.file.path, device)) {
    found.problem = {"no_kernels", "MIOpen would have to build its kernels for " + device.arch +
                                       " (no package of them for its " +
                                       std::to_string(device.multiprocessors) +
                                       " processors is installed); GRAPHOPT_LIBRARIES=miopen=build lets "
                                       "it, beside the session's runs"};
  }
  return found;
}

std::unique_ptr<Dnn> open_cudnn(Device& device, const FoundLibrary& found, Use use) {
  return std::make_unique<DnnOf<Cudnn>>(device, found, use);
}
std::unique_ptr<Dnn> open_miopen(Device& device, const FoundLibrary& found, Use use) {
  return std::make_unique<DnnOf<Miopen>>(device, found, use);
}

}  // namespace graphopt::gpu
