// rocBLAS over host memory: the functions that native/device/libraries/blas.cpp calls, with the types and
// constants of its header.
//
// As rocBLAS does (github.com/ROCm/rocBLAS at b520bc83f):
//   the first GEMM searches kernels for the current device and aborts the process if there are none
//                        library/src/tensile_host.cpp:726-842
//   with TensileLibrary_lazy files, the first GEMM of a type reads the kernels of that type
//                        library/src/tensile_host.cpp:954
//   it reallocates its workspace when a GEMM needs more, unless the caller has set one
//                        library/src/include/handle.hpp (ROCBLAS_REALLOC_ON_DEMAND), library/src/handle.cpp
//   destroying a handle waits for the device
//                        library/src/rocblas_auxiliary.cpp (rocblas_destroy_handle)
//   the order of summation may differ from call to call unless that is disabled
//                        library/src/include/handle.hpp:343
// STAND_IN_BLAS, read at each call: "fails" or "wrong" for all GEMMs; "large" for wrong float GEMMs of 256^3
// (github.com/ROCm/rocm-libraries, issue 11530); "vectors" for wrong float16 GEMMs of one row or column
// (ROCm/legacy-rocm-build, issue 5640); "odd" for wrong GEMMs of an odd K; "no stream" or "no mode" if setting
// the stream or the mode fails. GEMMs of handles without a workspace are not counted.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "blocks/half.h"
#include "recording.h"
#include "rocm.h"
#include "waiting.h"

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kNotSupported = 2, kMemoryError = 5, kTranspose = 112, kHalf = 150, kFloat = 151;
int products = 0, handles = 0;
void (*waits_for)() = nullptr;

struct Handle {
  bool atomics = true;
  void* stream = nullptr;
  void* workspace = nullptr;
  size_t bytes = 0;
  bool is_own = true;  // rocBLAS, not the caller, allocated the workspace

  // Whether this many bytes are available.
  bool reserve(size_t needed) {
    if (needed <= bytes || !is_own) return needed <= bytes;
    release();
    if (hipMalloc(&workspace, needed) != 0) return false;
    bytes = needed;
    return true;
  }
  void release() {
    if (is_own && workspace != nullptr) hipFree(workspace);
    workspace = nullptr;
    bytes = 0;
  }
};

std::string mode_of_test() {
  const char* mode = std::getenv("STAND_IN_BLAS");
  return mode != nullptr ? mode : "";
}

bool is_wrong(int type, int m, int n, int k) {
  if (mode_of_test() == "large") return type == kFloat && m == 256 && n == 256 && k == 256;
  if (mode_of_test() == "vectors") return type == kHalf && (m == 1 || n == 1);
  if (mode_of_test() == "odd") return k % 2 == 1;
  return mode_of_test() == "wrong";
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

void require_kernels() {
  const std::string arch = current_arch();
  std::string folder;
  if (const char* given = std::getenv("ROCBLAS_TENSILE_LIBPATH")) {
    folder = given;
  } else {
    Dl_info info;
    dladdr(&products, &info);
    folder = info.dli_fname;
    folder = folder.substr(0, folder.rfind('/'));
    const std::string debian =
        folder + "/rocblas/5.1.0/library";  // compiled into the library of Debian's packages
    folder =
        exists(debian) ? debian : folder + (exists(folder + "/library") ? "/library" : "/rocblas/library");
  }
  if (exists(folder + "/" + arch)) folder += "/" + arch;
  if (exists(folder + "/TensileLibrary_lazy_" + arch + ".dat")) return;
  std::fprintf(stderr, "rocBLAS error: Cannot read %s/TensileLibrary.dat for GPU arch : %s\n", folder.c_str(),
               arch.c_str());
  std::abort();
}

void read_kernels(int type) {
  require_kernels();
  static std::mutex mutex;
  static std::set<std::pair<std::string, int>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  if (known.emplace(current_arch(), type).second) stand_in::waiting().count();
}

float read(const void* p, int type, int64_t i) {
  return type == kFloat ? static_cast<const float*>(p)[i]
                        : static_cast<float>(static_cast<const graphopt::half*>(p)[i]);
}

}  // namespace

