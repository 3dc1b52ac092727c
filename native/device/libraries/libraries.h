// Matrix products and convolutions by the vendor's libraries, opened with dlopen: cuBLAS, cuBLASLt and cuDNN;
// rocBLAS, hipBLASLt and MIOpen. Where one is missing, can't be used on the device or refuses a problem, the
// kernels of operators/matmul/plan.h and operators/convolution/plan.h run.
//
// A call that fails while its stream is recorded (Device::begin_capture) is not held against the library.
//
// float32 products are float32 all through: no TF32. float16 ones accumulate in float32. Results are the same
// in each run: no library may use atomic additions.
//
// GRAPHOPT_LIBRARIES in the environment, read when a library is first wanted: NAME=CHOICE separated by
// commas, the names those above in small letters ("rocblas"), the choices off, on (also where it is off by
// default) and, for miopen alone, build.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "device/device.h"
#include "device/shared_library.h"
#include "operators/convolution/problem.h"
#include "operators/linear/problem.h"
#include "operators/matmul/problem.h"

namespace graphopt::gpu {

// A library on a device: where it is, and why it is not used there.
struct FoundLibrary {
  std::string name;  // "rocBLAS"
  SharedLibrary file;
  std::string version;
  Problem problem;
};
FoundLibrary find_cublas(const DeviceFacts& device);
FoundLibrary find_cublaslt(const DeviceFacts& device);
FoundLibrary find_cudnn(const DeviceFacts& device);
FoundLibrary find_rocblas(const DeviceFacts& device);
FoundLibrary find_hipblaslt(const DeviceFacts& device);
FoundLibrary find_miopen(const DeviceFacts& device);

// What GRAPHOPT_LIBRARIES says of a library: off, on, build, or nothing. Throws std::runtime_error for a list
// that names no library or choice.
std::string library_choice(const std::string& name);

// Methods may be called by many threads at once, but by one at a time for each stream. They throw
// std::runtime_error.
class Blas {
 public:
  virtual ~Blas() = default;
  // False when the library refuses the product: nothing is enqueued then.
  virtual bool gemm(const GemmProblem& p, bool half, const void* a, const void* b, void* y, void* stream) = 0;
  // The stream is about to be destroyed.
  virtual void forget(void* stream) noexcept = 0;
};

// A product with its epilogue in one launch: cuBLASLt, hipBLASLt. Methods may be called by many threads at
// once.
class BlasLt {
 public:
  // Memory of tensors that linear takes is aligned to this.
  static constexpr size_t kAlignment = 256;
  virtual ~BlasLt() = default;
  // Bytes of scratch memory that linear needs; nothing when the library has nothing for the problem.
  virtual std::optional<size_t> linear_workspace(const LinearProblem& p, bool half) = 0;
  // False when the library failed: nothing is enqueued then. `r` is null without a residual.
  virtual bool linear(const LinearProblem& p, bool half, const void* x, const void* w, const void* b,
                      const void* r, void* y, void* workspace, void* stream) = 0;
};

class Dnn {
 public:
  virtual ~Dnn() = default;
  // Bytes of scratch memory that conv needs; nothing when the library has no algorithm for the problem, which
  // is said once on stderr, or is not ready to run it without building a kernel.
  virtual std::optional<size_t> conv_workspace(const ConvolutionProblem& p, bool half, void* stream) = 0;
  // `bias` may be null. The padding must be the same at both ends. False when the library refuses it after
  // all: what is in y is of no use then.
  virtual bool conv(const ConvolutionProblem& p, bool half, const void* x, const void* w, const void* bias,
                    void* y, void* workspace, void* stream) = 0;
  // Waits until everything that convolutions have asked for is ready; how much that was since the last call.
  virtual size_t finish_loading() = 0;
  virtual void forget(void* stream) noexcept = 0;
};

// What find_... has found.
std::unique_ptr<Blas> open_cublas(Device& device, const FoundLibrary& found);
std::unique_ptr<Blas> open_rocblas(Device& device, const FoundLibrary& found);
std::unique_ptr<Dnn> open_cudnn(Device& device, const FoundLibrary& found);
std::unique_ptr<Dnn> open_miopen(Device& device, const FoundLibrary& found);

// After a small product whose result they check. They enqueue it on the default stream.
std::unique_ptr<BlasLt> open_cublaslt(Device& device, const FoundLibrary& found);
std::unique_ptr<BlasLt> open_hipblaslt(Device& device, const FoundLibrary& found);

// Those of a device, opened when first asked for; null when there is none, said once on stderr.
Blas* blas(Device& device);
Dnn* dnn(Device& device);
// Null without a word when the library is not there: two launches do the same.
BlasLt* blas_lt(Device& device);
// Of all devices, waits until what their libraries load beside the runs is there; how many kernels that were.
size_t finish_loading();
// Grows when something has been loaded: what was planned before may have a better implementation now.
uint64_t library_generation();
void raise_library_generation();
// In both, a stream of the device that is about to be destroyed.
void forget_stream(const Device& device, void* stream) noexcept;

// A library of AMD's or NVIDIA's for find_...: its problem is set when it is switched off or not there.
FoundLibrary find_vendor_library(const std::string& name, std::vector<std::string> sonames);

}  // namespace graphopt::gpu
