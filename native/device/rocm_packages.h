// Names of the packages that contain ROCm's libraries. They depend on how ROCm was installed, which the path of the
// HIP runtime shows: AMD's packages before and since 7.14, a distribution's packages, or the wheels.
#pragma once

#include <string>

namespace graphopt::gpu {

// Returns the command that installs packages on this system: "sudo apt install NAMES". On an unknown distribution:
// "install NAMES". `root`: the folder with etc/os-release.
std::string install_packages(const std::string& names, const std::string& root);

// Returns the step that installs ROCm. arch: the GPU's architecture; "" if unknown.
std::string install_rocm(const std::string& arch);

// Returns the command that adds a library to the installed ROCm; "" if no package is known.
//   library: "rocBLAS", "hipBLASLt" or "MIOpen"
//   runtime: path of the HIP runtime, with links resolved
//   arch:    the GPU's architecture, for which newer packages contain the kernels
std::string install_library(const std::string& library, const std::string& runtime, const std::string& arch,
                            const std::string& root);

// Whether ROCm was installed from packages with kernels for one architecture each (ROCm 7.14 and newer).
bool has_packages_by_arch(const std::string& runtime);

}  // namespace graphopt::gpu
