// Matrix multiplications and convolutions by vendor libraries, loaded with dlopen: cuBLAS, cuBLASLt and
// cuDNN; rocBLAS, hipBLASLt and MIOpen. If one is missing, unusable on the device or refuses a problem,
// built-in kernels run (operators/matmul/matmul/op.h, operators/conv/convolution/op.h).
//
// A failure during a capture of the stream (Capture) does not exclude the library from later calls.
//
// float32 GEMMs use float32 throughout, not TF32. float16 GEMMs accumulate in float32. Results are equal in
// each run: no library may use atomic additions.
//
// A library is opened, and thereby loaded, before the first run of a session that has a node for it. Small
// GEMMs then check the results of a BLAS library. MIOpen's kernels are specific to a problem and are loaded
// in the background.
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

// A library for a device: its file, and the reason if it is not used on the device.
struct FoundLibrary {
  std::string name;  // "rocBLAS"
  SharedLibrary file;
  std::string version;
  Diagnosis problem;
};

// The selection of a library.
enum class LibraryMode : uint8_t {
  kDefault,
  kOff,
  kOn,     // used even if it is off by default
  kBuild,  // MIOpen only: on, and it may compile its kernels
  kFind    // MIOpen only: on, and it compiles and measures all its algorithms for a problem
};
enum class VendorLibrary : uint8_t { kRocblas, kHipblaslt, kMiopen, kCublas, kCublaslt, kCudnn };

// The selections for all libraries, from lists NAME=CHOICE,... with the names above in lower case. The
// provider's option `libraries` takes precedence over GRAPHOPT_LIBRARIES in the environment.
class LibraryChoices {
 public:
  // Throws std::runtime_error if the list or the environment has an unknown library or choice.
  explicit LibraryChoices(const std::string& option);
  LibraryMode of(VendorLibrary library) const { return modes_[static_cast<size_t>(library)]; }

 private:
  void read(const std::string& list, const char* where);
  LibraryMode modes_[6] = {};
};

FoundLibrary find_cublas(const DeviceFacts& device, LibraryMode mode);
FoundLibrary find_cublaslt(const DeviceFacts& device, LibraryMode mode);
FoundLibrary find_cudnn(const DeviceFacts& device, LibraryMode mode);
FoundLibrary find_rocblas(const DeviceFacts& device, LibraryMode mode);
FoundLibrary find_hipblaslt(const DeviceFacts& device, LibraryMode mode);
FoundLibrary find_miopen(const DeviceFacts& device, LibraryMode mode);

// Handles on one stream (StreamContext). Each must be called by one thread at a time. Methods throw
// std::runtime_error.

// cuBLAS, rocBLAS.
class Blas : public VendorHandle {
 public:
  // Returns false if the library refuses the GEMM, with nothing enqueued.
  virtual bool gemm(const GemmProblem& p, bool half, const void* a, const void* b, void* y) = 0;
};

// cuBLASLt, hipBLASLt: a GEMM with its epilogue in one call.
class BlasLt : public VendorHandle {
 public:
  // Required alignment of the tensors of `linear`.
  static constexpr size_t kAlignment = 256;
  // Returns the bytes of scratch memory that linear needs, or nothing if the library has no algorithm.
  virtual std::optional<size_t> linear_workspace(const LinearProblem& p, bool half) = 0;
  // Returns false if the library failed, with nothing enqueued. `r` is null without a residual.
  virtual bool linear(const LinearProblem& p, bool half, const void* x, const void* w, const void* b,
                      const void* r, void* y, void* workspace) = 0;
};

// cuDNN, MIOpen.
class Dnn : public VendorHandle {
 public:
  // Returns the bytes of scratch memory that conv needs. Returns nothing, and sets `why`, if the library
  // cannot run the problem, or cannot run it yet.
  virtual std::optional<size_t> conv_workspace(const ConvolutionProblem& p, bool half, const char*& why) = 0;
  // Whether conv fuses a Relu, and a residual before the Relu. It fuses no other activation. A problem
  // without Relu has no residual and, in channels-last layout, no bias.
  virtual bool has_relu() const = 0;
  // `bias` and `residual` may be null. The padding must be equal at both ends. Returns false if the library
  // refuses the call after all; y is then undefined.
  virtual bool conv(const ConvolutionProblem& p, bool half, const void* x, const void* w, const void* bias,
                    const void* residual, void* y, void* workspace) = 0;
};

