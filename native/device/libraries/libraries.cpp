#include "device/libraries/libraries.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <type_traits>

#include "device/amd_system.h"
#include "device/rocm_packages.h"

namespace graphopt::gpu {
namespace {

constexpr const char* kNames[] = {"rocblas", "hipblaslt", "miopen", "cublas", "cublaslt", "cudnn"};
constexpr std::pair<const char*, LibraryMode> kModes[] = {{"off", LibraryMode::kOff},
                                                          {"on", LibraryMode::kOn},
                                                          {"build", LibraryMode::kBuild},
                                                          {"find", LibraryMode::kFind}};

template <class Library>
struct LibraryCache {
  struct Slot {
    std::unique_ptr<OpenLibrary<Library>> library;  // null: unavailable, for the reason `why`
    std::string why;
  };
  std::mutex mutex;
  std::map<std::pair<const Device*, LibraryMode>, Slot> slots;

  using Find = FoundLibrary(const DeviceFacts&, LibraryMode);
  using Open = std::unique_ptr<OpenLibrary<Library>>(Device&, const FoundLibrary&, LibraryMode);

  LibraryOrReason<Library> get(Device& device, LibraryMode mode, Find* find, Open* open) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto [known, fresh] = slots.try_emplace({&device, mode});
    Slot& slot = known->second;
    if (fresh) fill(slot, device, mode, find, open);
    return {slot.library.get(), slot.why.c_str()};
  }

  static void fill(Slot& slot, Device& device, LibraryMode mode, Find* find, Open* open) {
    FoundLibrary found;
    found.name = "a library";
    bool user_can_fix = true;
    try {
      found = find(device.facts(), mode);
      slot.why = found.problem.text;
      if (slot.why.empty()) {
        const NoCaptures none;
        slot.library = open(device, found, mode);
      } else {
        // No warning for cuBLASLt and hipBLASLt: cuBLAS or rocBLAS with one more launch, or a built-in GEMM, replaces
        // them.
        user_can_fix = found.problem.code != "off" && !std::is_same_v<Library, BlasLt>;
      }
    } catch (const std::exception& e) {
      slot.why = found.name + ": " + e.what();
    }
    device.clear_errors();
    if (slot.library == nullptr && user_can_fix) {
      const std::string& remedy = found.problem.remedy;
      std::fprintf(stderr, "graphopt: falling back to built-in kernels: %s%s%s\n", slot.why.c_str(),
                   remedy.empty() ? "" : "; to fix it: ", remedy.c_str());
    }
  }
};

// Never freed: sessions may outlive static objects.
template <class Library>
LibraryCache<Library>& library_cache() {
  static auto& instance = *new LibraryCache<Library>;
  return instance;
}

}  // namespace

LibraryChoices::LibraryChoices(const std::string& option) {
  const char* everywhere = std::getenv("GRAPHOPT_LIBRARIES");
  read(everywhere != nullptr ? everywhere : "", "GRAPHOPT_LIBRARIES");
  read(option, "option libraries");
}

void LibraryChoices::read(const std::string& list, const char* where) {
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals),
                      given = equals == std::string::npos ? "" : item.substr(equals + 1);
    const auto mode = std::find_if(std::begin(kModes), std::end(kModes),
                                   [&](const auto& known) { return given == known.first; });
    const auto library =
        std::find_if(std::begin(kNames), std::end(kNames), [&](const char* known) { return name == known; });
    const bool builds = mode != std::end(kModes) && mode->second >= LibraryMode::kBuild;
    if (library == std::end(kNames) || mode == std::end(kModes) || (builds && name != "miopen")) {
      std::string known;
      for (const char* one : kNames) known += (known.empty() ? "" : ", ") + std::string(one);
      throw std::runtime_error(std::string(where) + ": '" + item + "' is none of " + known +
                               " with =off or =on, or miopen=build or miopen=find");
    }
    modes_[library - std::begin(kNames)] = mode->second;
  }
}

