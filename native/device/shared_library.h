// Finding the libraries of a GPU's vendor: where people have them, and those that fit together.
//
// In this order: what the process has loaded already, since two copies of a runtime would not know each
// other's streams; folders that the caller names; $ROCM_PATH/lib; ROCm from PyPI (_rocm_sdk_*/lib) and
// PyTorch's (torch/lib) in the site-packages where this library or ONNX Runtime lies; the loader's own search
// (LD_LIBRARY_PATH, our RUNPATH /opt/rocm/lib, ld.so.conf); /opt/rocm*/core-*/lib, where ROCm 7.14 and newer are.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace graphopt::gpu {

// What the dynamic section of an ELF file says.
struct DynamicSection {
  std::string soname;
  std::vector<std::string> needed;
};
// Nothing when the file can't be read or is no ELF file of 64 bits.
std::optional<DynamicSection> read_dynamic_section(const std::string& path);

struct LibrarySearch {
  std::vector<std::string> names;    // sonames, best first; the name without a version last
  std::string what;                  // "the HIP runtime (libamdhip64)"
  std::vector<std::string> folders;  // to look in first
  // A file that needs another version of this library is passed over: "libamdhip64.so.7". Empty: any.
  std::string beside;
  bool installed_first = false;  // the best name, before site-packages
};

struct SharedLibrary {
  void* handle = nullptr;
  std::string path;    // with links resolved
  std::string soname;  // by which it was found
};

// Throws NoRuntime, with what was tried, when there is none.
SharedLibrary find_library(const LibrarySearch& search);

// The HIP runtime of this process. Throws NoRuntime.
SharedLibrary hip_library();

// The file that holds a function or an object; empty when it is in none.
std::string file_of(const void* address);
std::string folder_of(const std::string& path);

// ONNX Runtime, by an address in it. Of its files beside it we learn which HIP runtime it will load.
void set_onnxruntime(const void* address);
// The soname of the HIP runtime that ONNX Runtime's ROCm provider needs; empty when there is no such
// provider.
std::string hip_runtime_of_onnxruntime();

}  // namespace graphopt::gpu
