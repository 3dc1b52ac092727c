// Shared code of convolutions with cuDNN and MIOpen (cudnn.cpp, miopen.cpp). Convolutions have two or three
// spatial axes. The libraries compute a transposed convolution as the gradient of a convolution with respect
// to its input.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/driver.h"
#include "device/libraries/libraries.h"
#include "device/libraries/stream_lock.h"

namespace graphopt::gpu {

using ConvolutionKey = std::array<int64_t, 10 + 6 * kSpatialAxes>;

inline bool has_relu(const ConvolutionProblem& p) { return p.act.kind == ActivationKind::kRelu; }

inline ConvolutionKey key_of(const ConvolutionProblem& p, bool half) {
  ConvolutionKey key = {p.N,        p.groups,        p.C,         p.M,           half, p.transposed,
                        p.has_bias, p.channels_last, has_relu(p), p.has_residual};
  size_t n = 10;
  for (const auto* axes : {&p.in, &p.out, &p.kernel, &p.stride, &p.dilation, &p.pad}) {
    for (const int64_t v : *axes) key[n++] = v;
  }
  return key;
}

// The arrays of library calls. There are two spatial axes if the first of three is unused.
struct Arrays {
  using Dims = std::array<int, 2 + kSpatialAxes>;
  int axes = 3;
  // flat_y: y with two spatial axes, for the addition of the bias.
  Dims x = {}, y = {}, w = {}, bias = {}, flat_y = {};
  std::array<int, kSpatialAxes> pad = {}, stride = {}, dilation = {};

