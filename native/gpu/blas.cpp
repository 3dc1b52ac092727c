// cuBLAS and rocBLAS. Their matrices are stored by columns: Y^T = B^T A^T is what they compute.
#include <map>
#include <mutex>

#include "gpu/driver.h"
#include "gpu/libraries.h"

namespace graphopt::gpu {
namespace {

// One product of equally spaced matrices, in the library's own terms.
struct Product {
  bool transpose_first, transpose_second;
  int m, n, k;
  const void *first, *second;
  void* result;
  int ld_first, ld_second, ld_result;
  int64_t step_first, step_second, step_result;  // from one batch to the next
  int batch;
  float alpha, beta;
};

template <class Library>
class BlasOf final : public Blas {
 public:
  void gemm(const GemmProblem& p, bool half, const void* a, const void* b, void* y, void* stream) override {
    Walk walk(p.batch, {p.a_batch, p.b_batch});
    walk.simplify();
    const Walk::Rows rows = walk.rows();
    const int64_t element = half ? 2 : 4;
    Product product = {p.transpose_b,
                       p.transpose_a,
                       to_i31(p.N),
                       to_i31(p.M),
                       to_i31(p.K),
                       b,
                       a,
                       y,
                       to_i31(p.transpose_b ? p.K : p.N),
                       to_i31(p.transpose_a ? p.M : p.K),
                       to_i31(p.N),
                       rows.steps[1],
                       rows.steps[0],
                       p.M * p.N,
                       to_i31(rows.length),
                       p.alpha,
                       p.beta};
    void* handle = handle_of(stream);
    for (size_t r = 0; r < rows.starts.size(); ++r) {
      product.first = static_cast<const char*>(b) + rows.starts[r][1] * element;
      product.second = static_cast<const char*>(a) + rows.starts[r][0] * element;
      product.result = static_cast<char*>(y) + static_cast<int64_t>(r) * rows.length * p.M * p.N * element;
      if (const int status = library_.run(handle, product, half)) {
        throw std::runtime_error(std::string(Library::kName) + " failed, status " + std::to_string(status));
      }
    }
  }

  void forget(void* stream) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = handles_.find(stream);
    if (found == handles_.end()) return;
    library_.destroy(found->second);
    handles_.erase(found);
  }

 private:
  void* handle_of(void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = handles_.find(stream);
    if (found != handles_.end()) return found->second;
    void* handle = nullptr;
    if (library_.create(&handle) != 0 || library_.set_stream(handle, stream) != 0) {
      throw std::runtime_error(std::string(Library::kName) + " can't be used");
    }
    return handles_[stream] = handle;
  }

  Library library_;
  std::mutex mutex_;
  std::map<void*, void*> handles_;  // by stream
};

struct Cublas {
  static constexpr const char* kName = "cuBLAS";
  int (*create)(void**);
  int (*destroy)(void*);
  int (*set_stream)(void*, void*);
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, int, int, long long, const void*, int,
              int, long long, const void*, void*, int, int, long long, int, int, int);

  Cublas() {
    void* library =
        open_runtime({"libcublas.so.13", "libcublas.so.12", "libcublas.so"}, "cuBLAS (libcublas)");
    resolve(library, "cublasCreate_v2", create);
    resolve(library, "cublasDestroy_v2", destroy);
    resolve(library, "cublasSetStream_v2", set_stream);
    resolve(library, "cublasGemmStridedBatchedEx", gemm);
  }

  int run(void* handle, const Product& p, bool half) const {
    constexpr int kFloat = 0, kHalf = 2, kCompute32F = 68, kDefaultAlgorithm = -1;
    const int type = half ? kHalf : kFloat;
    return gemm(handle, p.transpose_first, p.transpose_second, p.m, p.n, p.k, &p.alpha, p.first, type,
                p.ld_first, p.step_first, p.second, type, p.ld_second, p.step_second, &p.beta, p.result, type,
                p.ld_result, p.step_result, p.batch, kCompute32F, kDefaultAlgorithm);
  }
};

// rocBLAS, not hipBLAS, whose numbers for types changed with ROCm 7.
struct Rocblas {
  static constexpr const char* kName = "rocBLAS";
  int (*create)(void**);
  int (*destroy)(void*);
  int (*set_stream)(void*, void*);
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, int, int, int64_t, const void*, int,
              int, int64_t, const void*, const void*, int, int, int64_t, void*, int, int, int64_t, int, int,
              int, int32_t, uint32_t);

  Rocblas() {
    void* library =
        open_runtime({"librocblas.so.5", "librocblas.so.4", "librocblas.so"}, "rocBLAS (librocblas)");
    resolve(library, "rocblas_create_handle", create);
    resolve(library, "rocblas_destroy_handle", destroy);
    resolve(library, "rocblas_set_stream", set_stream);
    resolve(library, "rocblas_gemm_strided_batched_ex", gemm);
  }

  int run(void* handle, const Product& p, bool half) const {
    constexpr int kNone = 111, kTranspose = 112, kHalf = 150, kFloat = 151;
    const int type = half ? kHalf : kFloat;
    return gemm(handle, p.transpose_first ? kTranspose : kNone, p.transpose_second ? kTranspose : kNone, p.m,
                p.n, p.k, &p.alpha, p.first, type, p.ld_first, p.step_first, p.second, type, p.ld_second,
                p.step_second, &p.beta, p.result, type, p.ld_result, p.step_result, p.result, type,
                p.ld_result, p.step_result, p.batch, kFloat, 0, 0, 0);
  }
};

}  // namespace

std::unique_ptr<Blas> open_cublas() { return std::make_unique<BlasOf<Cublas>>(); }
std::unique_ptr<Blas> open_rocblas() { return std::make_unique<BlasOf<Rocblas>>(); }

}  // namespace graphopt::gpu
