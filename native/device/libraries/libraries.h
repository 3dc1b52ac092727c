// Matrix products and convolutions by the vendor's libraries, opened with dlopen: cuBLAS, cuBLASLt and cuDNN;
// rocBLAS, hipBLASLt and MIOpen. Where one is missing, can't be used on the device or refuses a problem,
// kernels of our own run (operators/matmul/matmul/op.h, operators/conv/convolution/op.h).
//
// A call that fails while its stream is captured (Capture) is not held against the library.
//
// float32 products are float32 all through: no TF32. float16 ones accumulate in float32. Results are the same
// in each run: no library may use atomic additions.
//
// A library is opened when a session has a node for it, so that what it loads then is loaded before the first
// run, and given a small product whose result is checked; MIOpen, whose kernels are of one problem each,
// loads them beside the runs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>

#include "device/device.h"
#include "device/shared_library.h"
#include "device/stream_context.h"
#include "operators/conv/convolution/problem.h"
#include "operators/matmul/linear/problem.h"
#include "operators/matmul/matmul/problem.h"

namespace graphopt::gpu {

// A library on a device: where it is, and why it is not used there.
struct FoundLibrary {
  std::string name;  // "rocBLAS"
  SharedLibrary file;
  std::string version;
  Diagnosis problem;
};

// What is chosen of a library: nothing; off; on, also where it is off by default; for MIOpen alone build,
// also where it has to build its kernels, and find, where it builds and measures all that it has for a
// problem.
enum class Use : uint8_t { kDefault, kOff, kOn, kBuild, kFind };
enum class VendorLibrary : uint8_t { kRocblas, kHipblaslt, kMiopen, kCublas, kCublaslt, kCudnn };

// A list NAME=CHOICE,..., the names those above in small letters: the provider's option `libraries`, and, for
// what that leaves open, GRAPHOPT_LIBRARIES in the environment.
class LibraryChoices {
 public:
  // Throws std::runtime_error for a list, or an environment, that names no library or choice.
  explicit LibraryChoices(const std::string& option);
  Use of(VendorLibrary library) const { return uses_[static_cast<size_t>(library)]; }

 private:
  void read(const std::string& list, const char* where);
  Use uses_[6] = {};
};

FoundLibrary find_cublas(const DeviceFacts& device, Use use);
FoundLibrary find_cublaslt(const DeviceFacts& device, Use use);
FoundLibrary find_cudnn(const DeviceFacts& device, Use use);
FoundLibrary find_rocblas(const DeviceFacts& device, Use use);
FoundLibrary find_hipblaslt(const DeviceFacts& device, Use use);
FoundLibrary find_miopen(const DeviceFacts& device, Use use);

// Handles on one stream (StreamContext): methods are called by one thread at a time. They throw std::runtime_error.

// cuBLAS, rocBLAS.
class Blas : public VendorHandle {
 public:
  // False when the library refuses the product: nothing is enqueued then.
  virtual bool gemm(const GemmProblem& p, bool half, const void* a, const void* b, void* y) = 0;
};

// A product with its epilogue in one launch: cuBLASLt, hipBLASLt.
class BlasLt : public VendorHandle {
 public:
  // Memory of tensors that linear takes is aligned to this.
  static constexpr size_t kAlignment = 256;
  // Bytes of scratch memory that linear needs; nothing when the library has nothing for the problem.
  virtual std::optional<size_t> linear_workspace(const LinearProblem& p, bool half) = 0;
  // False when the library failed: nothing is enqueued then. `r` is null without a residual.
  virtual bool linear(const LinearProblem& p, bool half, const void* x, const void* w, const void* b,
                      const void* r, void* y, void* workspace) = 0;
};

// cuDNN, MIOpen.
class Dnn : public VendorHandle {
 public:
  // Bytes of scratch memory that conv needs; nothing when the library does not run the problem, or not yet,
  // and why.
  virtual std::optional<size_t> conv_workspace(const ConvolutionProblem& p, bool half, const char*& why) = 0;
  // Whether it has Relu, and a residual before it, in the same call: no other activation, and neither
  // residual nor, in channels last, a bias without Relu.
  virtual bool has_relu() const = 0;
  // `bias` and `residual` may be null. The padding must be the same at both ends. False when the library
  // refuses it after all: what is in y is of no use then.
  virtual bool conv(const ConvolutionProblem& p, bool half, const void* x, const void* w, const void* bias,
                    const void* residual, void* y, void* workspace) = 0;
};

// A library that was opened for a device: its functions, and what all its handles share.
template <class Handle>
class OpenLibrary {
 public:
  virtual ~OpenLibrary() = default;
  virtual Device& device() const = 0;
  // Throws std::runtime_error.
  virtual std::unique_ptr<Handle> create_handle(void* stream) = 0;
};

// What find_... has found.
std::unique_ptr<OpenLibrary<Blas>> open_cublas(Device& device, const FoundLibrary& found, Use use);
std::unique_ptr<OpenLibrary<Blas>> open_rocblas(Device& device, const FoundLibrary& found, Use use);
std::unique_ptr<OpenLibrary<Dnn>> open_cudnn(Device& device, const FoundLibrary& found, Use use);
std::unique_ptr<OpenLibrary<Dnn>> open_miopen(Device& device, const FoundLibrary& found, Use use);
std::unique_ptr<OpenLibrary<BlasLt>> open_cublaslt(Device& device, const FoundLibrary& found, Use use);
std::unique_ptr<OpenLibrary<BlasLt>> open_hipblaslt(Device& device, const FoundLibrary& found, Use use);

// A library's handle on a stream. `why` is set where the handle is null, and valid as long as the stream.
template <class Handle>
struct OnStream {
  Handle* handle;
  const char* why;

  const char* why_not() const { return handle == nullptr ? why : nullptr; }
};

// A library of a device, opened when first asked for. `why` is set where the library is null, valid for the life
// of the process, and written to stderr once where the user could mend it.
template <class Handle>
struct Opened {
  OpenLibrary<Handle>* library;
  const char* why;

  // Its handle on a stream, created by the first plan that needs it, before anything is captured there.
  OnStream<Handle> on(void* stream) const {
    if (library == nullptr) return {nullptr, why};
    const auto found = StreamContext::of(library->device(), stream)->handle(library, [this, stream] {
      return library->create_handle(stream);
    });
    return {static_cast<Handle*>(found.handle), found.why};
  }
};
// Choices that are null are those of the environment alone.
Opened<Blas> blas(Device& device, const LibraryChoices* choices);
Opened<Dnn> dnn(Device& device, const LibraryChoices* choices);
Opened<BlasLt> blas_lt(Device& device, const LibraryChoices* choices);
// Waits until everything that libraries of the device load beside the runs is ready; returns the number of kernels.
size_t finish_loading();
// Grows when something has been loaded: what was planned before may have a better implementation now.
uint64_t library_generation();
void raise_library_generation();

// A library of AMD's or NVIDIA's for find_...: its problem is set when it is switched off or not there.
FoundLibrary find_vendor_library(const std::string& name, Use use, std::vector<std::string> sonames);
// Where rocBLAS, or hipBLASLt, looks for its kernels: ENVIRONMENT, else the first of `places` beside the
// library that exists, else the last.
std::string tensile_folder(const std::string& library, const char* environment,
                           std::initializer_list<const char*> places);

}  // namespace graphopt::gpu