  explicit Arrays(const ConvolutionProblem& p) {
    const bool three = p.in[0] != 1 || p.out[0] != 1 || p.kernel[0] != 1;
    axes = three ? 3 : 2;
    const int x_channels = to_i31(p.x_channels()), y_channels = to_i31(p.y_channels());
    x[0] = y[0] = flat_y[0] = to_i31(p.N);
    x[1] = x_channels;
    y[1] = flat_y[1] = y_channels;
    // A transposed convolution is the gradient of a convolution from y's channels to x's.
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
  // Returns the strides of a contiguous tensor [N, C, ..] or, with channels_last, [N, .., C].
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

// Destroys an object of a library.
struct Destroy {
  int (*function)(void*) = nullptr;
  void operator()(void* made) const { function(made); }
};
using OwnedObject = std::unique_ptr<void, Destroy>;

inline OwnedObject make(const LibraryFunction<void**>& create, const LibraryFunction<void*>& destroy) {
  void* made = nullptr;
  create.check(&made);
  return {made, {destroy.pointer()}};
}

// The descriptors of a problem in both libraries.
struct ConvolutionDescriptors {
  OwnedObject x, w, y, bias, flat_y, conv;
  bool transposed = false;
  size_t workspace = 0;
};

// Creates the descriptor of a tensor. Both libraries have these functions.
template <class Library>
OwnedObject describe_tensor(const Library& library, int type, const Arrays::Dims& shape, int dims,
                            bool channels_last) {
  OwnedObject tensor = make(library.create_tensor, library.destroy_tensor);
  library.set_tensor.check(tensor.get(), type, dims, shape.data(),
                           Arrays::strides(shape, dims, channels_last).data());
  return tensor;
}

// Creates the descriptors of all tensors except W.
template <class Library>
void describe_tensors(const Library& library, int type, const Arrays& a, bool channels_last,
                      ConvolutionDescriptors& c) {
  c.x = describe_tensor(library, type, a.x, a.dims(), channels_last);
  c.y = describe_tensor(library, type, a.y, a.dims(), channels_last);
  c.bias = describe_tensor(library, type, a.bias, 4, channels_last);
  c.flat_y = describe_tensor(library, type, a.flat_y, 4, channels_last);
}

// A handle with the descriptors and the chosen algorithm of each problem. They are cached: creating them
// takes longer than the convolution of a small image.
//
// If a library reads databases and loads or compiles kernels for a problem (kLoadsInBackground), a separate
// thread does this and locks the handle meanwhile. Calls that would wait for the lock use built-in kernels
// instead.
template <class Library>
class DnnHandle final : public Dnn {
 public:
  DnnHandle(Device& device, const Library& library, void* stream)
      : device_(device), library_(library), stream_(stream) {}
  ~DnnHandle() override {
    if (loader_.joinable()) loader_.join();
  }

  void clear_problems() noexcept override {
    if (loader_.joinable()) loader_.join();
    convolutions_.clear();
  }

  std::optional<size_t> conv_workspace(const ConvolutionProblem& p, bool half, const char*& why) override {
    const std::unique_lock<StreamLock> lock(lock_, std::try_to_lock);
    why = kBusy;
    if (!lock.owns_lock()) return std::nullopt;
    const Entry& entry = convolution_of(p, half);
    if (entry.ready) return entry.convolution->workspace;
    why = entry.why.empty() ? kBusy : entry.why.c_str();  // remains valid, because it is set once
    return std::nullopt;
  }

  bool has_relu() const override { return Library::kHasRelu; }
  bool can_be_captured() const override { return library_.can_be_captured(device_); }

  bool conv(const ConvolutionProblem& p, bool half, const void* x, const void* w, const void* bias,
            const void* residual, void* y, void* workspace) override {
    const std::unique_lock<StreamLock> lock(lock_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    const auto found = convolutions_.find(key_of(p, half));  // conv_workspace creates the entry
    if (found == convolutions_.end() || !found->second.ready) return false;
    Entry& entry = found->second;
    try {
      library_.run(handle_.get(), *entry.convolution, x, w, bias, residual, y, workspace);
      return true;
    } catch (const std::exception& e) {  // a refusal at run time is final
      device_.clear_errors();
      if (device_.is_capturing(stream_)) return false;
      refuse(entry, p, e.what());
      return false;
    }
  }

  size_t finish_loading() override {
    std::unique_lock<StreamLock> lock(lock_);
    idle_.wait(lock, [&] { return !loading_; });
    return std::exchange(loaded_, 0);
  }

 private:
  static constexpr const char* kBusy = "its kernels are still loading";

  struct Entry {
    std::optional<typename Library::Convolution> convolution;
    bool ready = false;
    std::string why;  // why the library cannot compute the problem; set once
  };
  struct Request {
    Entry* entry;
    ConvolutionProblem p;
    bool half;
  };

  // The lock must be held.
  Entry& convolution_of(const ConvolutionProblem& p, bool half) {
    const auto [found, added] = convolutions_.try_emplace(key_of(p, half));
    Entry& entry = found->second;
    if (!added) return entry;
    if (Library::kLoadsInBackground) {
      requests_.push_back({&entry, p, half});
      start();
    } else {
      prepare({&entry, p, half});
    }
    return entry;
  }

  void start() {
    if (loading_) return;
    if (loader_.joinable()) loader_.join();  // it has finished its work
    loader_ = std::thread([this] {
      const std::lock_guard<StreamLock> lock(lock_);  // waits until the caller of start() releases it
      while (!requests_.empty()) {
        const Request request = std::move(requests_.back());
        requests_.pop_back();
        prepare(request);
        if (request.entry->ready) ++loaded_;
      }
      loading_ = false;
      raise_library_generation();
      idle_.notify_all();
    });
    // Set after the creation of the thread: if that fails, no call may wait for it.
    loading_ = true;
  }

  void prepare(const Request& request) {
    try {
      const OnDevice on(device_);
      const NoCaptures none;
      if (handle_ == nullptr) handle_ = library_.create(stream_);
      request.entry->convolution = library_.prepare(handle_.get(), request.p, request.half, device_);
      request.entry->ready = request.entry->convolution.has_value();
      if (!request.entry->ready) refuse(*request.entry, request.p, "has no algorithm");
    } catch (const std::exception& e) {
      refuse(*request.entry, request.p, e.what());
    }
    device_.clear_errors();
  }

  void refuse(Entry& entry, const ConvolutionProblem& p, const std::string& why) {
    entry.convolution.reset();
    entry.ready = false;
    entry.why = std::string(Library::kName) + " " + why;
    std::fprintf(
        stderr,
        "graphopt: falling back to built-in kernels for a convolution of X [%lld,%lld,%lld,%lld,%lld]: %s\n",
        static_cast<long long>(p.N), static_cast<long long>(p.x_channels()), static_cast<long long>(p.in[0]),
        static_cast<long long>(p.in[1]), static_cast<long long>(p.in[2]), entry.why.c_str());
  }

  Device& device_;
  const Library& library_;
  void* stream_;
  StreamLock lock_;     // guards the members below
  OwnedObject handle_;  // destroyed after the descriptors
  std::map<ConvolutionKey, Entry> convolutions_;
  std::thread loader_;
  bool loading_ = false;
  std::vector<Request> requests_;  // requests to the loader
  size_t loaded_ = 0;              // problems that became ready since the last finish_loading
  std::condition_variable_any idle_;
};

template <class Library>
class OpenDnn final : public OpenLibrary<Dnn> {
 public:
  OpenDnn(Device& device, const FoundLibrary& found, LibraryMode mode)
      : device_(device), library_(found.file.handle, mode) {}

  Device& device() const override { return device_; }
  std::unique_ptr<Dnn> create_handle(void* stream) override {
    return std::make_unique<DnnHandle<Library>>(device_, library_, stream);
  }

 private:
  Device& device_;
  Library library_;
};

}  // namespace graphopt::gpu
