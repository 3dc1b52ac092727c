#include "device/report.h"

#include <cstdio>
#include <sstream>
#include <vector>

#include "device/amd_system.h"
#include "device/architectures.h"
#include "device/devices.h"
#include "device/libraries/libraries.h"

namespace graphopt::gpu {
namespace {

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    char escaped[8];
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      json += escaped;
    } else {
      json += c;
    }
  }
  return json + "\"";
}

template <class Items, class Write>
std::string list(const Items& items, const Write& write) {
  std::string json = "[";
  bool first = true;
  for (const auto& item : items) {
    json += (first ? "" : ", ") + write(item);
    first = false;
  }
  return json + "]";
}

std::string to_json(const Diagnosis& p) {
  if (p.code.empty()) return "null";
  return "{\"code\": " + quoted(p.code) + ", \"text\": " + quoted(p.text) +
         ", \"remedy\": " + quoted(p.remedy) + "}";
}

std::string to_json(const FoundLibrary& library) {
  return "{\"name\": " + quoted(library.name) + ", \"path\": " + quoted(library.file.path) +
         ", \"version\": " + quoted(library.version) + ", \"problem\": " + to_json(library.problem) + "}";
}

std::vector<FoundLibrary> libraries_of(Backend backend, const DeviceFacts& device) {
  using L = VendorLibrary;
  struct Entry {
    Backend backend;
    const char* name;
    L library;
    FoundLibrary (*find)(const DeviceFacts&, LibraryMode);
  };
  constexpr Entry kAll[] = {
      {Backend::kHip, "rocBLAS", L::kRocblas, find_rocblas},
      {Backend::kHip, "hipBLASLt", L::kHipblaslt, find_hipblaslt},
      {Backend::kHip, "MIOpen", L::kMiopen, find_miopen},
      {Backend::kCuda, "cuBLAS", L::kCublas, find_cublas},
      {Backend::kCuda, "cuBLASLt", L::kCublaslt, find_cublaslt},
      {Backend::kCuda, "cuDNN", L::kCudnn, find_cudnn},
  };
  std::vector<FoundLibrary> found;
  for (const auto& [driver, name, library, find] : kAll) {
    if (driver != backend) continue;
    try {
      found.push_back(find(device, LibraryChoices("").of(library)));
    } catch (const std::exception& e) {
      FoundLibrary& failed = found.emplace_back();
      failed.name = name;
      failed.problem = {"failed", e.what()};
    }
  }
  return found;
}

// Returns the peak rate in operations per second; for float16, the rate of the matrix units if the device has
// them.
double peak(const DeviceFacts& f, bool half) {
  const Architecture* known = find_architecture(f.arch);
  if (known == nullptr) return 0;
  const int flops = half && known->matrix_flops > 0 ? known->matrix_flops : known->flops;
  return flops * f.clock_hz * f.compute_units;
}

std::string to_json(Backend backend, const FoundDevice& found) {
  const DeviceFacts& f = found.facts;
  std::ostringstream json;
  json << "{\"number\": " << (found.in_provider < 0 ? "null" : std::to_string(found.in_provider))
       << ", \"name\": " << quoted(f.name) << ", \"arch\": " << quoted(f.arch)
       << ", \"code\": " << quoted(f.code) << ", \"bus_id\": " << quoted(f.bus_id)
       << ", \"memory\": " << f.memory << ", \"integrated\": " << (f.integrated ? "true" : "false")
       << ", \"compute_units\": " << f.compute_units << ", \"xcds\": " << f.xcds << ", \"wave\": " << f.wave
       << ", \"bytes_per_second\": " << f.bytes_per_second << ", \"float32_flops\": " << peak(f, false)
       << ", \"float16_flops\": " << peak(f, true) << ", \"driver\": " << quoted(f.driver)
       << ", \"problem\": " << to_json(found.problem) << ", \"libraries\": "
       << list(found.problem.code.empty() ? libraries_of(backend, f) : std::vector<FoundLibrary>(),
               [](const FoundLibrary& library) { return to_json(library); })
       << "}";
  return json.str();
}

}  // namespace

std::string describe_devices() {
  std::vector<std::string> archs;
  std::istringstream names(architectures(""));
  for (std::string name; names >> name;) archs.push_back(name);
  const AmdSystem system = inspect_amd_system();
  const auto route = [&](const std::pair<Backend, DetectedDriver>& entry) {
    const auto& [backend, detected] = entry;
    const char* name = backend == Backend::kHip ? "hip" : backend == Backend::kCuda ? "cuda" : "host";
    const std::string needed = backend == Backend::kHip ? hip_runtime_of_onnxruntime() : "";
    return std::string("{\"route\": ") + quoted(name) +
           ", \"runtime\": {\"path\": " + quoted(detected.library) +
           ", \"version\": " + quoted(detected.version) + ", \"needed\": " + quoted(needed) +
           "}, \"problem\": " +
           to_json(backend == Backend::kHip ? explain_missing_gpu(detected.problem, system)
                                            : detected.problem) +
           ", \"devices\": " +
           list(detected.devices, [backend = backend](const FoundDevice& d) { return to_json(backend, d); }) +
           "}";
  };
  return "{\"format\": 1, \"code\": " + list(archs, quoted) +
         ", \"amd\": {\"seen\": " + (system.gpus > 0 || system.kfd ? "true" : "false") +
         ", \"dxg\": " + (system.dxg ? "true" : "false") +
         ", \"unreadable\": " + list(system.unreadable, quoted) + ", \"rocm\": " + list(system.rocm, quoted) +
         "}, \"routes\": " + list(all_devices(), route) + "}";
}

}  // namespace graphopt::gpu