STAND_IN_EXPORT int stand_in_blas_products() { return products; }
// The next GEMM calls this function, and fails.
STAND_IN_EXPORT void stand_in_blas_fails_once_after(void (*call)()) { waits_for = call; }

// Number of live handles.
STAND_IN_EXPORT int stand_in_blas_handles() { return handles; }

STAND_IN_EXPORT int rocblas_create_handle(void** handle) { return *handle = new Handle, ++handles, 0; }
STAND_IN_EXPORT int rocblas_destroy_handle(void* handle) {
  hipDeviceSynchronize();
  static_cast<Handle*>(handle)->release();
  return delete static_cast<Handle*>(handle), --handles, 0;
}
STAND_IN_EXPORT int rocblas_set_workspace(void* handle, void* workspace, size_t bytes) {
  Handle& h = *static_cast<Handle*>(handle);
  h.release();
  h.workspace = workspace;
  h.bytes = bytes;
  h.is_own = workspace == nullptr;
  return 0;
}
STAND_IN_EXPORT int rocblas_set_stream(void* handle, void* stream) {
  return static_cast<Handle*>(handle)->stream = stream, mode_of_test() == "no stream" ? kNotSupported : 0;
}
STAND_IN_EXPORT int rocblas_set_atomics_mode(void* handle, int mode) {
  static_cast<Handle*>(handle)->atomics = mode == 1;
  return mode_of_test() == "no mode" ? kNotSupported : 0;
}

// D = alpha op(A) op(B) + beta C, in column-major order.
STAND_IN_EXPORT int rocblas_gemm_strided_batched_ex(void* handle, int ta, int tb, int m, int n, int k,
                                                    const float* alpha, const void* a, int type, int lda,
                                                    int64_t step_a, const void* b, int, int ldb,
                                                    int64_t step_b, const float* beta, const void* c, int,
                                                    int ldc, int64_t step_c, void* d, int, int ldd,
                                                    int64_t step_d, int batch, int compute, int, int32_t,
                                                    uint32_t) {
  read_kernels(type);
  if (mode_of_test() == "fails") return kNotSupported;
  if (const auto call = std::exchange(waits_for, nullptr)) {
    call();
    return kNotSupported;
  }
  if (compute != kFloat || (type != kFloat && type != kHalf)) return kNotSupported;
  const size_t scratch =
      sizeof(float) * static_cast<size_t>(m) * static_cast<size_t>(n) * static_cast<size_t>(batch);
  if (!static_cast<Handle*>(handle)->reserve(scratch)) return kMemoryError;
  const Handle how = *static_cast<Handle*>(handle);
  const std::vector<const void*> addresses = {a, b, c, d, how.workspace};
  return stand_in::enqueue(
      how.stream, "a product", addresses, [=, scale = *alpha, add = *beta, wrong = is_wrong(type, m, n, k)] {
        std::memset(how.workspace, 0xff, scratch);
        if (!how.is_own) ++products;  // the library's self-checks set no workspace
        for (int64_t i = 0; i < batch; ++i) {
          for (int64_t column = 0; column < n; ++column) {
            for (int64_t row = 0; row < m; ++row) {
              float sum = 0;
              for (int64_t l = 0; l < k; ++l) {
                sum += read(a, type, i * step_a + (ta == kTranspose ? l + row * lda : row + l * lda)) *
                       read(b, type, i * step_b + (tb == kTranspose ? column + l * ldb : l + column * ldb));
              }
              float y = scale * sum;
              if (add != 0) y += add * read(c, type, i * step_c + row + column * ldc);
              if (wrong) y += 1;
              if (how.atomics) y *= 1.0f + 1e-6f * static_cast<float>(products);
              const int64_t at = i * step_d + row + column * ldd;
              if (type == kFloat) {
                static_cast<float*>(d)[at] = y;
              } else {
                static_cast<graphopt::half*>(d)[at] = y;
              }
            }
          }
        }
        return 0;
      });
}
