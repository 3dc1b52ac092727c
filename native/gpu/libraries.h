// Matrix products and convolutions by the vendor's libraries, opened with dlopen: cuBLAS and cuDNN, rocBLAS
// and MIOpen. Where one is missing, the kernels of gpu/gemm_plan.h and gpu/convolution_plan.h run.
//
// float32 products are float32 all through: no TF32. float16 ones accumulate in float32.
#pragma once

#include <memory>
#include <optional>

#include "gpu/convolution_plan.h"
#include "gpu/device.h"
#include "gpu/gemm_plan.h"
#include "ops/linear.h"

namespace graphopt::gpu {

// Methods may be called by many threads at once, but by one at a time for each stream. They throw
// std::runtime_error.
class Blas {
 public:
  virtual ~Blas() = default;
  virtual void gemm(const GemmProblem& p, bool half, const void* a, const void* b, void* y, void* stream) = 0;
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
  // is said once on stderr.
  virtual std::optional<size_t> conv_workspace(const ConvolutionProblem& p, bool half, void* stream) = 0;
  // `bias` may be null. The padding must be the same at both ends.
  virtual void conv(const ConvolutionProblem& p, bool half, const void* x, const void* w, const void* bias,
                    void* y, void* workspace, void* stream) = 0;
  virtual void forget(void* stream) noexcept = 0;
};

// Throw NoRuntime when the library is not there.
std::unique_ptr<Blas> open_cublas();
std::unique_ptr<Blas> open_rocblas();
std::unique_ptr<Dnn> open_cudnn();
std::unique_ptr<Dnn> open_miopen();

// After a small product whose result they check. They enqueue it on the default stream.
std::unique_ptr<BlasLt> open_cublaslt(Device& device);
std::unique_ptr<BlasLt> open_hipblaslt(Device& device);

// Those of a device, opened when first asked for; null when there is none, said once on stderr.
Blas* blas(const Device& device);
Dnn* dnn(const Device& device);
// Null without a word when the library is not there: two launches do the same.
BlasLt* blas_lt(Device& device);
// In both, a stream of the device that is about to be destroyed.
void forget_stream(const Device& device, void* stream) noexcept;

}  // namespace graphopt::gpu
