// cuBLAS and rocBLAS. Their matrices are column-major, so the GEMM computed is Y^T = B^T A^T.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "blocks/gpu/walk_plan.h"
#include "blocks/half.h"
#include "device/allocations.h"
#include "device/driver.h"
#include "device/libraries/libraries.h"

namespace graphopt::gpu {
namespace {

// The arguments of one strided batched GEMM, column-major.
struct BlasGemm {
  bool transpose_first, transpose_second;
  int m, n, k;
  const void *first, *second;
  void* result;
  int ld_first, ld_second, ld_result;
  int64_t stride_first, stride_second, stride_result;  // from one batch to the next
  int batch;
  float alpha, beta;
};

// cuBLAS recommends this size for its largest devices; it is more than rocBLAS's default.
constexpr size_t kBlasWorkspace = size_t{32} << 20;

template <class Library>
class BlasHandle final : public Blas {
 public:
  BlasHandle(Device& device, const Library& library, void* stream, size_t workspace,
             std::atomic<bool>& reported)
      : device_(device), library_(library), stream_(stream), reported_(reported) {
    if (library_.create(&handle_) != 0) throw_unusable();
    // The stream is set before the workspace, because setting the stream replaces the workspace with the library's
    // own.
    if (library_.set_stream(handle_, stream) != 0) throw_unusable();
    if (library_.set_workspace == nullptr || workspace == 0) return;
    try {
      workspace_ = allocate_owned(device_, workspace, MemoryUse::kWorkspaces);
      keeps_workspace_ = library_.set_workspace(handle_, workspace_.get(), workspace) == 0;
    } catch (const OutOfMemory&) {  // the library then uses its own workspace
    }
    device_.clear_errors();
  }
  ~BlasHandle() override {
    if (handle_ != nullptr) library_.destroy(handle_);
  }

  // rocBLAS frees its own workspace when it needs a larger one, and a captured graph would continue to use
  // the freed memory.
  bool can_be_captured() const override { return Library::kKeepsWorkspace || keeps_workspace_; }

  bool gemm(const GemmProblem& p, bool half, const void* a, const void* b, void* y) override {
    Walk walk(p.batch, {p.a_batch, p.b_batch});
    walk.simplify();
    const Walk::Rows rows = walk.rows();
    const int64_t element = half ? 2 : 4;
    BlasGemm arguments = {p.transpose_b,
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
    for (size_t r = 0; r < rows.starts.size(); ++r) {
      arguments.first = static_cast<const char*>(b) + rows.starts[r][1] * element;
      arguments.second = static_cast<const char*>(a) + rows.starts[r][0] * element;
      arguments.result = static_cast<char*>(y) + static_cast<int64_t>(r) * rows.length * p.M * p.N * element;
      if (r > 0) device_.reserve_nodes(kNodesOfLibraryCall);
      const int status = library_.run(handle_, arguments, half);
      if (status == 0) continue;
      device_.clear_errors();
      const std::string what = std::string(Library::kName) + " failed, status " + std::to_string(status);
      if (device_.is_capturing(stream_)) return false;
      if (r > 0) throw std::runtime_error(what);  // part of the GEMM is already enqueued
      if (!reported_.exchange(true)) {
        std::fprintf(stderr,
                     "graphopt: falling back to built-in kernels for a GEMM [%lld,%lld]x[%lld,%lld]: %s\n",
                     static_cast<long long>(p.M), static_cast<long long>(p.K), static_cast<long long>(p.K),
                     static_cast<long long>(p.N), what.c_str());
      }
      return false;
    }
    return true;
  }

 private:
  [[noreturn]] void throw_unusable() {
    device_.clear_errors();
    if (handle_ != nullptr) library_.destroy(handle_);
    throw std::runtime_error(std::string(Library::kName) + " can't be used");
  }

  Device& device_;
  const Library& library_;
  void* stream_;
  std::atomic<bool>& reported_;
  DeviceMemory workspace_;  // freed after the handle
  void* handle_ = nullptr;
  bool keeps_workspace_ = false;
};

struct Cublas {
  static constexpr const char* kName = "cuBLAS";
  static constexpr bool kKeepsWorkspace = true;  // a captured graph never uses a freed workspace
  void* library;
  LibraryFunction<void**> create{library, "cublasCreate_v2"};
  LibraryFunction<void*> destroy{library, "cublasDestroy_v2"};
  LibraryFunction<void*, void*> set_stream{library, "cublasSetStream_v2"};
  LibraryFunction<void*, int, int, int, int, int, const void*, const void*, int, int, long long, const void*,
                  int, int, long long, const void*, void*, int, int, long long, int, int, int>
      gemm{library, "cublasGemmStridedBatchedEx"};
  // Without a caller's workspace each GEMM in a captured graph allocates and frees one.
  int (*set_workspace)(void*, void*, size_t);

