#include "device/amd_system.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>

#include "device/rocm_packages.h"
#include "device/shared_library.h"

namespace graphopt::gpu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDocker =
    "docker run --device /dev/kfd --device /dev/dri --group-add $(getent group render | cut -d: -f3) "
    "--group-add video ...";

// Returns the command that installs AMD's driver; its package has the same name in AMD's repositories for all package
// managers.
std::string install_driver() { return install_packages("amdgpu-dkms", system_root()) + "; sudo reboot"; }

std::string new_driver() { return "a newer kernel, or AMD's own driver: " + install_driver(); }

bool starts_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

// Returns the content of a file, or nothing if it is not readable: a driver may allow open() and refuse read().
std::optional<std::string> read_if_allowed(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::read(file, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<size_t>(count));
  close(file);
  if (count < 0) return std::nullopt;
  while (!text.empty() && std::strchr(" \t\r\n", text.back()) != nullptr) text.pop_back();
  return text;
}

std::string read(const fs::path& path) { return read_if_allowed(path).value_or(""); }

bool path_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Returns the entries of a folder with names that begin with `start`, sorted.
std::vector<fs::path> entries(const fs::path& folder, const std::string& start = "") {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (starts_with(it->path().filename().string(), start)) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Opens a device node and returns the error, or "". The mode of the node is not enough: access also depends on the
// rules of a container and on the driver.
std::string error_of_opening(const fs::path& node) {
  const int file = open(node.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return std::strerror(errno);
  close(file);
  return "";
}

std::string group_of(const fs::path& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return "";
  const group* known = getgrgid(status.st_gid);
  return known != nullptr ? known->gr_name : std::to_string(status.st_gid);
}

// Returns the kernel driver bound to a PCI device.
std::string driver_of(const fs::path& device) {
  std::error_code error;
  const fs::path driver = fs::canonical(device / "driver", error);
  return error ? "" : driver.filename().string();
}

// Returns a property from the `properties` file of a node in the compute driver's topology; 0 if the file lacks it.
int property(const std::string& properties, const std::string& wanted) {
  std::istringstream words(properties);
  for (std::string name, value; words >> name >> value;) {
    if (name == wanted) return std::atoi(value.c_str());
  }
  return 0;
}

// The nodes of CPUs have simd_count 0.
bool is_gpu(const std::string& properties) { return property(properties, "simd_count") > 0; }

// Returns the architecture of a node, "gfx90a" for the gfx_target_version 90010: 10000 major + 100 minor + stepping.
std::string arch_of(const std::string& properties) {
  const int version = property(properties, "gfx_target_version");
  if (version == 0) return "";
  char name[32];
  std::snprintf(name, sizeof name, "gfx%d%x%x", version / 10000, version / 100 % 100, version % 100);
  return name;
}

// Returns NAME=VALUE of the environment variable that hides GPUs. HIP reads CUDA's variable if its own is not set.
std::string hiding_variable() {
  for (const char* name : {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return std::string(name) + "=" + value;
  }
  // ROCr, the runtime below HIP, also hides all GPUs if its variable is empty.
  const char* name = "ROCR_VISIBLE_DEVICES";
  const char* value = std::getenv(name);
  return value != nullptr ? std::string(name) + "=" + value : "";
}

std::string joined(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& one : all) text += (text.empty() ? "" : ", ") + one;
  return text;
}

Diagnosis refused(const std::string& node, const std::string& why, const std::string& group,
                  const AmdSystem& system) {
  const std::string text = node + " can't be opened by this user";
  if (why != std::strerror(EACCES) && why != std::strerror(EPERM))
    return {"node_fails", text + ": " + why,
            "sudo dmesg | grep -e kfd -e amdgpu shows the reason; " + new_driver()};
  if (system.container)
    return {"no_permission", text + " in this container: " + why,
            "docker run --group-add $(stat -c %g " + node + ") ... (here group " +
                (group.empty() ? "render" : group) + ")"};
  const bool named = !group.empty() && group != "root" && group.find_first_not_of("0123456789") != group.npos;
  const std::string groups = !named ? "render,video" : group == "video" ? group : group + ",video";
  return {"no_permission", text + ": " + why,
          "sudo usermod -a -G " + groups + " $LOGNAME; then log in again"};
}

// The remedy is to install ROCm, or to add its folder to the loader's search path if ROCm is installed elsewhere.
Diagnosis no_runtime(const std::string& text, const AmdSystem& system) {
  if (system.rocm.empty()) return {"no_runtime", text, install_rocm(system.arch)};
  const std::string& folder = system.rocm.back();
  return {"not_found", "the loader does not find the HIP runtime in " + folder + ": " + text,
          "echo " + folder + " | sudo tee /etc/ld.so.conf.d/rocm.conf; sudo ldconfig (or ROCM_PATH=" +
              fs::path(folder).parent_path().string() + ")"};
}

Diagnosis no_device(const std::string& text, const AmdSystem& system) {
  if (system.wsl) {
    if (!system.dxg)
      return {"no_dxg", "this WSL has no /dev/dxg", "wsl --update in Windows, with AMD's driver for WSL"};
    return {"no_device_in_wsl", text + ": on WSL, ROCm finds GPUs through librocdxg only",
            "install librocdxg, https://github.com/ROCm/librocdxg; export HSA_ENABLE_DXG_DETECTION=1"};
  }
  if (!system.kfd) {
    if (system.container) return {"not_in_container", "this container was not given /dev/kfd", kDocker};
    return {"no_driver",
            "the kernel has no compute driver for the " + std::to_string(system.gpus) +
                " AMD GPUs on the PCI bus" +
                (system.unbound.empty() ? "" : " (" + joined(system.unbound) + ")") +
                ": there is no /dev/kfd",
            "sudo modprobe amdgpu (AMD's own: " + install_driver() + ")"};
  }
  if (!system.kfd_refusal.empty()) return refused("/dev/kfd", system.kfd_refusal, system.kfd_group, system);
  if (const std::string hiding = hiding_variable(); !hiding.empty())
    return {"hidden", text + "; " + hiding + " hides GPUs", "unset " + hiding.substr(0, hiding.find('='))};
  if (system.container && system.render_nodes.empty())
    return {"not_in_container", text + ": this container was not given /dev/dri", kDocker};
  if (!system.render_refusal.empty())
    return refused(system.render_nodes.front(), system.render_refusal, system.render_group, system);
  if (!system.unbound.empty())
    return {"old_driver",
            text + ": the kernel driver amdgpu is not bound to " + joined(system.unbound) +
                ": it is too old for the GPU, lacks its firmware, or is configured to ignore the GPU",
            "sudo dmesg | grep amdgpu shows the reason; " + new_driver()};
  if (system.kfd_gpus == 0 && !system.unreadable.empty())
    return {"not_in_container",
            text + ": the " + std::to_string(system.unreadable.size()) +
                " GPUs of this machine are assigned to other containers",
            kDocker};
  if (system.kfd_gpus == 0)
    return {"not_in_kfd",
            text +
                ": the compute driver leaves out every GPU here, for instance where the slot has no PCIe "
                "atomics",
            "sudo dmesg | grep kfd shows the reason; " + new_driver()};
  return {"no_device", text, ""};
}

}  // namespace

std::string& system_root() {
  static auto& root = *new std::string("/");
  return root;
}

AmdSystem inspect_amd_system(const std::string& root_folder) {
  const fs::path root(root_folder);
  AmdSystem system;
  for (const fs::path& device : entries(root / "sys/bus/pci/devices")) {
    const std::string kind = read(device / "class");  // displays, and accelerators without a display
    if (read(device / "vendor") != "0x1002" || (!starts_with(kind, "0x03") && !starts_with(kind, "0x12")))
      continue;
    ++system.gpus;
    const std::string driver = driver_of(device);
    if (driver != "amdgpu")
      system.unbound.push_back(device.filename().string() + ": " + (driver.empty() ? "no driver" : driver));
  }
  const fs::path kfd = root / "dev/kfd";
  system.kfd = path_exists(kfd);
  if (system.kfd) {
    system.kfd_group = group_of(kfd);
    system.kfd_refusal = error_of_opening(kfd);
  }
  bool opens = false;
  for (const fs::path& node : entries(root / "dev/dri", "renderD")) {
    system.render_nodes.push_back(node.string());
    const std::string why = error_of_opening(node);
    opens = opens || why.empty();
    if (system.render_refusal.empty()) system.render_refusal = why;
  }
  if (opens) system.render_refusal.clear();  // a container may have access to some of several GPUs
  if (!system.render_nodes.empty()) system.render_group = group_of(system.render_nodes.front());
  for (const fs::path& node : entries(root / "sys/class/kfd/kfd/topology/nodes")) {
    const fs::path properties = node / "properties";
    if (!path_exists(properties)) continue;
    // The driver may refuse to read a file although its mode allows reading.
    const std::optional<std::string> content = read_if_allowed(properties);
    if (!content) system.unreadable.push_back(properties.string());
    if (!content || content->empty()) continue;
    system.kfd_gpus = std::max(system.kfd_gpus, 0) + (is_gpu(*content) ? 1 : 0);
    if (is_gpu(*content) && system.arch.empty()) system.arch = arch_of(*content);
  }
  system.dxg = path_exists(root / "dev/dxg");
  std::string kernel = read(root / "proc/sys/kernel/osrelease");
  std::transform(kernel.begin(), kernel.end(), kernel.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  system.wsl = kernel.find("microsoft") != kernel.npos;
  system.container = path_exists(root / ".dockerenv") || path_exists(root / "run/.containerenv") ||
                     std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
  std::vector<fs::path> folders;
  for (const fs::path& rocm : entries(root / "opt", "rocm")) {
    folders.push_back(rocm);
    // From ROCm 7.14 on each version has its own folder, and only the meta package creates /opt/rocm/lib.
    for (const fs::path& core : entries(rocm, "core-")) folders.push_back(core);
  }
  if (const char* given = std::getenv("ROCM_PATH"); given != nullptr && *given != '\0')
    folders.emplace_back(given);
  for (const fs::path& folder : folders) {
    std::error_code error;
    const fs::path library = fs::canonical(folder / "lib", error);
    if (!error && !entries(library, "libamdhip64.so").empty()) system.rocm.push_back(library.string());
  }
  std::sort(system.rocm.begin(), system.rocm.end(), is_older);
  system.rocm.erase(std::unique(system.rocm.begin(), system.rocm.end()), system.rocm.end());
  return system;
}

Diagnosis explain_missing_gpu(const Diagnosis& reported, const AmdSystem& system) {
  if (reported.code != "no_runtime" && reported.code != "no_device") return reported;
  if (!system.may_have_gpu() && !system.wsl)
    return {"no_gpu", "this machine has no AMD GPU: there is none on its PCI bus", ""};
  return reported.code == "no_runtime" ? no_runtime(reported.text, system) : no_device(reported.text, system);
}

}  // namespace graphopt::gpu
