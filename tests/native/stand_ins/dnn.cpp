// cuDNN or MIOpen over host memory: the functions that device/libraries/cudnn.cpp and miopen.cpp call, with
// the types and constants of the library's header. cuDNN lists Fourier transforms first; these do
// not pay for the tests' convolutions, and the stand-in cannot compute them. Values of STAND_IN_DNN: with
// "none" the library has no algorithm for a convolution, or, every second time, rejects its number of groups.
// For MIOpen also: with "fails" no kernel can be built; with "refuses" built kernels do not run; with "builds"
// building a kernel ends when a test calls `stand_in_let_builds_end`.
//
// As MIOpen does (github.com/ROCm/MIOpen at 2d1fd997a):
//   an unloaded kernel is built on request, or else when it is first run
//                        src/hip/handlehip.cpp:563-600
//   a query for solutions waits until databases are read
//                        src/find_db.hpp:83-110, src/ocl/convolutionocl.cpp:682-790
//   without a database entry, solutions are ordered by a fixed index; an entry is made by running all of them
//                        src/ocl/convolutionocl.cpp:580-680, 229-330
//   prebuilt kernels exist only for the architectures of its packages
//                        src/binary_cache.cpp:133-137, CMakeLists.txt:655
//   on gfx90a the gradient of a float16 convolution's input is computed in bfloat16 unless that is disabled
//                        include/miopen/miopen.h:630-633
//   its kernels are launched by hipExtModuleLaunchKernel. Up to ROCm 7.0.1 a graph contains only the whole
//   work-groups of such a launch: the rest of the grid is skipped
//                        clr issue 179
//   after a measurement each call queries whether the stream has work, which ends a capture
//                        rocm-libraries issue 12121
//   the order of summation may differ from call to call unless that is disabled
//                        include/miopen/miopen.h:634-636
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "blocks/half.h"
#include "recording.h"
#ifdef STAND_IN_HIP
#include "rocm.h"
#include "waiting.h"
#endif

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

#ifdef STAND_IN_HIP
constexpr int kHalf = 0, kFloat = 1;
#else
constexpr int kFloat = 0, kHalf = 2;
#endif
constexpr int kBadParameter = 3, kUnknownError = 7;
constexpr size_t kWorkspace = 512;
int convolutions = 0, alive = 0;
#ifdef STAND_IN_HIP
constexpr int kLaunchesWhole = 70100000;  // the version does not distinguish 7.0.1 from 7.0.2
std::atomic<bool> polls{false};

bool is_captured(void* stream) {
  int state = 0;
  return stream != nullptr && hipStreamIsCapturing(stream, &state) == 0 && state == 1;
}
#endif

struct Tensor {
  int type = -1, rank = 0;
  int dims[5] = {1, 1, 1, 1, 1};
  bool last = false;  // channels-last layout

  // Size of axis d of three; the leading axis may be missing.
  int axis(int d) const { return d + 2 - (5 - rank) < 2 ? 1 : dims[d + 2 - (5 - rank)]; }
  size_t plane() const { return static_cast<size_t>(axis(0)) * axis(1) * axis(2); }
  size_t elements() const { return plane() * dims[0] * dims[1]; }
  // Returns the memory index of element i of [N, C, ..].
  size_t place(size_t i) const {
    const size_t image = i / plane() / dims[1], channel = i / plane() % dims[1];
    return last ? (image * plane() + i % plane()) * dims[1] + channel : i;
  }
  float read(const void* data, size_t i) const {
    i = place(i);
    return type == kFloat ? static_cast<const float*>(data)[i]
                          : static_cast<float>(static_cast<const graphopt::half*>(data)[i]);
  }
  void write(void* data, size_t i, double value) const {
    i = place(i);
    if (type == kFloat) {
      static_cast<float*>(data)[i] = static_cast<float>(value);
    } else {
      static_cast<graphopt::half*>(data)[i] = static_cast<float>(value);
    }
  }
};

struct Window {
  int axes = 0, groups = 1;
  bool bfloat16 = true, deterministic = false;
  int pad[3] = {0, 0, 0}, stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1};
};

template <class T>
int create(void** out) {
  ++alive;
  return *out = new T, 0;
}
template <class T>
int destroy(void* p) {
  --alive;
  return delete static_cast<T*>(p), 0;
}

