// Finds compatible libraries of a GPU vendor where users install them.
//
// The search order:
//   1. libraries that the process has already loaded: two copies of a runtime would not recognise each other's streams
//   2. folders given by the caller
//   3. $ROCM_PATH/lib
//   4. ROCm from PyPI (_rocm_sdk_*/lib) and from PyTorch (torch/lib), in the site-packages of this library or of ONNX
//      Runtime
//   5. the search of the loader (LD_LIBRARY_PATH, our RUNPATH /opt/rocm/lib, ld.so.conf)
//   6. /opt/rocm*/core-*/lib, the folders of ROCm 7.14 and newer
//   7. /opt/rocm-*/lib, which some installations do not link to /opt/rocm
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace graphopt::gpu {

// The dynamic section of an ELF file.
struct DynamicSection {
  std::string soname;
  std::vector<std::string> needed;
};
// Returns nothing if the file is unreadable or not a 64-bit ELF file.
std::optional<DynamicSection> read_dynamic_section(const std::string& path);

struct LibrarySearch {
  std::vector<std::string> names;    // sonames, in order of preference; the name without a version last
  std::string what;                  // "the HIP runtime (libamdhip64)"
  std::vector<std::string> folders;  // searched first
  // Skip files that need another version of this library, for example "libamdhip64.so.7". Empty: accept any.
  std::string compatible_with;
  bool installed_first = false;  // try the loader with the first name before site-packages
};

struct SharedLibrary {
  void* handle = nullptr;
  std::string path;    // symbolic links resolved
  std::string soname;  // the soname that was found
};

// Throws NoRuntime with the failed attempts if no library is found.
SharedLibrary find_library(const LibrarySearch& search);

// Returns the HIP runtime of this process. Throws NoRuntime.
SharedLibrary hip_library();

// Returns the path of the file that contains a function or an object; empty if there is none.
std::string file_of(const void* address);
std::string folder_of(const std::string& path);

// Whether the versions in path a are lower than those in path b: rocm-7.2 is older than rocm-10.0.
bool is_older(const std::string& a, const std::string& b);
// Returns the paths that match a glob pattern after a folder, the oldest version first. The folder's name is escaped.
std::vector<std::string> matching(const std::string& folder, const char* pattern);

// Sets the location of ONNX Runtime from an address in its library. The provider libraries in the same folder
// show which HIP runtime it will load.
void set_onnxruntime(const void* address);
// Returns the soname of the HIP runtime that ONNX Runtime's ROCm provider needs; empty if there is no such
// provider.
std::string hip_runtime_of_onnxruntime();

}  // namespace graphopt::gpu
