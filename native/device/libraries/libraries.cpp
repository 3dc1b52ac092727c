#include "device/libraries/libraries.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <type_traits>

namespace graphopt::gpu {
namespace {

constexpr const char* kNames[] = {"rocblas", "hipblaslt", "miopen", "cublas", "cublaslt", "cudnn"};

template <class Library>
struct Opened {
  std::mutex mutex;
  std::map<const Device*, std::unique_ptr<Library>> libraries;  // null: there is none

  template <class Open>
  Library* get(Device& device, FoundLibrary (*find)(const DeviceFacts&), Open&& open) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto known = libraries.find(&device);
    if (known != libraries.end()) return known->second.get();
    auto& slot = libraries[&device];
    std::string name = "a library";
    try {
      const FoundLibrary found = find(device.facts());
      name = found.name;
      if (found.problem.code.empty()) {
        slot = open(device, found);
      } else if (found.problem.code != "off" && !std::is_same_v<Library, BlasLt>) {
        // Two launches of our own do what cuBLASLt and hipBLASLt do: that these are not there is no news.
        say(found.problem.text);
      }
    } catch (const std::exception& e) {
      say(name + ": " + e.what());
    }
    device.forget_errors();
    return slot.get();
  }

  static void say(const std::string& why) {
    std::fprintf(stderr, "graphopt: slower kernels of our own take its place: %s\n", why.c_str());
  }

  void forget(const Device& device, void* stream) noexcept {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = libraries.find(&device);
    if (found != libraries.end() && found->second != nullptr) found->second->forget(stream);
  }
};

// Never freed: sessions may outlive static objects.
Opened<Blas>& opened_blas() {
  static auto& all = *new Opened<Blas>;
  return all;
}
Opened<Dnn>& opened_dnn() {
  static auto& all = *new Opened<Dnn>;
  return all;
}

Opened<BlasLt>& opened_blas_lt() {
  static auto& all = *new Opened<BlasLt>;
  return all;
}

}  // namespace

std::string library_choice(const std::string& name) {
  const char* value = std::getenv("GRAPHOPT_LIBRARIES");
  std::istringstream list(value != nullptr ? value : "");
  std::string choice;
  for (std::string item; std::getline(list, item, ',');) {
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals),
                      given = equals == std::string::npos ? "" : item.substr(equals + 1);
    const bool known = std::find(std::begin(kNames), std::end(kNames), key) != std::end(kNames);
    if (!known || !(given == "off" || given == "on" || (given == "build" && key == "miopen"))) {
      throw std::runtime_error(
          "GRAPHOPT_LIBRARIES: '" + item +
          "' is none of rocblas, hipblaslt, miopen, cublas, cublaslt, cudnn with =off or =on, "
          "or miopen=build");
    }
    if (key == name) choice = given;
  }
  return choice;
}

FoundLibrary find_vendor_library(const std::string& name, std::vector<std::string> sonames) {
  FoundLibrary found;
  found.name = name;
  std::string key = name;
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::tolower(c); });
  if (library_choice(key) == "off") {
    found.problem = {"off", name + " is switched off by GRAPHOPT_LIBRARIES"};
    return found;
  }
  LibrarySearch search;
  search.names = std::move(sonames);
  search.what = name;
  search.what += " (" + search.names.back().substr(0, search.names.back().find('.')) + ")";
  if (name.rfind("cu", 0) != 0) {  // beside the HIP runtime that is in use, and made for it
    const SharedLibrary runtime = hip_library();
    search.folders = {folder_of(runtime.path)};
    const auto section = read_dynamic_section(runtime.path);
    if (section) search.beside = section->soname;
  }
  try {
    found.file = find_library(search);
    // Installed files are called libMIOpen.so.1.0.70002.
    const size_t dot = found.file.path.find(".so.");
    if (dot != std::string::npos) found.version = found.file.path.substr(dot + 4);
  } catch (const NoRuntime& e) {
    found.problem = {"missing", e.what()};
  }
  return found;
}

Blas* blas(Device& device) {
  switch (device.backend()) {
    case Backend::kHip:
      return opened_blas().get(device, find_rocblas, open_rocblas);
    case Backend::kCuda:
      return opened_blas().get(device, find_cublas, open_cublas);
    case Backend::kHost:
      break;
  }
  return nullptr;
}

Dnn* dnn(Device& device) {
  switch (device.backend()) {
    case Backend::kHip:
      return opened_dnn().get(device, find_miopen, open_miopen);
    case Backend::kCuda:
      return opened_dnn().get(device, find_cudnn, open_cudnn);
    case Backend::kHost:
      break;
  }
  return nullptr;
}

BlasLt* blas_lt(Device& device) {
  switch (device.backend()) {
    case Backend::kHip:
      return opened_blas_lt().get(device, find_hipblaslt, open_hipblaslt);
    case Backend::kCuda:
      return opened_blas_lt().get(device, find_cublaslt, open_cublaslt);
    case Backend::kHost:
      break;
  }
  return nullptr;
}

size_t finish_loading() {
  std::vector<Dnn*> all;
  {
    const std::lock_guard<std::mutex> lock(opened_dnn().mutex);
    for (const auto& [device, library] : opened_dnn().libraries) {
      if (library != nullptr) all.push_back(library.get());
    }
  }
  size_t count = 0;
  for (Dnn* library : all) count += library->finish_loading();
  return count;
}

namespace {
std::atomic<uint64_t> generation{0};
}  // namespace
uint64_t library_generation() { return generation; }
void raise_library_generation() { ++generation; }

void forget_stream(const Device& device, void* stream) noexcept {
  opened_blas().forget(device, stream);
  opened_dnn().forget(device, stream);
}

}  // namespace graphopt::gpu