FoundLibrary find_vendor_library(const std::string& name, const DeviceFacts& device, LibraryMode mode,
                                 std::vector<std::string> sonames) {
  FoundLibrary found;
  found.name = name;
  if (mode == LibraryMode::kOff) {
    found.problem = {"off", name + " is switched off, by the option libraries or by GRAPHOPT_LIBRARIES"};
    return found;
  }
  LibrarySearch search;
  search.names = std::move(sonames);
  search.what = name;
  search.what += " (" + search.names.back().substr(0, search.names.back().find('.')) + ")";
  std::string runtime_path;
  // AMD's library must be compatible with the HIP runtime in use, whose folder is searched first.
  if (name.rfind("cu", 0) != 0) {
    const SharedLibrary runtime = hip_library();
    runtime_path = runtime.path;
    search.folders = matching(folder_of(folder_of(folder_of(runtime.path))), "/_rocm_sdk_libraries*/lib");
    search.folders.insert(search.folders.begin(), folder_of(runtime.path));
    const auto section = read_dynamic_section(runtime.path);
    if (section) search.compatible_with = section->soname;
  }
  try {
    found.file = find_library(search);
    // Installed files have names such as libMIOpen.so.1.0.70002.
    const size_t dot = found.file.path.find(".so.");
    if (dot != std::string::npos) found.version = found.file.path.substr(dot + 4);
  } catch (const NoRuntime& e) {
    found.problem = {"missing", e.what(), install_library(name, runtime_path, device.arch, system_root())};
  }
  return found;
}

std::string tensile_folder(const std::string& library, const char* environment,
                           std::initializer_list<const char*> places) {
  if (const char* given = std::getenv(environment)) return given;
  const std::string folder = folder_of(library);
  for (const char* place : places) {
    const std::vector<std::string> found = matching(folder, place);
    if (!found.empty()) return found.back();
  }
  return folder + *(places.end() - 1);
}

Diagnosis no_tensile_kernels(const std::string& name, const std::string& file, const std::string& folder,
                             const DeviceFacts& device) {
  const std::string runtime = hip_library().path;
  return {"no_kernels", name + " has no kernels for " + device.arch + " (no " + file + " in " + folder + ")",
          has_packages_by_arch(runtime) ? install_library(name, runtime, device.arch, system_root()) : ""};
}

namespace {

// The libraries of one kind, for each driver.
template <class Library>
struct Vendors {
  VendorLibrary hip, cuda;
  typename LibraryCache<Library>::Find *find_hip, *find_cuda;
  typename LibraryCache<Library>::Open *open_hip, *open_cuda;

  LibraryOrReason<Library> get(Device& device, const LibraryChoices* given) const {
    static const LibraryChoices of_environment("");
    const LibraryChoices& choices = given != nullptr ? *given : of_environment;
    switch (device.backend()) {
      case Backend::kHip:
        return library_cache<Library>().get(device, choices.of(hip), find_hip, open_hip);
      case Backend::kCuda:
        return library_cache<Library>().get(device, choices.of(cuda), find_cuda, open_cuda);
      case Backend::kHost:
        break;
    }
    return {nullptr, "there is none for host memory"};
  }
};

using L = VendorLibrary;

}  // namespace

LibraryOrReason<Blas> blas(Device& device, const LibraryChoices* choices) {
  constexpr Vendors<Blas> kVendors = {L::kRocblas, L::kCublas,   find_rocblas,
                                      find_cublas, open_rocblas, open_cublas};
  return kVendors.get(device, choices);
}

LibraryOrReason<Dnn> dnn(Device& device, const LibraryChoices* choices) {
  constexpr Vendors<Dnn> kVendors = {L::kMiopen, L::kCudnn, find_miopen, find_cudnn, open_miopen, open_cudnn};
  return kVendors.get(device, choices);
}

LibraryOrReason<BlasLt> blas_lt(Device& device, const LibraryChoices* choices) {
  constexpr Vendors<BlasLt> kVendors = {L::kHipblaslt, L::kCublaslt,   find_hipblaslt,
                                        find_cublaslt, open_hipblaslt, open_cublaslt};
  return kVendors.get(device, choices);
}

size_t finish_loading() {
  size_t count = 0;
  for (const auto& context : StreamContext::all()) count += context->finish_loading();
  return count;
}

namespace {
std::atomic<uint64_t> generation{0};
}  // namespace
uint64_t library_generation() { return generation; }
void raise_library_generation() { ++generation; }

}  // namespace graphopt::gpu