  explicit Cublas(void* handle) : library(handle) {
    resolve_optional(library, "cublasSetWorkspace_v2", set_workspace);
  }

  int run(void* handle, const BlasGemm& p, bool half) const {
    constexpr int kFloat = 0, kHalf = 2, kCompute32F = 68, kDefaultAlgorithm = -1;
    const int type = half ? kHalf : kFloat;
    return gemm(handle, p.transpose_first, p.transpose_second, p.m, p.n, p.k, &p.alpha, p.first, type,
                p.ld_first, p.stride_first, p.second, type, p.ld_second, p.stride_second, &p.beta, p.result,
                type, p.ld_result, p.stride_result, p.batch, kCompute32F, kDefaultAlgorithm);
  }
};

// Returns whether rocBLAS finds its kernels for the architecture (library/src/tensile_host.cpp,
// TensileHost::initialize). Without kernels, rocBLAS aborts the process.
bool has_tensile_file(std::string folder, const std::string& arch) {
  if (access((folder + "/" + arch).c_str(), F_OK) == 0) folder += "/" + arch;
  for (const std::string& name :
       {"TensileLibrary_lazy_" + arch, "TensileLibrary_" + arch, std::string("TensileLibrary")}) {
    if (access((folder + "/" + name + ".dat").c_str(), R_OK) == 0) return true;
  }
  return false;
}

// rocBLAS instead of hipBLAS, because hipBLAS changed its type constants with ROCm 7.
struct Rocblas {
  static constexpr const char* kName = "rocBLAS";
  static constexpr bool kKeepsWorkspace = false;
  void* library;
  LibraryFunction<void**> create_{library, "rocblas_create_handle"};
  LibraryFunction<void*> destroy{library, "rocblas_destroy_handle"};
  LibraryFunction<void*, void*> set_stream{library, "rocblas_set_stream"};
  LibraryFunction<void*, int> set_atomics{library, "rocblas_set_atomics_mode"};
  LibraryFunction<void*, int, int, int, int, int, const void*, const void*, int, int, int64_t, const void*,
                  int, int, int64_t, const void*, const void*, int, int, int64_t, void*, int, int, int64_t,
                  int, int, int, int32_t, uint32_t>
      gemm{library, "rocblas_gemm_strided_batched_ex"};
  // With a caller's workspace, rocBLAS chooses only kernels that fit in it, and allocates none itself.
  int (*set_workspace)(void*, void*, size_t);

  explicit Rocblas(void* handle) : library(handle) {
    resolve_optional(library, "rocblas_set_workspace", set_workspace);
  }

  // Disables atomic additions, which rocBLAS 6 allows by default: their order differs in each run.
  int create(void** handle) const {
    constexpr int kNotAllowed = 0;
    const int status = create_(handle);
    return status != 0 ? status : set_atomics(*handle, kNotAllowed);
  }

