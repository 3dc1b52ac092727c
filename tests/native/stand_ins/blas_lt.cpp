// cuBLASLt or hipBLASLt over host memory: the functions that native/device/libraries/blas_lt.cpp calls, with
// the types and constants of the library's header. STAND_IN_BLAS_LT, read at each GEMM: "fails", "wrong", or
// "first": the first offered algorithm is refused.
//
// As hipBLASLt does (github.com/ROCm/hipBLASLt at 7d9fb683; github.com/ROCm/rocm-libraries):
//   on RDNA its heuristic crashes
//                        rocm-libraries issues 4128 and 8242
//   without kernels for the architecture in $HIPBLASLT_TENSILE_LIBPATH it prints an error and refuses GEMMs
//                        library/src/amd_detail/rocblaslt/src/tensile_host.cpp:1270-1440 and 2420
//   it reads the kernels at the first request for an algorithm
//                        the same file:1457 and 2376
//   its first offered algorithm may be refused
//   a handle has flags in device memory that let work-groups of a GEMM wait for each other, so GEMMs of two
//   streams on one handle may deadlock; the stand-in refuses the second stream
//                        rocm-libraries PR 10951, which refuses streams beyond a handle's capacity
//   the flags are allocated and set when the handle is created; if that fails, as it does while a stream is
//   captured, the process aborts
//                        rocm-libraries issue 11838
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "blocks/half.h"
#include "recording.h"
#ifdef STAND_IN_HIP
#include "rocm.h"
#endif
#include "waiting.h"

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))
#ifdef STAND_IN_HIP
#define NAME(function) hipblasLt##function
constexpr int kCompute32F = 2, kEpilogue = 2, kBiasPointer = 3, kBiasType = 4, kNotSupported = 7,
              kInvalid = 3, kBiasStep = -1, kTransposeA = 0, kTransposed = 112, kBatchCount = 0,
              kBatchStep = 1;
constexpr size_t kAlgorithmBytes = 24, kResultBytes = 56;
#else
#define NAME(function) cublasLt##function
constexpr int kCompute32F = 68, kEpilogue = 7, kBiasPointer = 8, kBiasType = 26, kNotSupported = 15,
              kBiasStep = 10, kTransposeA = 3, kTransposed = 1, kBatchCount = 5, kBatchStep = 6;
constexpr size_t kAlgorithmBytes = 64, kResultBytes = 96;
#endif
constexpr int kFloat = 0, kHalf = 2;
constexpr size_t kWorkspace = 512;

namespace {

constexpr size_t kFlagsBytes = 4096;
struct Handle {
  void* flags = nullptr;
  std::optional<void*> stream;  // the stream of the first GEMM
};

int products = 0, shared_handles = 0;
std::atomic<int> refusals{0};
std::mutex mutex;
std::map<void*, Handle> handles;

// Returns the flags of the handle, or nothing if it cannot serve this stream.
std::optional<void*> flags_for(void* handle, void* stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = handles.find(handle);
  if (found == handles.end()) {
    std::fprintf(stderr, "stand-in: a product on a destroyed handle\n");
    return std::nullopt;
  }
  const void* first = found->second.stream.emplace(found->second.stream.value_or(stream));
#ifdef STAND_IN_HIP
  if (first != stream) {
    ++shared_handles;
    return std::nullopt;
  }
#else
  (void)first;
#endif
  return found->second.flags;
}

struct Product {
  int epilogue = 1, bias_type = -1, transpose_a = 0;
  const void* bias = nullptr;
  int64_t bias_step = 0;
};

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t ld;
  int32_t batch = 1;
  int64_t step = 0;

  // Observed with cuBLASLt 13 on an H100: distances in bytes are computed in 32 bits.
  template <class Byte>  // char, possibly const
  Byte* at(Byte* data, int32_t i) const {
    return data + static_cast<int32_t>(i * step * (type == kFloat ? 4 : 2));
  }
  float read(const void* data, uint64_t row, uint64_t column) const {
    const size_t i = row + column * static_cast<size_t>(ld);
    if (type == kFloat) return static_cast<const float*>(data)[i];
    return static_cast<float>(static_cast<const graphopt::half*>(data)[i]);
  }
  void write(void* data, uint64_t row, uint64_t column, float value) const {
    const size_t i = row + column * static_cast<size_t>(ld);
    if (type == kFloat) {
      static_cast<float*>(data)[i] = value;
    } else {
      static_cast<graphopt::half*>(data)[i] = value;
    }
  }
};

}  // namespace

