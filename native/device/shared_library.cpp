#include "device/shared_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <glob.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>

#include "device/device.h"

namespace graphopt::gpu {
namespace {

std::string read_text(const std::vector<char>& strings, size_t offset) {
  if (offset >= strings.size()) return {};
  return {strings.data() + offset, strnlen(strings.data() + offset, strings.size() - offset)};
}

template <class T>
bool read(std::ifstream& file, uint64_t offset, T* to, size_t count) {
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(sizeof(T) * count));
  return static_cast<bool>(file);
}

std::string real_path(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return path;
  std::string result = resolved;
  std::free(resolved);
  return result;
}

struct OnnxRuntime {
  std::mutex mutex;
  std::string folder;
};
OnnxRuntime& onnxruntime() {
  static auto& instance = *new OnnxRuntime;
  return instance;
}

std::string onnxruntime_folder() {
  const std::lock_guard<std::mutex> lock(onnxruntime().mutex);
  return onnxruntime().folder;
}

// Returns the folders of ROCm from PyPI and from PyTorch in each known site-packages.
std::vector<std::string> python_folders() {
  static const int here = 0;
  std::vector<std::string> folders;
  // .../site-packages/graphopt/lib/libgraphopt.so, .../site-packages/onnxruntime/capi/...
  for (const std::string& folder : {folder_of(file_of(&here)), onnxruntime_folder()}) {
    if (folder.empty()) continue;
    const std::string packages = folder_of(folder_of(folder));
    for (const char* pattern : {"/_rocm_sdk_core/lib", "/_rocm_sdk_libraries*/lib", "/torch/lib"}) {
      for (std::string& found : matching(packages, pattern)) folders.push_back(std::move(found));
    }
  }
  return folders;
}

// Whether a file needs another version of `library`.
bool needs_other_version(const std::string& path, const std::string& library) {
  const auto section = library.empty() ? std::nullopt : read_dynamic_section(path);
  if (!section) return false;
  const std::string stem = library.substr(0, library.find(".so"));
  for (const std::string& needed : section->needed) {
    if (needed.rfind(stem + ".so", 0) == 0) return needed != library;
  }
  return false;
}

SharedLibrary opened(void* handle, const std::string& name) {
  link_map* map = nullptr;
  SharedLibrary library{handle, {}, name};
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) library.path = real_path(map->l_name);
  return library;
}

}  // namespace

bool is_older(const std::string& a, const std::string& b) { return strverscmp(a.c_str(), b.c_str()) < 0; }

std::vector<std::string> matching(const std::string& folder, const char* pattern) {
  std::string path;
  for (const char sign : folder) (path += '\\') += sign;
  path += pattern;
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(path.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  std::sort(paths.begin(), paths.end(), is_older);
  return paths;
}

std::optional<DynamicSection> read_dynamic_section(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!file || !read(file, 0, &header, 1) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr)) {
    return std::nullopt;
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!read(file, header.e_shoff, sections.data(), sections.size())) return std::nullopt;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNAMIC || section.sh_link >= sections.size()) continue;
    std::vector<Elf64_Dyn> entries(section.sh_size / sizeof(Elf64_Dyn));
    std::vector<char> strings(sections[section.sh_link].sh_size);
    if (!read(file, section.sh_offset, entries.data(), entries.size()) ||
        !read(file, sections[section.sh_link].sh_offset, strings.data(), strings.size())) {
      return std::nullopt;
    }
    DynamicSection result;
    for (const Elf64_Dyn& entry : entries) {
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_NEEDED) result.needed.push_back(read_text(strings, entry.d_un.d_val));
      if (entry.d_tag == DT_SONAME) result.soname = read_text(strings, entry.d_un.d_val);
    }
    return result;
  }
  return std::nullopt;
}

SharedLibrary find_library(const LibrarySearch& search) {
  for (const std::string& name : search.names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) return opened(handle, name);
  }
  std::string why;
  const auto open = [&why](const std::string& path, const std::string& name) -> std::optional<SharedLibrary> {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened(handle, name);
    why += std::string(why.empty() ? "" : "; ") + dlerror();
    return std::nullopt;
  };
  const auto look_in = [&](const std::vector<std::string>& folders) -> std::optional<SharedLibrary> {
    for (const std::string& folder : folders) {
      for (const std::string& name : search.names) {
        const std::string path = folder + "/" + name;
        if (access(path.c_str(), F_OK) != 0) continue;
        if (needs_other_version(path, search.compatible_with)) {
          why +=
              (why.empty() ? "" : "; ") + path + ": needs another HIP runtime than " + search.compatible_with;
          continue;
        }
        if (auto found = open(path, name)) return found;
      }
    }
    return std::nullopt;
  };
  std::vector<std::string> first = search.folders;
  const char* rocm = std::getenv("ROCM_PATH");
  if (rocm != nullptr && *rocm != '\0') first.push_back(std::string(rocm) + "/lib");
  if (auto found = look_in(first)) return *found;
  const std::string& best = search.names.front();
  if (search.installed_first) {
    if (auto found = open(best, best)) return *found;
  }
  if (auto found = look_in(python_folders())) return *found;
  for (const std::string& name : search.names) {
    if (auto found = open(name, name)) return *found;
  }
  for (const char* pattern : {"/rocm*/core-*/lib", "/rocm-*/lib"}) {
    std::vector<std::string> versions = matching("/opt", pattern);
    std::reverse(versions.begin(), versions.end());  // newest first
    if (auto found = look_in(versions)) return *found;
  }
  throw NoRuntime(search.what + " was not found: " + why);
}

std::string file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? real_path(info.dli_fname) : std::string();
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

void set_onnxruntime(const void* address) {
  const std::string folder = folder_of(file_of(address));
  const std::lock_guard<std::mutex> lock(onnxruntime().mutex);
  onnxruntime().folder = folder;
}

std::string hip_runtime_of_onnxruntime() {
  const std::string folder = onnxruntime_folder();
  if (folder.empty()) return {};
  const auto section = read_dynamic_section(folder + "/libonnxruntime_providers_rocm.so");
  if (!section) return {};
  for (const std::string& needed : section->needed) {
    if (needed.rfind("libamdhip64.so", 0) == 0) return needed;
  }
  return {};
}

}  // namespace graphopt::gpu