int set_tensor(void* descriptor, int type, int rank, const int* dims, const int* strides) {
  if ((type != kFloat && type != kHalf) || (rank != 4 && rank != 5)) return kBadParameter;
  Tensor& t = *static_cast<Tensor*>(descriptor);
  t.type = type;
  t.rank = rank;
  std::copy(dims, dims + rank, t.dims);
  if (strides == nullptr) return 0;
  // Only contiguous tensors in channels-first or channels-last layout.
  t.last = strides[1] == 1 && strides[rank - 1] == dims[1] && dims[1] != 1;
  int64_t apart = 1;
  const auto is_next = [&](int d) {
    const bool fits = strides[d] == apart || dims[d] == 1;
    apart *= dims[d];
    return fits;
  };
  bool contiguous = !t.last || is_next(1);
  for (int d = rank; d-- > 2;) contiguous = contiguous && is_next(d);
  contiguous = contiguous && (t.last || is_next(1)) && is_next(0);
  return contiguous ? 0 : kBadParameter;
}

int set_window(void* descriptor, int axes, const int* pad, const int* stride, const int* dilation) {
  if (axes != 2 && axes != 3) return kBadParameter;
  Window& w = *static_cast<Window*>(descriptor);
  w.axes = axes;
  std::copy(pad, pad + axes, w.pad + 3 - axes);
  std::copy(stride, stride + axes, w.stride + 3 - axes);
  std::copy(dilation, dilation + axes, w.dilation + 3 - axes);
  return 0;
}

bool fits(const Tensor& x, const Tensor& w, const Window& window, const Tensor& y) {
  if (x.rank != window.axes + 2 || w.rank != x.rank || y.rank != x.rank || x.dims[0] != y.dims[0])
    return false;
  if (x.dims[1] != window.groups * w.dims[1] || y.dims[1] != w.dims[0] || w.dims[0] % window.groups != 0)
    return false;
  for (int d = 0; d < 3; ++d) {
    const int free = x.axis(d) + 2 * window.pad[d] - ((w.axis(d) - 1) * window.dilation[d] + 1);
    if (free < 0 || free / window.stride[d] + 1 != y.axis(d)) return false;
  }
  return true;
}

// Calls visit(index in x, in w, in y) for each product of the convolution from x to y.
template <class Visit>
void walk(const Tensor& x, const Tensor& w, const Window& window, const Tensor& y, const Visit& visit) {
  const int M = w.dims[0] / window.groups, C = w.dims[1];
  for (int n = 0; n < y.dims[0]; ++n) {
    for (int m = 0; m < y.dims[1]; ++m) {
      for (int c = 0; c < C; ++c) {
        const size_t x_plane = (static_cast<size_t>(n) * x.dims[1] + m / M * C + c) * x.plane(),
                     y_plane = (static_cast<size_t>(n) * y.dims[1] + m) * y.plane();
        for (size_t q = 0; q < y.plane(); ++q) {
          for (size_t t = 0; t < w.plane(); ++t) {
            size_t out = q, tap = t, in = 0, size = 1;
            bool inside = true;
            for (int d = 2; d >= 0; --d) {
              const int at = static_cast<int>(out % y.axis(d)) * window.stride[d] - window.pad[d] +
                             static_cast<int>(tap % w.axis(d)) * window.dilation[d];
              inside = inside && at >= 0 && at < x.axis(d);
              in += size * static_cast<size_t>(inside ? at : 0);
              size *= static_cast<size_t>(x.axis(d));
              out /= y.axis(d);
              tap /= w.axis(d);
            }
            if (inside) visit(x_plane + in, (static_cast<size_t>(m) * C + c) * w.plane() + t, y_plane + q);
          }
        }
      }
    }
  }
}

[[maybe_unused]] double bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x8000) & 0xffff0000;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// A handle belongs to a stream.
struct Handle {
  void* stream = nullptr;
};
void* stream_of(void* handle) { return static_cast<Handle*>(handle)->stream; }