// A library that was opened for a device: its functions, and the state that its handles share.
template <class Handle>
class OpenLibrary {
 public:
  virtual ~OpenLibrary() = default;
  virtual Device& device() const = 0;
  // Throws std::runtime_error.
  virtual std::unique_ptr<Handle> create_handle(void* stream) = 0;
};

// Open a library that a function above has found.
std::unique_ptr<OpenLibrary<Blas>> open_cublas(Device& device, const FoundLibrary& found, LibraryMode mode);
std::unique_ptr<OpenLibrary<Blas>> open_rocblas(Device& device, const FoundLibrary& found, LibraryMode mode);
std::unique_ptr<OpenLibrary<Dnn>> open_cudnn(Device& device, const FoundLibrary& found, LibraryMode mode);
std::unique_ptr<OpenLibrary<Dnn>> open_miopen(Device& device, const FoundLibrary& found, LibraryMode mode);
std::unique_ptr<OpenLibrary<BlasLt>> open_cublaslt(Device& device, const FoundLibrary& found,
                                                   LibraryMode mode);
std::unique_ptr<OpenLibrary<BlasLt>> open_hipblaslt(Device& device, const FoundLibrary& found,
                                                    LibraryMode mode);

// A library's handle on a stream. If it is null, `why` is the reason, valid as long as the stream.
template <class Handle>
struct HandleOrReason {
  Handle* handle;
  const char* why;

  const char* why_not() const { return handle == nullptr ? why : nullptr; }
};

// A library of a device, opened at the first call. If it is null, `why` is the reason, valid until the
// process ends. It is written to stderr once if the user can solve the problem.
template <class Handle>
struct LibraryOrReason {
  OpenLibrary<Handle>* library;
  const char* why;

  // Returns the library's handle on a stream. The first plan that needs the handle creates it, before any
  // capture.
  HandleOrReason<Handle> on(void* stream) const {
    if (library == nullptr) return {nullptr, why};
    const auto found = StreamContext::of(library->device(), stream)->handle(library, [this, stream] {
      return library->create_handle(stream);
    });
    return {static_cast<Handle*>(found.handle), found.why};
  }
};
// If `choices` is null, only GRAPHOPT_LIBRARIES is read.
LibraryOrReason<Blas> blas(Device& device, const LibraryChoices* choices);
LibraryOrReason<Dnn> dnn(Device& device, const LibraryChoices* choices);
LibraryOrReason<BlasLt> blas_lt(Device& device, const LibraryChoices* choices);
// Waits until the libraries have loaded everything in the background. Returns the number of problems whose
// kernels were loaded since the last call.
size_t finish_loading();
// Increases after a library has loaded something: a new plan may then find a better implementation.
uint64_t library_generation();
void raise_library_generation();

// Searches for a library of AMD or NVIDIA. The result has a problem if the library is off or missing.
FoundLibrary find_vendor_library(const std::string& name, const DeviceFacts& device, LibraryMode mode,
                                 std::vector<std::string> sonames);
// M, N, K of the GEMMs that AMD's libraries must compute correctly before they are used. Float results were
// wrong only at 256^3 on gfx1151 (rocm-libraries issue 11530); float16 results were wrong with a single row
// or column (legacy-rocm-build issue 5640).
constexpr int64_t kCheckedSizes[][3] = {{256, 256, 256}, {1, 64, 64}, {64, 1, 64}, {32, 48, 67}};

// Returns the folder of rocBLAS's or hipBLASLt's kernels. This is the value of the environment variable
// `environment`, if set. Otherwise it is the first existing folder of `places`, which are glob patterns relative to
// the library's folder; of several matches, the one with the newest version. If there is no match, it is the last of
// `places`.
std::string tensile_folder(const std::string& library, const char* environment,
                           std::initializer_list<const char*> places);
// Returns the diagnosis for rocBLAS or hipBLASLt if its folder lacks the kernel file of the device's
// architecture.
Diagnosis no_tensile_kernels(const std::string& name, const std::string& file, const std::string& folder,
                             const DeviceFacts& device);

}  // namespace graphopt::gpu