STAND_IN_EXPORT int stand_in_products() { return products; }
// Number of GEMMs that were refused because their handle serves another stream.
STAND_IN_EXPORT int stand_in_shared_handles() { return shared_handles; }
// Refuses the next `count` GEMMs with any algorithm.
STAND_IN_EXPORT void stand_in_refuse_products(int count) { refusals = count; }
STAND_IN_EXPORT int stand_in_blas_lt_handles() { return static_cast<int>(handles.size()); }

STAND_IN_EXPORT int NAME(Create)(void** made) {
  Handle handle;
#ifdef STAND_IN_HIP
  if (hipMalloc(&handle.flags, kFlagsBytes) != 0 || hipMemset(handle.flags, 0, kFlagsBytes) != 0) {
    std::fprintf(stderr, "hipBLASLt: the synchronizer cannot be allocated\n");
    std::exit(1);
  }
#endif
  const std::lock_guard<std::mutex> lock(mutex);
  *made = new char;
  handles.emplace(*made, handle);
  return 0;
}
STAND_IN_EXPORT int NAME(Destroy)(void* handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = handles.find(handle);
  if (found == handles.end()) return kNotSupported;
#ifdef STAND_IN_HIP
  hipFree(found->second.flags);
#endif
  handles.erase(found);  // the address is leaked: it must not be reused
  return 0;
}
STAND_IN_EXPORT int NAME(MatmulDescCreate)(void** product, int compute, int scale) {
  if (compute != kCompute32F || scale != kFloat) return kNotSupported;
  return *product = new Product, 0;
}
STAND_IN_EXPORT int NAME(MatmulDescDestroy)(void* product) {
  return delete static_cast<Product*>(product), 0;
}
STAND_IN_EXPORT int NAME(MatmulDescSetAttribute)(void* handle, int attribute, const void* value,
                                                 size_t size) {
  auto* product = static_cast<Product*>(handle);
  const auto set = [&](auto& member) {
    if (size != sizeof member) return kNotSupported;
    std::memcpy(&member, value, size);
    return 0;
  };
  if (attribute == kEpilogue) return set(product->epilogue);
  if (attribute == kBiasPointer) return set(product->bias);
  if (attribute == kBiasStep) return set(product->bias_step);
  if (attribute == kTransposeA) return set(product->transpose_a);
  return attribute == kBiasType ? set(product->bias_type) : kNotSupported;
}
STAND_IN_EXPORT int NAME(MatrixLayoutCreate)(void** layout, int type, uint64_t rows, uint64_t columns,
                                             int64_t ld) {
  if ((type != kFloat && type != kHalf) || ld < static_cast<int64_t>(rows)) return kNotSupported;
  return *layout = new Layout{type, rows, columns, ld}, 0;
}
STAND_IN_EXPORT int NAME(MatrixLayoutSetAttribute)(void* handle, int attribute, const void* value,
                                                   size_t size) {
  auto* layout = static_cast<Layout*>(handle);
  const auto set = [&](auto& member) {
    if (size != sizeof member) return kNotSupported;
    std::memcpy(&member, value, size);
    return 0;
  };
  return attribute == kBatchCount  ? set(layout->batch)
         : attribute == kBatchStep ? set(layout->step)
                                   : kNotSupported;
}
STAND_IN_EXPORT int NAME(MatrixLayoutDestroy)(void* layout) { return delete static_cast<Layout*>(layout), 0; }
STAND_IN_EXPORT int NAME(MatmulPreferenceCreate)(void** preference) {
  return *preference = new uint64_t(0), 0;
}
STAND_IN_EXPORT int NAME(MatmulPreferenceDestroy)(void* preference) {
  return delete static_cast<uint64_t*>(preference), 0;
}
STAND_IN_EXPORT int NAME(MatmulPreferenceSetAttribute)(void* preference, int attribute, const void* value,
                                                       size_t size) {
  if (attribute != 1 || size != sizeof(uint64_t)) return kNotSupported;
  return std::memcpy(preference, value, size), 0;
}
STAND_IN_EXPORT int NAME(MatmulAlgoGetHeuristic)(void*, void*, void*, void*, void*, void*, void* preference,
                                                 int most, void* results, int* count) {
#ifdef STAND_IN_HIP
  const std::string arch = current_arch();
  if (arch.rfind("gfx9", 0) != 0) std::abort();
  const char* folder = std::getenv("HIPBLASLT_TENSILE_LIBPATH");
  const std::string file =
      std::string(folder != nullptr ? folder : "") + "/TensileLibrary_lazy_" + arch + ".dat";
  if (access(file.c_str(), F_OK) != 0) {
    std::fprintf(stderr, "\nrocblaslt error: Cannot read %s\n", file.c_str());
    return *count = 0, kInvalid;
  }
  static std::once_flag read;
  std::call_once(read, [] { stand_in::waiting().count(); });
#endif
  if (most < 1 || *static_cast<uint64_t*>(preference) < kWorkspace) return *count = 0, kNotSupported;
  *count = std::min(most, 2);
  for (int i = 0; i < *count; ++i) {
    char* result = static_cast<char*>(results) + static_cast<size_t>(i) * kResultBytes;
    std::memset(result, 0x5a + i, kAlgorithmBytes);
    std::memcpy(result + kAlgorithmBytes, &kWorkspace, sizeof kWorkspace);
  }
  return 0;
}