  int run(void* handle, const BlasGemm& p, bool half) const {
    constexpr int kNone = 111, kTranspose = 112, kHalf = 150, kFloat = 151;
    const int type = half ? kHalf : kFloat;
    return gemm(handle, p.transpose_first ? kTranspose : kNone, p.transpose_second ? kTranspose : kNone, p.m,
                p.n, p.k, &p.alpha, p.first, type, p.ld_first, p.stride_first, p.second, type, p.ld_second,
                p.stride_second, &p.beta, p.result, type, p.ld_result, p.stride_result, p.result, type,
                p.ld_result, p.stride_result, p.batch, kFloat, 0, 0, 0);
  }
};

// Checks the result of a GEMM of small integers, which is exact in any order of summation. This call also
// makes the library load its kernels for the architecture.
template <class T>
void check_gemm(Blas& library, Device& device, void* stream, int64_t M, int64_t N, int64_t K) {
  GemmProblem p;
  p.M = M;
  p.N = N;
  p.K = K;
  const auto integers = [](int64_t count, int64_t step, int64_t range) {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(T(static_cast<float>(i * step % range - range / 2)));
    }
    return values;
  };
  const std::vector<T> a = integers(M * K, 1, 5), b = integers(K * N, 3, 7);
  std::vector<T> y(static_cast<size_t>(M * N));
  const auto on_device = [&](const std::vector<T>& values) {
    DeviceMemory memory = allocate_owned(device, values.size() * sizeof(T), MemoryUse::kWorkspaces);
    device.copy(memory.get(), values.data(), values.size() * sizeof(T), stream);
    return memory;
  };
  const DeviceMemory at_a = on_device(a), at_b = on_device(b), at_y = on_device(y);
  const bool ran = library.gemm(p, sizeof(T) == 2, at_a.get(), at_b.get(), at_y.get());
  device.copy(y.data(), at_y.get(), y.size() * sizeof(T), stream);
  device.synchronize(stream);
  std::vector<float> want(static_cast<size_t>(N));
  for (int64_t m = 0; m < M && ran; ++m) {
    std::fill(want.begin(), want.end(), 0.0f);
    for (int64_t k = 0; k < K; ++k) {
      const auto factor = static_cast<float>(a[static_cast<size_t>(m * K + k)]);
      const T* row = b.data() + k * N;
      for (int64_t n = 0; n < N; ++n) want[static_cast<size_t>(n)] += factor * static_cast<float>(row[n]);
    }
    for (int64_t n = 0; n < N; ++n) {
      if (static_cast<float>(y[static_cast<size_t>(m * N + n)]) == want[static_cast<size_t>(n)]) continue;
      throw std::runtime_error("a GEMM gave wrong results, [" + std::to_string(M) + "," + std::to_string(K) +
                               "] x [" + std::to_string(K) + "," + std::to_string(N) + "]");
    }
  }
}

// Different sizes run different kernels.
void check_gemms(Blas& library, Device& device, void* stream) {
  check_gemm<float>(library, device, stream, 32, 32, 32);
  check_gemm<half>(library, device, stream, 32, 32, 32);
  if (device.backend() != Backend::kHip) return;
  for (const auto& [M, N, K] : kCheckedSizes) {
    check_gemm<float>(library, device, stream, M, N, K);
    check_gemm<half>(library, device, stream, M, N, K);
  }
}

template <class Library>
class OpenBlas final : public OpenLibrary<Blas> {
 public:
  OpenBlas(Device& device, const FoundLibrary& found) : device_(device), library_(found.file.handle) {
    const WorkStream stream(device);
    BlasHandle<Library> blas(device_, library_, stream.get(), 0, reported_);
    check_gemms(blas, device_, stream.get());
  }

  Device& device() const override { return device_; }
  std::unique_ptr<Blas> create_handle(void* stream) override {
    return std::make_unique<BlasHandle<Library>>(device_, library_, stream, kBlasWorkspace, reported_);
  }

 private:
  Device& device_;
  Library library_;
  std::atomic<bool> reported_{false};
};

}  // namespace

FoundLibrary find_cublas(const DeviceFacts& device, LibraryMode mode) {
  return find_vendor_library("cuBLAS", device, mode, {"libcublas.so.13", "libcublas.so.12", "libcublas.so"});
}

FoundLibrary find_rocblas(const DeviceFacts& device, LibraryMode mode) {
  FoundLibrary found =
      find_vendor_library("rocBLAS", device, mode, {"librocblas.so.5", "librocblas.so.4", "librocblas.so"});
  if (!found.problem.code.empty()) return found;
  const std::string folder = tensile_folder(found.file.path, "ROCBLAS_TENSILE_LIBPATH",
                                            {"/../../Tensile/library", "/library", "/../rocblas/library",
                                             "/rocblas/[0-9]*/library",  // Debian's and Ubuntu's packages
                                             "/rocblas/library"});
  if (!has_tensile_file(folder, device.arch)) {
    found.problem =
        no_tensile_kernels("rocBLAS", "TensileLibrary_lazy_" + device.arch + ".dat", folder, device);
  }
  return found;
}

std::unique_ptr<OpenLibrary<Blas>> open_cublas(Device& device, const FoundLibrary& found, LibraryMode) {
  return std::make_unique<OpenBlas<Cublas>>(device, found);
}
std::unique_ptr<OpenLibrary<Blas>> open_rocblas(Device& device, const FoundLibrary& found, LibraryMode) {
  return std::make_unique<OpenBlas<Rocblas>>(device, found);
}

}  // namespace graphopt::gpu