// Computes y from x and w, or, if backward, x from y and w.
int run(void* handle, void* xd, const void* x, void* wd, const void* w, void* window, void* yd, const void* y,
        void* result, bool backward, const void* workspace, size_t workspace_bytes) {
  const Tensor from = *static_cast<Tensor*>(xd), filters = *static_cast<Tensor*>(wd),
               to = *static_cast<Tensor*>(yd);
  const Window how = *static_cast<Window*>(window);
  if (!fits(from, filters, how, to) || workspace == nullptr || workspace_bytes != kWorkspace)
    return kBadParameter;
#ifdef STAND_IN_HIP
  const bool rounds = backward && how.bfloat16 && to.type == kHalf && current_arch() == "gfx90a";
#else
  const bool rounds = false;
#endif
#ifdef STAND_IN_HIP
  if (polls && hipStreamQuery(stream_of(handle)) != 0) return kUnknownError;
  const bool drops = is_captured(stream_of(handle)) && runtime_version() < kLaunchesWhole;
#else
  const bool drops = false;
#endif
  return stand_in::enqueue(stream_of(handle), "a convolution", {x, w, y, result, workspace}, [=] {
#ifdef STAND_IN_HIP
    const double noise = how.deterministic ? 1 : 1 + 1e-4 * (convolutions + 1);
#else
    const double noise = 1;
#endif
    ++convolutions;
    const Tensor& made = backward ? from : to;
    std::vector<double> sums(made.elements());
    walk(from, filters, how, to, [&](size_t i, size_t k, size_t o) {
      const double weight = filters.read(w, k);
      if (rounds) {
        sums[i] += bfloat16(filters.read(w, k)) * bfloat16(to.read(y, o));
      } else if (backward) {
        sums[i] += noise * weight * to.read(y, o);
      } else {
        sums[o] += noise * weight * from.read(x, i);
      }
    });
    const size_t done = drops ? sums.size() - sums.size() / 4 : sums.size();
    for (size_t i = 0; i < done; ++i) made.write(result, i, sums[i]);
    return 0;
  });
}

int add_bias(void* handle, void* bd, const void* b, void* yd, void* y) {
  const Tensor bias = *static_cast<Tensor*>(bd), to = *static_cast<Tensor*>(yd);
  if (bias.rank != to.rank || bias.dims[1] != to.dims[1] ||
      bias.elements() != static_cast<size_t>(to.dims[1]))
    return kBadParameter;
  return stand_in::enqueue(stream_of(handle), "a bias", {b, y}, [=] {
    for (size_t i = 0; i < to.elements(); ++i) {
      to.write(y, i, to.read(y, i) + bias.read(b, i / to.plane() % static_cast<size_t>(to.dims[1])));
    }
    return 0;
  });
}

bool is_mode(const char* what) {
  const char* mode = std::getenv("STAND_IN_DNN");
  return mode != nullptr && std::string(mode) == what;
}

int set_groups(void* window, int groups) {
  static int calls = 0;
  if (is_mode("none") && ++calls % 2 == 0) return kBadParameter;
  return static_cast<Window*>(window)->groups = groups, 0;
}

bool has_algorithm(void* x, void* w, void* window, void* y) {
  return !is_mode("none") && fits(*static_cast<Tensor*>(x), *static_cast<Tensor*>(w),
                                  *static_cast<Window*>(window), *static_cast<Tensor*>(y));
}

}  // namespace

STAND_IN_EXPORT int stand_in_convolutions() { return convolutions; }
STAND_IN_EXPORT int stand_in_dnn_alive() { return alive; }

#ifdef STAND_IN_HIP

struct Solution {  // miopenConvSolution_t
  float milliseconds;
  size_t workspace;
  uint64_t id;
  int algorithm;
};
struct Performance {  // miopenConvAlgoPerf_t
  int algorithm;
  float milliseconds;
  size_t workspace;
};
// A slow solution has the lowest index.
constexpr uint64_t kForward = 7, kBackward = 8, kSlow = 100;

// Loaded kernels, by handle and descriptor, and measured convolutions.
std::mutex mutex;
std::set<std::pair<void*, void*>> loaded;
std::set<void*> measured;
int slow = 0;
bool builds_end = false;
std::condition_variable builds_may_end;

int build(void* handle, void* window) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!loaded.emplace(handle, window).second) return 0;
  }
  stand_in::waiting().count();
  if (is_mode("builds")) {  // during a run nothing lets builds end, so this waits for one minute
    std::unique_lock<std::mutex> lock(mutex);
    builds_may_end.wait_for(lock, std::chrono::minutes(1), [] { return builds_end; });
  }
  return is_mode("fails") ? kUnknownError : 0;
}

int solutions(void* window, bool has, uint64_t id, size_t most, size_t* count, Solution* found) {
  stand_in::waiting().count();
  const std::lock_guard<std::mutex> lock(mutex);
  *count = most > 0 && has ? 1 : 0;
  if (*count > 0) *found = {0.1f, kWorkspace, measured.count(window) > 0 ? id : id + kSlow, 0};
  return 0;
}

int ran(int status, uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (status == 0 && id > kSlow) ++slow;
  return status;
}