// D = epilogue(alpha A B + beta C + bias), in column-major order.
STAND_IN_EXPORT int NAME(Matmul)(void* of, void* handle, const float* alpha, const void* a, void* a_layout,
                                 const void* b, void* b_layout, const float* beta, const void* c,
                                 void* c_layout, void* d, void* d_layout, const unsigned char* algorithm,
                                 void* workspace, size_t workspace_bytes, void* stream) {
  const char* mode = std::getenv("STAND_IN_BLAS_LT");
  const std::string how = mode != nullptr ? mode : "";
  const auto *la = static_cast<Layout*>(a_layout), *lb = static_cast<Layout*>(b_layout),
             *lc = static_cast<Layout*>(c_layout), *ld = static_cast<Layout*>(d_layout);
  const auto* product = static_cast<Product*>(handle);
  const bool across = product->transpose_a == kTransposed;
  if (how == "fails" || (how == "first" && algorithm[0] == 0x5a) || algorithm[0] < 0x5a ||
      algorithm[0] > 0x5b || workspace_bytes < kWorkspace || (across ? la->rows : la->columns) != lb->rows ||
      (across ? la->columns : la->rows) != ld->rows || lb->columns != ld->columns || la->batch != ld->batch ||
      lb->batch != ld->batch || lc->batch != ld->batch) {
    return kNotSupported;
  }
  if (refusals > 0 && refusals-- > 0) return kNotSupported;
  const std::optional<void*> flags = flags_for(of, stream);
  if (!flags) return kNotSupported;
  const bool wrong = (how == "large" && ld->rows * ld->columns * lb->rows == 256 * 256 * 256) ||
                     (how == "vectors" && (ld->rows == 1 || ld->columns == 1)) ||
                     (how == "odd" && lb->rows % 2 == 1);
  // The caller may destroy its descriptors before a captured graph runs.
  const Layout bias{ld->type, ld->rows, 1, static_cast<int64_t>(ld->rows), ld->batch, product->bias_step};
  std::vector<const void*> addresses = {workspace, *flags};
  for (int32_t i = 0; i < ld->batch; ++i) {
    addresses.insert(addresses.end(),
                     {la->at(static_cast<const char*>(a), i), lb->at(static_cast<const char*>(b), i),
                      lc->at(static_cast<const char*>(c), i), ld->at(static_cast<const char*>(d), i),
                      bias.at(static_cast<const char*>(product->bias), i)});
  }
  return stand_in::enqueue(
      stream, "a product with an epilogue", addresses,
      [=, scale = *alpha, add = *beta, a_of = *la, b_of = *lb, c_of = *lc, d_of = *ld, of = *product] {
        ++products;
        std::memset(workspace, 0xff, workspace_bytes);
        for (int32_t i = 0; i < d_of.batch; ++i) {
          const auto *ai = a_of.at(static_cast<const char*>(a), i),
                     *bi = b_of.at(static_cast<const char*>(b), i),
                     *ci = c_of.at(static_cast<const char*>(c), i),
                     *bias_i = bias.at(static_cast<const char*>(of.bias), i);
          for (uint64_t column = 0; column < d_of.columns; ++column) {
            for (uint64_t row = 0; row < d_of.rows; ++row) {
              float sum = 0;
              for (uint64_t k = 0; k < b_of.rows; ++k) {
                sum += (across ? a_of.read(ai, k, row) : a_of.read(ai, row, k)) * b_of.read(bi, k, column);
              }
              float y = scale * sum;
              if (add != 0) y += add * c_of.read(ci, row, column);
              if ((of.epilogue & 4) != 0 && how != "wrong") y += bias.read(bias_i, row, 0);
              if (wrong) y += 1;
              if ((of.epilogue & 2) != 0) y = std::max(y, 0.0f);
              if ((of.epilogue & 32) != 0) {
                y *= 0.5f * (1.0f + std::tanh(0.79788456f * (y + 0.044715f * y * y * y)));
              }
              d_of.write(d_of.at(static_cast<char*>(d), i), row, column, y);
            }
          }
        }
        return 0;
      });
}
