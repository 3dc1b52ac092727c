#include "device/rocm_packages.h"

#include <fstream>
#include <sstream>

namespace graphopt::gpu {
namespace {

// The index of AMD's wheels (TheRock, "ROCm Python Packaging").
constexpr const char* kIndex = "https://stable.repo.amd.com/rocm/whl-next/";

// The names of a library's package. Source: transition guide of ROCm 7.14 (amdrocm-*); packages of Debian, Ubuntu
// 26.04 and Fedora 44.
struct Names {
  const char *library, *amd, *amd_by_arch, *debian, *fedora;
};
constexpr Names kNames[] = {
    {"rocBLAS", "rocblas", "amdrocm-blas", "librocblas-dev", "rocblas"},
    {"hipBLASLt", "hipblaslt", "amdrocm-blas", "libhipblaslt-dev", "hipblaslt"},
    {"MIOpen", "miopen-hip", "amdrocm-dnn", "libmiopen-dev", "miopen"},
};

struct Manager {
  const char *distribution, *install;
};
constexpr Manager kManagers[] = {{"debian", "apt install"},  {"ubuntu", "apt install"},
                                 {"fedora", "dnf install"},  {"rhel", "dnf install"},
                                 {"suse", "zypper install"}, {"sles", "zypper install"},
                                 {"arch", "pacman -S"}};

// Returns the package manager's command; "" if unknown. os-release names the distribution in ID, and the distributions
// on which it is based in ID_LIKE.
std::string manager_of(const std::string& root) {
  std::ifstream file(root + "/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = line.substr(0, equals);
    if (key != "ID" && key != "ID_LIKE") continue;
    std::string value = line.substr(equals + 1);
    for (char& c : value) {
      if (c == '"' || c == '\'') c = ' ';
    }
    std::istringstream words(value);
    for (std::string word; words >> word;) {
      for (const Manager& known : kManagers) {
        if (word == known.distribution) return known.install;
      }
    }
  }
  return "";
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

bool is_wheel(const std::string& runtime) { return contains(runtime, "/_rocm_sdk_core/"); }

// Returns "10.0" for /opt/rocm/core-10.0/lib/libamdhip64.so.7; "" for other folders.
std::string version_of_core(const std::string& runtime) {
  const size_t core = runtime.find("/core-");
  if (core == std::string::npos) return "";
  const size_t begin = core + 6;
  return runtime.substr(begin, runtime.find('/', begin) - begin);
}

std::string install_wheel(const std::string& arch) {
  return std::string("pip install --extra-index-url ") + kIndex + " 'rocm[libraries" +
         (arch.empty() ? "" : ",device-" + arch) + "]'";
}

}  // namespace

std::string install_packages(const std::string& names, const std::string& root) {
  const std::string manager = manager_of(root);
  return (manager.empty() ? "install" : "sudo " + manager) + " " + names;
}

std::string install_rocm(const std::string& arch) {
  return "install ROCm, https://rocm.docs.amd.com, or its wheels in this Python environment: " +
         install_wheel(arch);
}

bool has_packages_by_arch(const std::string& runtime) {
  return is_wheel(runtime) || !version_of_core(runtime).empty();
}

std::string install_library(const std::string& library, const std::string& runtime, const std::string& arch,
                            const std::string& root) {
  for (const Names& names : kNames) {
    if (library != names.library) continue;
    if (is_wheel(runtime)) return install_wheel(arch);
    if (const std::string version = version_of_core(runtime); !version.empty()) {
      return install_packages(names.amd_by_arch + version + "-" + arch, root);
    }
    if (contains(runtime, "/opt/rocm")) return install_packages(names.amd, root);
    if (!contains(runtime, "/usr/")) return "";  // PyTorch's own copies, or a build from source
    const std::string manager = manager_of(root);
    if (manager == "apt install") return install_packages(names.debian, root);
    if (manager == "dnf install") return install_packages(names.fedora, root);
    return install_packages(names.amd, root);
  }
  return "";
}

}  // namespace graphopt::gpu