// Runs every algorithm; the results are discarded.
int measure(void* handle, void* window, int status, int most, int* count, Performance* found) {
  build(handle, window);
  polls = true;
  const std::lock_guard<std::mutex> lock(mutex);
  if (status == 0) {
    measured.insert(window);
    --convolutions;
  }
  *count = status == 0 && most > 0 ? 1 : 0;
  if (*count > 0) *found = {0, 0.1f, kWorkspace};
  return status;
}

STAND_IN_EXPORT void stand_in_let_builds_end() {
  const std::lock_guard<std::mutex> lock(mutex);
  builds_end = true;
  builds_may_end.notify_all();
}
// Number of convolutions by unmeasured algorithms.
STAND_IN_EXPORT int stand_in_slow_convolutions() {
  const std::lock_guard<std::mutex> lock(mutex);
  return slow;
}
STAND_IN_EXPORT int miopenSetConvolutionAttribute(void* window, int attribute, int value) {
  if (attribute == 0) static_cast<Window*>(window)->bfloat16 = value != 0;
  if (attribute == 1) static_cast<Window*>(window)->deterministic = value == 1;
  return attribute == 0 || attribute == 1 ? 0 : kBadParameter;
}

STAND_IN_EXPORT int miopenCreateWithStream(void** handle, void* stream) {
  create<Handle>(handle);
  return static_cast<Handle*>(*handle)->stream = stream, 0;
}
STAND_IN_EXPORT int miopenDestroy(void* handle) { return destroy<Handle>(handle); }
STAND_IN_EXPORT int miopenCreateTensorDescriptor(void** t) { return create<Tensor>(t); }
STAND_IN_EXPORT int miopenSetTensorDescriptor(void* t, int type, int rank, const int* dims,
                                              const int* strides) {
  return set_tensor(t, type, rank, dims, strides);
}
STAND_IN_EXPORT int miopenDestroyTensorDescriptor(void* t) { return destroy<Tensor>(t); }
STAND_IN_EXPORT int miopenCreateConvolutionDescriptor(void** c) { return create<Window>(c); }
STAND_IN_EXPORT int miopenInitConvolutionNdDescriptor(void* c, int axes, const int* pad, const int* stride,
                                                      const int* dilation, int mode) {
  return mode == 0 ? set_window(c, axes, pad, stride, dilation) : kBadParameter;
}
STAND_IN_EXPORT int miopenSetConvolutionGroupCount(void* c, int groups) { return set_groups(c, groups); }
STAND_IN_EXPORT int miopenDestroyConvolutionDescriptor(void* c) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto one = loaded.begin(); one != loaded.end();)
    one = one->second == c ? loaded.erase(one) : std::next(one);
  measured.erase(c);
  return destroy<Window>(c);
}
STAND_IN_EXPORT int miopenConvolutionForwardGetWorkSpaceSize(void*, void*, void*, void*, void*,
                                                             size_t* bytes) {
  return *bytes = kWorkspace, 0;
}
STAND_IN_EXPORT int miopenConvolutionBackwardDataGetWorkSpaceSize(void*, void*, void*, void*, void*,
                                                                  size_t* bytes) {
  return *bytes = kWorkspace, 0;
}
STAND_IN_EXPORT int miopenFindConvolutionForwardAlgorithm(void* handle, void* xd, const void* x, void* wd,
                                                          const void* w, void* c, void* yd, void* y, int most,
                                                          int* count, Performance* found, void* workspace,
                                                          size_t bytes, bool) {
  const int status = run(handle, xd, x, wd, w, c, yd, nullptr, y, false, workspace, bytes);
  return measure(handle, c, status, most, count, found);
}
STAND_IN_EXPORT int miopenFindConvolutionBackwardDataAlgorithm(void* handle, void* dyd, const void* dy,
                                                               void* wd, const void* w, void* c, void* dxd,
                                                               void* dx, int most, int* count,
                                                               Performance* found, void* workspace,
                                                               size_t bytes, bool) {
  const int status = run(handle, dxd, nullptr, wd, w, c, dyd, dy, dx, true, workspace, bytes);
  return measure(handle, c, status, most, count, found);
}
STAND_IN_EXPORT int miopenConvolutionForwardGetSolution(void*, void* w, void* x, void* c, void* y,
                                                        size_t most, size_t* count, Solution* found) {
  return solutions(c, has_algorithm(x, w, c, y), kForward, most, count, found);
}
STAND_IN_EXPORT int miopenConvolutionForwardCompileSolution(void* handle, void*, void*, void* c, void*,
                                                            uint64_t id) {
  return id % kSlow == kForward ? build(handle, c) : kBadParameter;
}
STAND_IN_EXPORT int miopenConvolutionForwardImmediate(void* handle, void* wd, const void* w, void* xd,
                                                      const void* x, void* c, void* yd, void* y,
                                                      void* workspace, size_t bytes, uint64_t id) {
  if (build(handle, c) != 0 || is_mode("refuses")) return kUnknownError;
  if (id % kSlow != kForward) return kBadParameter;
  return ran(run(handle, xd, x, wd, w, c, yd, nullptr, y, false, workspace, bytes), id);
}
STAND_IN_EXPORT int miopenConvolutionBackwardDataGetSolution(void*, void* dy, void* w, void* c, void* dx,
                                                             size_t most, size_t* count, Solution* found) {
  return solutions(c, has_algorithm(dx, w, c, dy), kBackward, most, count, found);
}
STAND_IN_EXPORT int miopenConvolutionBackwardDataCompileSolution(void* handle, void*, void*, void* c, void*,
                                                                 uint64_t id) {
  return id % kSlow == kBackward ? build(handle, c) : kBadParameter;
}
STAND_IN_EXPORT int miopenConvolutionBackwardDataImmediate(void* handle, void* dyd, const void* dy, void* wd,
                                                           const void* w, void* c, void* dxd, void* dx,
                                                           void* workspace, size_t bytes, uint64_t id) {
  if (build(handle, c) != 0 || is_mode("refuses")) return kUnknownError;
  if (id % kSlow != kBackward) return kBadParameter;
  return ran(run(handle, dxd, nullptr, wd, w, c, dyd, dy, dx, true, workspace, bytes), id);
}
STAND_IN_EXPORT int miopenConvolutionForwardBias(void* handle, const void*, void* bd, const void* b,
                                                 const void*, void* yd, void* y) {
  return add_bias(handle, bd, b, yd, y);
}

