// cuBLASLt and hipBLASLt: the same functions with different names and constants. Their matrices are
// column-major, so the GEMM computed is Y^T = W^T X^T with the bias as a column.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "blocks/half.h"
#include "device/allocations.h"
#include "device/driver.h"
#include "device/libraries/libraries.h"

namespace graphopt::gpu {
namespace {

// The same values in both libraries.
enum LtEpilogue : uint32_t { kBias = 4, kReluBias = 6, kGeluBias = 36 };
constexpr int kMaxWorkspaceBytes = 1;  // attribute of a preference
constexpr size_t kMaxWorkspace = size_t{32} << 20;

struct CublasLt {
  static constexpr const char *kPrefix = "cublasLt", *kName = "cuBLASLt";
  static constexpr int kCompute32F = 68, kFloat = 0, kHalf = 2;
  static constexpr int kEpilogue = 7, kBiasPointer = 8, kTransposeA = 3;  // attributes of a matmul descriptor
  static constexpr int kBiasStep = 10;                                    // -1: not supported
  static constexpr int kTransposed = 1;
  static constexpr int kBatchCount = 5, kBatchStep = 6;  // attributes of a layout
  static constexpr int kBiasType = -1;                   // the type of Y if not set
  static constexpr size_t kAlgorithmBytes = 64;          // of a result, before the size of the workspace
  static constexpr size_t kResultBytes = 96;
};

// The values of ROCm 6 and 7. Older versions lack these types and return an error.
struct HipblasLt {
  static constexpr const char *kPrefix = "hipblasLt", *kName = "hipBLASLt";
  static constexpr int kCompute32F = 2, kFloat = 0, kHalf = 2;
  static constexpr int kEpilogue = 2, kBiasPointer = 3, kTransposeA = 0;
  static constexpr int kBiasStep = -1;
  static constexpr int kTransposed = 112;
  static constexpr int kBatchCount = 0, kBatchStep = 1;
  static constexpr int kBiasType = 4;
  static constexpr size_t kAlgorithmBytes = 24;
  static constexpr size_t kResultBytes = 56;
};

// Owns a descriptor of the library.
class Descriptor {
 public:
  explicit Descriptor(int (*destroy)(void*)) : destroy_(destroy) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  void** address() { return &handle_; }
  void* get() const { return handle_; }

 private:
  int (*destroy_)(void*);
  void* handle_ = nullptr;
};

template <class Api>
struct BlasLtFunctions {
  static inline const std::string kPrefix = Api::kPrefix;
  void* library;
  LibraryFunction<void**> create{library, kPrefix + "Create"};
  LibraryFunction<void*> destroy{library, kPrefix + "Destroy"};
  LibraryFunction<void**, int, int> create_matmul{library, kPrefix + "MatmulDescCreate"};
  LibraryFunction<void*> destroy_matmul{library, kPrefix + "MatmulDescDestroy"};
  LibraryFunction<void*, int, const void*, size_t> set_matmul{library, kPrefix + "MatmulDescSetAttribute"};
  LibraryFunction<void**, int, uint64_t, uint64_t, int64_t> create_layout{library,
                                                                          kPrefix + "MatrixLayoutCreate"};
  LibraryFunction<void*> destroy_layout{library, kPrefix + "MatrixLayoutDestroy"};
  LibraryFunction<void*, int, const void*, size_t> set_layout{library, kPrefix + "MatrixLayoutSetAttribute"};
  LibraryFunction<void**> create_preference{library, kPrefix + "MatmulPreferenceCreate"};
  LibraryFunction<void*> destroy_preference{library, kPrefix + "MatmulPreferenceDestroy"};
  LibraryFunction<void*, int, const void*, size_t> set_preference{library,
                                                                  kPrefix + "MatmulPreferenceSetAttribute"};
  LibraryFunction<void*, void*, void*, void*, void*, void*, void*, int, void*, int*> choose{
      library, kPrefix + "MatmulAlgoGetHeuristic"};
  LibraryFunction<void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
                  void*, void*, void*, const void*, void*, size_t, void*>
      multiply{library, kPrefix + "Matmul"};

