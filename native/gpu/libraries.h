// Matrix products and convolutions by the vendor's libraries, opened with dlopen: cuBLAS and cuDNN, rocBLAS
// and MIOpen. Where one is missing, the kernels of gpu/gemm_plan.h run.
//
// float32 products are float32 all through: no TF32. float16 ones accumulate in float32.
#pragma once

#include <memory>

#include "gpu/device.h"
#include "gpu/gemm_plan.h"

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

class Dnn {
 public:
  virtual ~Dnn() = default;
  // Bytes of scratch memory that conv needs.
  virtual size_t conv_workspace(const ConvNdProblem& p, bool half, void* stream) = 0;
  // `bias` may be null. The padding must be the same at both ends.
  virtual void conv(const ConvNdProblem& p, bool half, const void* x, const void* w, const void* bias,
                    void* y, void* workspace, void* stream) = 0;
  virtual void forget(void* stream) noexcept = 0;
};

// Throw NoRuntime when the library is not there.
std::unique_ptr<Blas> open_cublas();
std::unique_ptr<Blas> open_rocblas();
std::unique_ptr<Dnn> open_cudnn();
std::unique_ptr<Dnn> open_miopen();

// Those of a device, opened when first asked for; null when there is none, said once on stderr.
Blas* blas(const Device& device);
Dnn* dnn(const Device& device);
// Of all devices.
void forget_stream(void* stream) noexcept;

}  // namespace graphopt::gpu