#else

struct Performance {  // cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionBwdDataAlgoPerf_t
  int algorithm, status;
  float milliseconds;
  size_t workspace;
  int deterministic, math, reserved[3];
};
constexpr int kForward = 1, kAnyOrder = 0, kBackward = 4;
constexpr int kForwardTransforms[] = {5, 4}, kBackwardTransforms[] = {3, 2};  // with and without tiles

STAND_IN_EXPORT int cudnnCreate(void** handle) { return create<Handle>(handle); }
STAND_IN_EXPORT int cudnnDestroy(void* handle) { return destroy<Handle>(handle); }
STAND_IN_EXPORT int cudnnSetStream(void* handle, void* stream) {
  return static_cast<Handle*>(handle)->stream = stream, 0;
}
STAND_IN_EXPORT int cudnnCreateTensorDescriptor(void** t) { return create<Tensor>(t); }
STAND_IN_EXPORT int cudnnSetTensorNdDescriptor(void* t, int type, int rank, const int* dims,
                                               const int* strides) {
  return set_tensor(t, type, rank, dims, strides);
}
STAND_IN_EXPORT int cudnnDestroyTensorDescriptor(void* t) { return destroy<Tensor>(t); }
STAND_IN_EXPORT int cudnnCreateFilterDescriptor(void** w) { return create<Tensor>(w); }
STAND_IN_EXPORT int cudnnSetFilterNdDescriptor(void* w, int type, int format, int rank, const int* dims) {
  static_cast<Tensor*>(w)->last = format == 1;
  return format == 0 || format == 1 ? set_tensor(w, type, rank, dims, nullptr) : kBadParameter;
}
STAND_IN_EXPORT int cudnnDestroyFilterDescriptor(void* w) { return destroy<Tensor>(w); }
STAND_IN_EXPORT int cudnnCreateConvolutionDescriptor(void** c) { return create<Window>(c); }
STAND_IN_EXPORT int cudnnSetConvolutionNdDescriptor(void* c, int axes, const int* pad, const int* stride,
                                                    const int* dilation, int mode, int type) {
  return mode == 1 && type == kFloat ? set_window(c, axes, pad, stride, dilation) : kBadParameter;
}
STAND_IN_EXPORT int cudnnSetConvolutionGroupCount(void* c, int groups) { return set_groups(c, groups); }
STAND_IN_EXPORT int cudnnSetConvolutionMathType(void*, int) { return 0; }
STAND_IN_EXPORT int cudnnDestroyConvolutionDescriptor(void* c) { return destroy<Window>(c); }
STAND_IN_EXPORT int cudnnGetConvolutionForwardAlgorithm_v7(void*, void* x, void* w, void* c, void* y,
                                                           int most, int* count, Performance* found) {
  *count = most > 2 && has_algorithm(x, w, c, y) ? 3 : 0;
  if (*count > 0) {
    found[0] = {kForwardTransforms[0], 0, 0.1f, 0, 1, 0, {}};
    found[1] = {kForwardTransforms[1], 0, 0.2f, 0, 1, 0, {}};
    found[2] = {kForward, 0, 0.3f, kWorkspace, 1, 0, {}};
  }
  return 0;
}
STAND_IN_EXPORT int cudnnConvolutionForward(void* handle, const void*, void* xd, const void* x, void* wd,
                                            const void* w, void* c, int algorithm, void* workspace,
                                            size_t bytes, const void*, void* yd, void* y) {
  if (algorithm != kForward) return kBadParameter;
  return run(handle, xd, x, wd, w, c, yd, nullptr, y, false, workspace, bytes);
}
// The fastest algorithm is nondeterministic, the next ones are transforms.
STAND_IN_EXPORT int cudnnGetConvolutionBackwardDataAlgorithm_v7(void*, void* w, void* dy, void* c, void* dx,
                                                                int most, int* count, Performance* found) {
  *count = most > 3 && has_algorithm(dx, w, c, dy) ? 4 : 0;
  if (*count > 0) {
    found[0] = {kAnyOrder, 0, 0.1f, 0, 0, 0, {}};
    found[1] = {kBackwardTransforms[0], 0, 0.2f, 0, 1, 0, {}};
    found[2] = {kBackwardTransforms[1], 0, 0.3f, 0, 1, 0, {}};
    found[3] = {kBackward, 0, 0.4f, kWorkspace, 1, 0, {}};
  }
  return 0;
}
STAND_IN_EXPORT int cudnnConvolutionBackwardData(void* handle, const void*, void* wd, const void* w,
                                                 void* dyd, const void* dy, void* c, int algorithm,
                                                 void* workspace, size_t bytes, const void*, void* dxd,
                                                 void* dx) {
  if (algorithm != kBackward) return kBadParameter;
  return run(handle, dxd, nullptr, wd, w, c, dyd, dy, dx, true, workspace, bytes);
}
STAND_IN_EXPORT int cudnnCreateActivationDescriptor(void** activation) { return create<int>(activation); }
STAND_IN_EXPORT int cudnnSetActivationDescriptor(void* activation, int mode, int nan, double) {
  *static_cast<int*>(activation) = mode;
  return mode == 1 && nan == 1 ? 0 : kBadParameter;
}
STAND_IN_EXPORT int cudnnDestroyActivationDescriptor(void* activation) { return destroy<int>(activation); }
// y = relu(conv(x, w) + alpha2 z + bias)
STAND_IN_EXPORT int cudnnConvolutionBiasActivationForward(void* handle, const void* alpha1, void* xd,
                                                          const void* x, void* wd, const void* w, void* c,
                                                          int algorithm, void* workspace, size_t bytes,
                                                          const float* alpha2, void* zd, const void* z,
                                                          void* bd, const void* b, void* activation, void* yd,
                                                          void* y) {
  if (*static_cast<int*>(activation) != 1) return kBadParameter;
  const int status =
      cudnnConvolutionForward(handle, alpha1, xd, x, wd, w, c, algorithm, workspace, bytes, nullptr, yd, y);
  if (status != 0) return status;
  const Tensor bias = *static_cast<Tensor*>(bd), added = *static_cast<Tensor*>(zd),
               to = *static_cast<Tensor*>(yd);
  return stand_in::enqueue(stream_of(handle), "an activation", {z, b, y}, [=, scale = *alpha2] {
    for (size_t i = 0; i < to.elements(); ++i) {
      double sum = to.read(y, i) + bias.read(b, i / to.plane() % static_cast<size_t>(to.dims[1]));
      if (scale != 0) sum += scale * added.read(z, i);
      to.write(y, i, sum > 0 || sum != sum ? sum : 0.0);
    }
    return 0;
  });
}
STAND_IN_EXPORT int cudnnAddTensor(void* handle, const void*, void* bd, const void* b, const void*, void* yd,
                                   void* y) {
  return add_bias(handle, bd, b, yd, y);
}

#endif