  explicit BlasLtFunctions(void* handle) : library(handle) {}
};

// State shared by the handles of a library.
template <class Api>
struct BlasLtShared {
  Device& device;
  BlasLtFunctions<Api> call;
  bool supports_layers = Api::kBiasStep >= 0;  // false after a wrong result of several layers in one call
  std::mutex mutex;
  std::set<std::string> reported;  // problems whose refusal was reported

  BlasLtShared(Device& of, void* library) : device(of), call(library) {}
  // Reports a refusal, once for each problem.
  void refuse(const LinearProblem& p, int status) {
    const std::string what = "X [" + std::to_string(p.rows) + "," + std::to_string(p.K) + "], W [" +
                             std::to_string(p.K) + "," + std::to_string(p.N) + "]";
    const std::lock_guard<std::mutex> lock(mutex);
    if (!reported.insert(what).second) return;
    std::fprintf(stderr, "graphopt: %s refused %s, status %d: another algorithm or a built-in kernel runs\n",
                 Api::kName, what.c_str(), status);
  }
};

template <class Api>
class BlasLtHandle final : public BlasLt {
 public:
  BlasLtHandle(BlasLtShared<Api>& shared, void* stream)
      : shared_(shared), device_(shared.device), call_(shared.call), stream_(stream) {
    if (call_.create(&handle_) != 0) {
      handle_ = nullptr;
      throw std::runtime_error(std::string(Api::kName) + " can't be used");
    }
  }
  ~BlasLtHandle() override { call_.destroy(handle_); }

  void clear_problems() noexcept override { choices_.clear(); }

  std::optional<size_t> linear_workspace(const LinearProblem& p, bool half) override {
    if (p.layers > 1 && !shared_.supports_layers) return std::nullopt;
    const Heuristic& choice = choice_of(p, half);
    std::optional<size_t> most;
    for (size_t i = choice.first; i < choice.algorithms.size(); ++i) {
      most = std::max(most.value_or(0), bytes_of(choice.algorithms[i]));
    }
    return most;
  }

  bool linear(const LinearProblem& p, bool half, const void* x, const void* w, const void* b, const void* r,
              void* y, void* workspace) override {
    for (const void* pointer : {x, w, b, r, static_cast<const void*>(y)}) {
      if (reinterpret_cast<uintptr_t>(pointer) % kAlignment != 0) return false;
    }
    Descriptors d(call_);
    if (!describe(p, half, b, d)) return false;
    const float one = 1.0f, beta = r != nullptr ? 1.0f : 0.0f;
    Heuristic& choice = choice_of(p, half);
    // The library may refuse an algorithm at run time. The refusal is final for this problem on this stream.
    for (; choice.first < choice.algorithms.size(); ++choice.first) {
      const Algorithm& algorithm = choice.algorithms[choice.first];
      const int status = call_.multiply(handle_, d.matmul.get(), &one, w, d.weights.get(), x, d.rows.get(),
                                        &beta, r != nullptr ? r : y, d.result.get(), y, d.result.get(),
                                        algorithm.data(), workspace, bytes_of(algorithm), stream_);
      if (status == 0) return true;
      device_.clear_errors();
      if (device_.is_capturing(stream_)) return false;
      shared_.refuse(p, status);
    }
    return false;
  }

 private:
  // A result of the library: the algorithm, the bytes of its workspace, and unused members.
  struct alignas(8) Algorithm : std::array<unsigned char, Api::kResultBytes> {};
  static constexpr int kMaxAlgorithms = 8;
  struct Heuristic {
    std::vector<Algorithm> algorithms;  // best first
    size_t first = 0;                   // index of the first algorithm that was not refused
  };
  using Key =
      std::tuple<int64_t, int64_t, int64_t, bool, uint32_t, bool, bool, int64_t, int64_t, int64_t, int64_t>;

