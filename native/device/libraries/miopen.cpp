// MIOpen: convolutions on AMD GPUs.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "device/allocations.h"
#include "device/libraries/dnn.h"

namespace graphopt::gpu {
namespace {

struct Miopen {
  static constexpr const char* kName = "MIOpen";
  static constexpr bool kLoadsInBackground = true;
  static constexpr bool kHasRelu = false;
  struct Convolution : ConvolutionDescriptors {
    uint64_t solution = 0;
  };
  // miopenConvSolution_t
  struct Solution {
    float milliseconds;
    size_t workspace;
    uint64_t id;
    int algorithm;
  };
  using Find = LibraryFunction<void*, void*, void*, void*, void*, size_t, size_t*, Solution*>;
  using Compile = LibraryFunction<void*, void*, void*, void*, void*, uint64_t>;
  using Run = LibraryFunction<void*, void*, const void*, void*, const void*, void*, void*, void*, void*,
                              size_t, uint64_t>;

  void* library;
  LibraryFunction<void**, void*> create_{library, "miopenCreateWithStream"};
  LibraryFunction<void*> destroy_{library, "miopenDestroy"};
  LibraryFunction<void**> create_tensor{library, "miopenCreateTensorDescriptor"};
  LibraryFunction<void*, int, int, const int*, const int*> set_tensor{library, "miopenSetTensorDescriptor"};
  LibraryFunction<void*> destroy_tensor{library, "miopenDestroyTensorDescriptor"};
  LibraryFunction<void**> create_conv{library, "miopenCreateConvolutionDescriptor"};
  LibraryFunction<void*, int, const int*, const int*, const int*, int> set_conv{
      library, "miopenInitConvolutionNdDescriptor"};
  LibraryFunction<void*, int> set_groups{library, "miopenSetConvolutionGroupCount"};
  LibraryFunction<void*, int, int> set_attribute{library, "miopenSetConvolutionAttribute"};
  LibraryFunction<void*> destroy_conv{library, "miopenDestroyConvolutionDescriptor"};
  Find find{library, "miopenConvolutionForwardGetSolution"};  // w, x, conv, y
  Compile compile{library, "miopenConvolutionForwardCompileSolution"};
  Run forward{library, "miopenConvolutionForwardImmediate"};
  Find find_backward{library, "miopenConvolutionBackwardDataGetSolution"};  // dy, w, conv, dx
  Compile compile_backward{library, "miopenConvolutionBackwardDataCompileSolution"};
  Run backward{library, "miopenConvolutionBackwardDataImmediate"};
  LibraryFunction<void*, const void*, void*, const void*, const void*, void*, void*> add{
      library, "miopenConvolutionForwardBias"};
  // miopenConvAlgoPerf_t
  struct Performance {
    int algorithm;
    float milliseconds;
    size_t workspace;
  };
  using WorkspaceSize = LibraryFunction<void*, void*, void*, void*, void*, size_t*>;
  using Measure = LibraryFunction<void*, void*, const void*, void*, const void*, void*, void*, void*, int,
                                  int*, Performance*, void*, size_t, bool>;
  WorkspaceSize workspace_size{library, "miopenConvolutionForwardGetWorkSpaceSize"};  // w, x, conv, y
  WorkspaceSize workspace_size_backward{library,
                                        "miopenConvolutionBackwardDataGetWorkSpaceSize"};  // dy, w, conv, dx
  Measure measure{library, "miopenFindConvolutionForwardAlgorithm"};                       // x, w, conv, y
  Measure measure_backward{library, "miopenFindConvolutionBackwardDataAlgorithm"};         // dy, w, conv, dx
  bool measures_;

  Miopen(void* handle, LibraryMode mode) : library(handle), measures_(mode == LibraryMode::kFind) {}

  OwnedObject create(void* stream) const {
    void* handle = nullptr;
    create_.check(&handle, stream);
    return {handle, {destroy_.pointer()}};
  }

  // MIOpen launches kernels with hipExtModuleLaunchKernel. After measurements (miopenFind...) it polls the
  // stream, which ends a capture (rocm-libraries issue 12121).
  bool can_be_captured(const Device& device) const {
    return device.graph_rules().captures_ext_launches && !measures_;
  }

  // Reads MIOpen's databases. If none has the kernel, MIOpen compiles it.
  std::optional<Convolution> prepare(void* handle, const ConvolutionProblem& p, bool half,
                                     Device& device) const {
    constexpr int kHalf = 0, kFloat = 1, kConvolution = 0;
    const int type = half ? kHalf : kFloat;
    const Arrays a(p);
    Convolution c;
    c.transposed = p.transposed;
    describe_tensors(*this, type, a, p.channels_last, c);
    c.w = describe_tensor(*this, type, a.w, a.dims(), p.channels_last);
    c.conv = make(create_conv, destroy_conv);
    set_conv.check(c.conv.get(), a.axes, a.pad.data(), a.stride.data(), a.dilation.data(), kConvolution);
    set_groups.check(c.conv.get(), to_i31(p.groups));
    // By default, MIOpen computes some convolutions on gfx90a with the precision of bfloat16 instead of float16.
    // Also by default, its algorithms may add in a different order in each run.
    constexpr int kFp16AlternativeAttribute = 0, kDeterministicAttribute = 1;
    set_attribute.check(c.conv.get(), kFp16AlternativeAttribute, 0);
    set_attribute.check(c.conv.get(), kDeterministicAttribute, 1);
    // MIOpen stores the measurements in the user's database and returns the best algorithm first.
    if (measures_) measure_all(c, a, half ? 2 : 4, device);
    Solution best = {};
    size_t count = 0;
    void *const of_x = c.x.get(), *const of_w = c.w.get(), *const of_conv = c.conv.get(),
                *const of_y = c.y.get();
    const int status = p.transposed ? find_backward(handle, of_x, of_w, of_conv, of_y, 1, &count, &best)
                                    : find(handle, of_w, of_x, of_conv, of_y, 1, &count, &best);
    if (status != 0 || count == 0) return std::nullopt;
    c.solution = best.id;
    c.workspace = best.workspace;
    check(c.transposed ? compile_backward(handle, of_x, of_w, of_conv, of_y, c.solution)
                       : compile(handle, of_w, of_x, of_conv, of_y, c.solution),
          "CompileSolution");
    return c;
  }