  static bool epilogue_of(ActivationKind kind, bool half, uint32_t& epilogue) {
    if (kind == ActivationKind::kNone)
      epilogue = kBias;
    else if (kind == ActivationKind::kRelu)
      epilogue = kReluBias;
    // Only in float16: the libraries do not document the accuracy of their tanh.
    else if (kind == ActivationKind::kGeluTanh && half)
      epilogue = kGeluBias;
    else
      return false;
    return true;
  }

  struct Descriptors {
    Descriptor matmul, weights, rows, result;
    explicit Descriptors(const BlasLtFunctions<Api>& call)
        : matmul(call.destroy_matmul.pointer()),
          weights(call.destroy_layout.pointer()),
          rows(call.destroy_layout.pointer()),
          result(call.destroy_layout.pointer()) {}
  };

  static size_t bytes_of(const Algorithm& algorithm) {
    size_t bytes = 0;
    std::memcpy(&bytes, algorithm.data() + Api::kAlgorithmBytes, sizeof bytes);
    return bytes;
  }

  // Returns false if the library does not support the problem.
  bool describe(const LinearProblem& p, bool half, const void* b, Descriptors& d) const {
    uint32_t epilogue = 0;
    if (!epilogue_of(p.act.kind, half, epilogue)) return false;
    const int type = half ? Api::kHalf : Api::kFloat;
    const auto layout = [&](Descriptor& layout, int64_t height, int64_t width, int64_t step) {
      const auto layers = static_cast<int32_t>(p.layers);
      return call_.create_layout(layout.address(), type, static_cast<uint64_t>(height),
                                 static_cast<uint64_t>(width), height) == 0 &&
             (layers == 1 || (call_.set_layout(layout.get(), Api::kBatchCount, &layers, sizeof layers) == 0 &&
                              call_.set_layout(layout.get(), Api::kBatchStep, &step, sizeof step) == 0));
    };
    const auto set = [&](int attribute, const auto& value) {
      return call_.set_matmul(d.matmul.get(), attribute, &value, sizeof value) == 0;
    };
    return call_.create_matmul(d.matmul.address(), Api::kCompute32F, Api::kFloat) == 0 &&
           set(Api::kEpilogue, epilogue) && set(Api::kBiasPointer, b) &&
           (Api::kBiasType < 0 || set(Api::kBiasType, int32_t{type})) &&
           (p.layers == 1 || set(Api::kBiasStep, p.b_step)) &&
           (!p.transposed || set(Api::kTransposeA, int32_t{Api::kTransposed})) &&
           layout(d.weights, p.transposed ? p.K : p.N, p.transposed ? p.N : p.K, p.w_step) &&
           layout(d.rows, p.K, p.rows, 0) && layout(d.result, p.N, p.rows, p.y_step);
  }

  // Returns the algorithms that the library proposes, which may be none.
  Heuristic& choice_of(const LinearProblem& p, bool half) {
    uint32_t epilogue = 0;
    const bool known = epilogue_of(p.act.kind, half, epilogue);
    auto& choice = choices_[{p.rows, p.K, p.N, half, known ? epilogue : 0, p.has_residual, p.transposed,
                             p.layers, p.w_step, p.b_step, p.y_step}];
    if (choice != nullptr) return *choice;
    choice = std::make_unique<Heuristic>();
    if (!known) return *choice;
    Descriptors d(call_);
    Descriptor preference(call_.destroy_preference.pointer());
    const uint64_t bytes = kMaxWorkspace;
    int count = 0;
    std::vector<Algorithm> found(kMaxAlgorithms);
    // The library's choice depends only on the alignment of this address.
    const void* const bias = reinterpret_cast<const void*>(kAlignment);
    if (describe(p, half, bias, d) && call_.create_preference(preference.address()) == 0 &&
        call_.set_preference(preference.get(), kMaxWorkspaceBytes, &bytes, sizeof bytes) == 0 &&
        call_.choose(handle_, d.matmul.get(), d.weights.get(), d.rows.get(), d.result.get(), d.result.get(),
                     preference.get(), kMaxAlgorithms, found.data(), &count) == 0) {
      for (int i = 0; i < count; ++i) {
        if (bytes_of(found[static_cast<size_t>(i)]) <= kMaxWorkspace) {
          choice->algorithms.push_back(found[static_cast<size_t>(i)]);
        }
      }
    }
    device_.clear_errors();
    return *choice;
  }

  BlasLtShared<Api>& shared_;
  Device& device_;
  const BlasLtFunctions<Api>& call_;
  void* stream_;
  void* handle_ = nullptr;
  std::map<Key, std::unique_ptr<Heuristic>> choices_;
};

// Checks the results of layers of small integers, which are exact in any order of summation.
template <class T>
void check_linear(BlasLt& library, Device& device, void* stream, LinearProblem p) {
  p.w_step = p.K * p.N;
  p.b_step = 2 * p.N;  // a multiple of 256 bytes
  p.y_step = p.rows * p.N;
  const auto filled = [](int64_t size, int step) {
    std::vector<T> values;
    for (int64_t i = 0; i < size; ++i) values.push_back(T(static_cast<float>(i * step % 5 - 2)));
    return values;
  };
  const std::vector<T> host[] = {filled(p.rows * p.K, 1), filled(p.layers * p.w_step, 3),
                                 filled(p.layers * p.b_step, 1), filled(p.y_step, 2)};
  std::vector<T> got(static_cast<size_t>(p.layers * p.y_step));
  std::vector<DeviceMemory> memory;
  const auto add = [&](size_t bytes) {
    return memory.emplace_back(allocate_owned(device, bytes, MemoryUse::kWorkspaces)).get();
  };
  void* inputs[4];
  for (int i = 0; i < 4; ++i) {
    inputs[i] = add(host[i].size() * sizeof(T));
    device.copy(inputs[i], host[i].data(), host[i].size() * sizeof(T), stream);
  }
  void* y = add(got.size() * sizeof(T));
  const std::optional<size_t> bytes = library.linear_workspace(p, sizeof(T) == 2);
  const bool ran = bytes && library.linear(p, sizeof(T) == 2, inputs[0], inputs[1], inputs[2],
                                           p.has_residual ? inputs[3] : nullptr, y, add(*bytes));
  device.copy(got.data(), y, got.size() * sizeof(T), stream);
  device.synchronize(stream);
  if (!ran) return;
  std::vector<float> values[4];
  for (int i = 0; i < 4; ++i) values[i].assign(host[i].begin(), host[i].end());
  const auto at = [&](int tensor, int64_t index) { return values[tensor][static_cast<size_t>(index)]; };
  for (int64_t i = 0; i < p.layers * p.y_step; ++i) {
    const int64_t layer = i / p.y_step, row = i % p.y_step / p.N, n = i % p.N;
    float want = at(2, layer * p.b_step + n) + (p.has_residual ? at(3, row * p.N + n) : 0.0f);
    for (int64_t k = 0; k < p.K; ++k) {
      want += at(0, row * p.K + k) * at(1, layer * p.w_step + (p.transposed ? n * p.K + k : k * p.N + n));
    }
    if (p.act.kind == ActivationKind::kRelu) want = std::max(want, 0.0f);
    if (p.act.kind == ActivationKind::kGeluTanh) {
      want *= 0.5f * (1.0f + std::tanh(0.79788456f * (want + 0.044715f * want * want * want)));
    }
    const float error = std::fabs(static_cast<float>(got[static_cast<size_t>(i)]) - want);
    if (!(error <= (p.act.kind == ActivationKind::kGeluTanh ? 0.01f * (1.0f + std::fabs(want)) : 0.0f))) {
      throw std::runtime_error("a GEMM with an epilogue gave wrong results");
    }
  }
}

template <class Api>
class OpenBlasLt final : public OpenLibrary<BlasLt> {
 public:
  OpenBlasLt(Device& device, const FoundLibrary& found) : shared_(device, found.file.handle) {
    const WorkStream stream(device);
    BlasLtHandle<Api> library(shared_, stream.get());
    LinearProblem p;
    p.rows = 16;
    p.K = 32;
    p.N = 64;
    const auto require = [&](ActivationKind kind, bool residual, bool transposed, int64_t layers) {
      p.act.kind = kind;
      p.has_residual = residual;
      p.transposed = transposed;
      p.layers = layers;
      check_linear<float>(library, device, stream.get(), p);
      check_linear<half>(library, device, stream.get(), p);
    };
    using A = ActivationKind;
    require(A::kNone, true, false, 1);
    require(A::kRelu, false, false, 1);
    require(A::kRelu, true, true, 1);
    require(A::kGeluTanh, false, false, 1);
    try {
      require(A::kNone, false, false, 3);
    } catch (const std::exception&) {
      shared_.supports_layers = false;
    }
    if (device.backend() != Backend::kHip) return;
    for (const auto& [M, N, K] : kCheckedSizes) {
      p.rows = M;
      p.N = N;
      p.K = K;
      require(A::kNone, true, false, 1);
    }
  }