  // Compiles and runs every algorithm of the library, with separate memory and on a separate stream, because
  // the session's stream may be captured. If no algorithm runs, the later query for the best one fails.
  void measure_all(const Convolution& c, const Arrays& a, size_t element, Device& device) const {
    const auto bytes = [&](const Arrays::Dims& shape) {
      size_t size = element;
      for (int d = 0; d < a.dims(); ++d) size *= static_cast<size_t>(shape[static_cast<size_t>(d)]);
      return (size + 255) / 256 * 256;
    };
    const size_t x = bytes(a.x), w = bytes(a.w), y = bytes(a.y);
    void *const of_x = c.x.get(), *const of_w = c.w.get(), *const of_conv = c.conv.get(),
                *const of_y = c.y.get();
    void* stream = device.create_stream();
    OwnedObject handle;
    size_t workspace = 0;
    try {
      handle = create(stream);
      check(c.transposed ? workspace_size_backward(handle.get(), of_x, of_w, of_conv, of_y, &workspace)
                         : workspace_size(handle.get(), of_w, of_x, of_conv, of_y, &workspace),
            "GetWorkSpaceSize");
      const DeviceMemory memory = allocate_owned(device, x + w + y + workspace, MemoryUse::kWorkspaces);
      char* at = static_cast<char*>(memory.get());
      Performance found = {};
      int count = 0;
      (c.transposed ? measure_backward : measure)(handle.get(), of_x, at, of_w, at + x, of_conv, of_y,
                                                  at + x + w, 1, &count, &found, at + x + w + y, workspace,
                                                  false);
      device.synchronize(stream);
    } catch (const std::exception&) {  // not enough memory: the library's own order is used
      device.clear_errors();
    }
    handle.reset();
    device.destroy_stream(stream);
  }

  void run(void* handle, const Convolution& c, const void* x, const void* w, const void* bias, const void*,
           void* y, void* workspace) const {
    const float one = 1, zero = 0;
    if (c.transposed) {
      backward.check(handle, c.x.get(), x, c.w.get(), w, c.conv.get(), c.y.get(), y, workspace, c.workspace,
                     c.solution);
    } else {
      forward.check(handle, c.w.get(), w, c.x.get(), x, c.conv.get(), c.y.get(), y, workspace, c.workspace,
                    c.solution);
    }
    if (bias != nullptr) add.check(handle, &one, c.bias.get(), bias, &zero, c.flat_y.get(), y);
  }
};

// Returns whether MIOpen's precompiled kernels for the device are installed, from packages such as
// miopen-hip-gfx942kdb. Most RDNA architectures have none. The name of a file has the architecture, or the
// architecture and the number of multiprocessors that the runtime reports, in hexadecimal above 64 (MIOpen's
// src/binary_cache.cpp, GetDb; include/miopen/handle.hpp, GetDbBasename). Devices with XNACK have separate files
// (target_properties.cpp, InitDbId).
bool has_kernel_database(const std::string& library, const DeviceFacts& device) {
  const char* given =
      std::getenv("MIOPEN_SYSTEM_DB_PATH");  // an empty value counts as not set (src/db_path.cpp.in)
  const std::string folder = given != nullptr && *given != '\0'
                                 ? std::string(given)
                                 : folder_of(folder_of(library)) + "/share/miopen/db";
  const bool xnack = device.features.find(":xnack+") != std::string::npos;
  const std::string stem = folder + "/" + device.arch + (xnack ? "_xnack" : "");
  const auto processors = static_cast<unsigned>(device.multiprocessors);
  char count[16];
  if (processors <= 64) {
    std::snprintf(count, sizeof count, "_%u", processors);
  } else {
    std::snprintf(count, sizeof count, "%x", processors);
  }
  return access((stem + count + ".kdb").c_str(), F_OK) == 0 || access((stem + ".kdb").c_str(), F_OK) == 0;
}

}  // namespace

// By default, MIOpen is used only if it has precompiled kernels.
FoundLibrary find_miopen(const DeviceFacts& device, LibraryMode mode) {
  FoundLibrary found = find_vendor_library("MIOpen", device, mode, {"libMIOpen.so.1", "libMIOpen.so"});
  if (found.problem.code.empty() && mode < LibraryMode::kBuild &&
      !has_kernel_database(found.file.path, device)) {
    found.problem = {"no_kernels", "MIOpen would have to compile its kernels for " + device.arch +
                                       " (no package with compiled kernels for " + device.arch + " with " +
                                       std::to_string(device.multiprocessors) +
                                       " multiprocessors is installed); with GRAPHOPT_LIBRARIES=miopen=build "
                                       "it compiles them in the background while sessions run"};
  }
  return found;
}

std::unique_ptr<OpenLibrary<Dnn>> open_miopen(Device& device, const FoundLibrary& found, LibraryMode mode) {
  return std::make_unique<OpenDnn<Miopen>>(device, found, mode);
}

}  // namespace graphopt::gpu