  Device& device() const override { return shared_.device; }
  std::unique_ptr<BlasLt> create_handle(void* stream) override {
    return std::make_unique<BlasLtHandle<Api>>(shared_, stream);
  }

 private:
  BlasLtShared<Api> shared_;
};

}  // namespace

FoundLibrary find_cublaslt(const DeviceFacts& device, LibraryMode mode) {
  return find_vendor_library("cuBLASLt", device, mode,
                             {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"});
}

// On RDNA, hipBLASLt crashes in its heuristic or in the multiplication, or gives wrong results (ROCm's
// rocm-libraries, issues 4128, 5205, 5706, 8242, 9962). Without kernels for the architecture it finds no
// algorithm, or crashes, and fills stderr (tensile_host.cpp, TensileHost::initialize; TheRock's issue 6175,
// hipBLASLt's issue 831).
FoundLibrary find_hipblaslt(const DeviceFacts& device, LibraryMode mode) {
  if (device.arch.rfind("gfx9", 0) != 0 && mode == LibraryMode::kDefault) {
    FoundLibrary found;
    found.name = "hipBLASLt";
    found.problem = {"off", "hipBLASLt is not used on " + device.arch +
                                ", where it may crash; GRAPHOPT_LIBRARIES=hipblaslt=on enables it"};
    return found;
  }
  FoundLibrary found = find_vendor_library("hipBLASLt", device, mode,
                                           {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"});
  if (!found.problem.code.empty()) return found;
  std::string folder =
      tensile_folder(found.file.path, "HIPBLASLT_TENSILE_LIBPATH",
                     {"/../Tensile/library", "/hipblaslt/[0-9]*/library", "/hipblaslt/library"});
  const std::string file = "/TensileLibrary_lazy_" + device.arch + ".dat";
  for (const std::string& place : {folder + "/" + device.arch, folder}) {
    for (const char* packed : {"", ".zlib"}) {
      if (access((place + file + packed).c_str(), R_OK) == 0) return found;
    }
  }
  found.problem = no_tensile_kernels("hipBLASLt", file.substr(1), folder, device);
  return found;
}

std::unique_ptr<OpenLibrary<BlasLt>> open_cublaslt(Device& device, const FoundLibrary& found, LibraryMode) {
  return std::make_unique<OpenBlasLt<CublasLt>>(device, found);
}
std::unique_ptr<OpenLibrary<BlasLt>> open_hipblaslt(Device& device, const FoundLibrary& found, LibraryMode) {
  return std::make_unique<OpenBlasLt<HipblasLt>>(device, found);
}

}  // namespace graphopt::gpu
