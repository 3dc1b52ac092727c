// The library distinguishes the reasons why ROCm shows no GPU, and gives the fix for each.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "device/amd_system.h"
#include "device/rocm_packages.h"
#include "device/shared_library.h"
#include "testing.h"

namespace graphopt::test {
namespace {

namespace fs = std::filesystem;
using gpu::AmdSystem;
using gpu::Diagnosis;
using gpu::explain_missing_gpu;
using gpu::inspect_amd_system;

const Diagnosis kNone = {"no_device", "the runtime shows none"};
const Diagnosis kNoRuntime = {"no_runtime", "libamdhip64 is nowhere"};
constexpr const char* kDenied = "Permission denied";

// Describes a system with one GPU and everything present, except possibly the runtime.
AmdSystem desktop() {
  AmdSystem system;
  system.gpus = system.kfd_gpus = 1;
  system.kfd = true;
  system.kfd_group = system.render_group = "render";
  system.render_nodes = {"/dev/dri/renderD128"};
  return system;
}

template <class Change>
AmdSystem with(Change change, AmdSystem system = desktop()) {
  change(system);
  return system;
}

// An environment variable of this process that is set for the lifetime of the object.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

// A folder that replaces "/", with these files. A text of nullptr creates a folder, which no user, not even
// root, can open as a file.
using Files = std::map<std::string, const char*>;
class Folder {
 public:
  explicit Folder(const Files& files) {
    char name[] = "/tmp/graphopt-system-XXXXXX";
    CHECK(mkdtemp(name) != nullptr);
    path_ = name;
    for (const auto& [file, text] : files) {
      const fs::path whole = path_ / file;
      fs::create_directories(text == nullptr ? whole : whole.parent_path());
      if (text != nullptr) std::ofstream(whole) << text;
    }
  }
  ~Folder() { fs::remove_all(path_); }
  operator std::string() const { return path_.string(); }
  std::string operator/(const char* file) const { return (path_ / file).string(); }

 private:
  fs::path path_;
};

TEST_CASE("why there is no amd gpu") {
  for (const char* name : {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
    unsetenv(name);
  struct Case {
    Diagnosis found;
    AmdSystem system;
    const char *code, *remedy;  // remedy: a part of its text; "": there is none
  };
  const auto gpus = [](int n) { return with([n](AmdSystem& s) { s.gpus = n; }, AmdSystem()); };
  const std::vector<std::string> unbound = {"0000:03:00.0: no driver"};
  const Case cases[] = {
      {kNoRuntime, {}, "no_gpu", ""},
      {kNone, {}, "no_gpu", ""},
      {kNone, gpus(2), "no_driver", "sudo modprobe amdgpu"},
      {kNone, with([&](AmdSystem& s) { s.unbound = unbound; }, gpus(1)), "no_driver", "modprobe"},
      {kNone, with([](AmdSystem& s) { s.container = true; }, gpus(2)), "not_in_container",
       "docker run --device /dev/kfd"},
      {kNone, with([](AmdSystem& s) { s.wsl = true; }, {}), "no_dxg", "wsl --update"},
      {kNone, with([](AmdSystem& s) { s.wsl = s.dxg = true; }, {}), "no_device_in_wsl",
       "HSA_ENABLE_DXG_DETECTION=1"},
      {kNoRuntime, with([](AmdSystem& s) { s.wsl = s.dxg = true; }, {}), "no_runtime", "install ROCm"},
      {kNone, with([](AmdSystem& s) { s.kfd_refusal = kDenied; }), "no_permission",
       "usermod -a -G render,video $LOGNAME"},
      {kNone, with([](AmdSystem& s) {
         s.kfd_refusal = kDenied;
         s.kfd_group = "993";  // has no name here
       }),
       "no_permission", "-G render,video "},
      {kNone, with([](AmdSystem& s) {
         s.kfd_refusal = "Operation not permitted";
         s.container = true;
       }),
       "no_permission", "docker run --group-add $(stat -c %g /dev/kfd) ... (here group render)"},
      {kNone, with([](AmdSystem& s) { s.kfd_refusal = "Cannot allocate memory"; }), "node_fails", "dmesg"},
      {kNone, with([](AmdSystem& s) {
         s.render_refusal = kDenied;
         s.render_group = "video";
       }),
       "no_permission", "sudo usermod -a -G video $LOGNAME"},
      {kNone, with([](AmdSystem& s) {
         s.render_refusal = kDenied;
         s.container = true;
       }),
       "no_permission", "--group-add $(stat -c %g /dev/dri/renderD128)"},
      {kNone, with([&](AmdSystem& s) { s.unbound = unbound; }), "old_driver", "amdgpu-dkms"},
      {kNone, with([](AmdSystem& s) { s.kfd_gpus = 0; }), "not_in_kfd", "dmesg"},
      {kNone, with([](AmdSystem& s) {
         s.kfd_gpus = 0;
         s.unreadable = {"1"};
       }),
       "not_in_container", "docker run --device"},
      {kNone, with([](AmdSystem& s) {
         s.container = true;
         s.render_nodes.clear();
       }),
       "not_in_container", "--device /dev/dri"},
      {kNone, with([](AmdSystem& s) { s.kfd_gpus = -1; }), "no_device", ""},
      {kNone, desktop(), "no_device", ""},
      {kNoRuntime, desktop(), "no_runtime", "install ROCm"},
      {kNoRuntime, with([](AmdSystem& s) { s.rocm = {"/opt/rocm-7.1.0/lib"}; }), "not_found",
       "echo /opt/rocm-7.1.0/lib | sudo tee"},
      {{"broken_runtime", "it lacks hipMalloc"}, desktop(), "broken_runtime", ""},
  };
  for (const Case& c : cases) {
    const Diagnosis why = explain_missing_gpu(c.found, c.system);
    const std::string said = why.code + ": " + why.text + " -> " + why.remedy;
    CHECK_MESSAGE(why.code == c.code, said);
    CHECK_MESSAGE((*c.remedy == '\0' ? why.remedy.empty() : why.remedy.find(c.remedy) != std::string::npos),
                  said);
    CHECK_MESSAGE(!why.text.empty(), said);
  }
}

TEST_CASE("devices that are hidden") {
  const auto code = [] { return explain_missing_gpu(kNone, desktop()).code; };
  {
    const Variable hidden("HIP_VISIBLE_DEVICES", "7");
    const Diagnosis why = explain_missing_gpu(kNone, desktop());
    CHECK(why.code == "hidden");
    CHECK(why.remedy == "unset HIP_VISIBLE_DEVICES");
    CHECK(why.text.find("HIP_VISIBLE_DEVICES=7") != std::string::npos);
  }
  {
    const Variable empty("HIP_VISIBLE_DEVICES", "");
    CHECK(code() == "no_device");
  }
  {
    const Variable cuda("CUDA_VISIBLE_DEVICES", "1");  // HIP reads it if its own variable is unset
    CHECK(code() == "hidden");
  }
  const Variable below("ROCR_VISIBLE_DEVICES", "");  // an empty list counts as a list there
  CHECK(code() == "hidden");
}

TEST_CASE("amd gpus and rocm folders that linux reports") {
  const Folder folder({{"sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n"},
                       {"sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n"},
                       {"sys/bus/pci/devices/0000:03:00.1/vendor", "0x1002\n"},
                       {"sys/bus/pci/devices/0000:03:00.1/class", "0x040300\n"},  // sound
                       {"sys/bus/pci/devices/0000:41:00.0/vendor", "0x1002\n"},
                       {"sys/bus/pci/devices/0000:41:00.0/class", "0x120000\n"},
                       {"dev/kfd", ""},
                       {"dev/dri/renderD128", ""},
                       {"opt/rocm-7.1.0/lib/libamdhip64.so.7", ""},
                       {"opt/rocm/core-7.14/lib/libamdhip64.so.7", ""},
                       {"opt/rocm/core-10.0/lib/libamdhip64.so.7", ""},
                       {"proc/sys/kernel/osrelease", "6.8.0-generic\n"}});
  unsetenv("KUBERNETES_SERVICE_HOST");
  const AmdSystem system = inspect_amd_system(folder);
  CHECK(system.gpus == 2);
  CHECK(system.kfd);
  CHECK(system.kfd_refusal.empty());
  CHECK(system.render_refusal.empty());
  CHECK(system.render_nodes == std::vector<std::string>{folder / "dev/dri/renderD128"});
  CHECK((system.unbound == std::vector<std::string>{"0000:03:00.0: no driver", "0000:41:00.0: no driver"}));
  CHECK((system.rocm == std::vector<std::string>{folder / "opt/rocm-7.1.0/lib",
                                                 folder / "opt/rocm/core-7.14/lib",
                                                 folder / "opt/rocm/core-10.0/lib"}));
  CHECK(system.kfd_gpus == -1);
  CHECK(!system.wsl);
  CHECK(!system.container);
  CHECK(!system.dxg);

  const AmdSystem nothing = inspect_amd_system(folder / "nowhere");
  CHECK(!nothing.may_have_gpu());
  CHECK(nothing.rocm.empty());
  CHECK(nothing.unreadable.empty());
}

TEST_CASE("device nodes that cannot be opened") {
  const AmdSystem system =
      inspect_amd_system(Folder({{"dev/kfd", nullptr}, {"dev/dri/renderD128", nullptr}}));
  CHECK(system.kfd);
  CHECK(system.kfd_refusal == "Is a directory");
  CHECK(system.render_refusal == "Is a directory");
  const AmdSystem two =
      inspect_amd_system(Folder({{"dev/dri/renderD128", nullptr}, {"dev/dri/renderD129", ""}}));
  CHECK_MESSAGE(two.render_refusal.empty(), "one of two GPUs is enough");
}

TEST_CASE("drivers and kfd nodes of amd gpus") {
  const Folder folder(
      {{"sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n"},
       {"sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n"},
       {"sys/bus/pci/devices/0000:41:00.0/vendor", "0x1002\n"},
       {"sys/bus/pci/devices/0000:41:00.0/class", "0x030000\n"},
       {"sys/bus/pci/drivers/amdgpu", nullptr},
       {"sys/bus/pci/drivers/vfio-pci", nullptr},
       {"sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 16\nsimd_count 0\n"},
       {"sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 192\ngfx_target_version 90010\n"},
       {"sys/class/kfd/kfd/topology/nodes/2/properties", nullptr}});
  for (const auto& [gpu, driver] : {std::pair("0000:03:00.0", "amdgpu"), {"0000:41:00.0", "vfio-pci"}}) {
    const std::string bus = folder / "sys/bus/pci";
    fs::create_directory_symlink(bus + "/drivers/" + driver, bus + "/devices/" + gpu + "/driver");
  }
  const AmdSystem system = inspect_amd_system(folder);
  CHECK(system.unbound == std::vector<std::string>{"0000:41:00.0: vfio-pci"});
  CHECK(system.kfd_gpus == 1);
  CHECK(system.arch == "gfx90a");
  CHECK(system.unreadable ==
        std::vector<std::string>{folder / "sys/class/kfd/kfd/topology/nodes/2/properties"});
}

TEST_CASE("packages of the installed rocm") {
  const Folder ubuntu(
      Files{{"etc/os-release", "NAME=\"Linux Mint\"\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"}});
  const Folder fedora(Files{{"etc/os-release", "ID=fedora\n"}});
  const Folder rocky(Files{{"etc/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"}});
  const Folder suse(Files{{"etc/os-release", "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n"}});
  const Folder arch(Files{{"etc/os-release", "ID=arch\n"}});
  const Folder unknown(Files{{"etc/hostname", "host\n"}});
  const std::string wheel = "pip install --extra-index-url https://stable.repo.amd.com/rocm/whl-next/ ";
  struct Case {
    const char* library;
    const char* runtime;
    const Folder& system;
    std::string command;
  };
  const Case cases[] = {
      {"rocBLAS", "/opt/rocm/core-10.0/lib/libamdhip64.so.7", ubuntu,
       "sudo apt install amdrocm-blas10.0-gfx1100"},
      {"hipBLASLt", "/opt/rocm/core-7.14/lib/libamdhip64.so.7", rocky,
       "sudo dnf install amdrocm-blas7.14-gfx1100"},
      {"MIOpen", "/opt/rocm/core-10.2/lib/libamdhip64.so.7", suse,
       "sudo zypper install amdrocm-dnn10.2-gfx1100"},
      {"MIOpen", "/opt/rocm-7.2.0/lib/libamdhip64.so.7.2.70200", ubuntu, "sudo apt install miopen-hip"},
      {"MIOpen", "/opt/rocm/lib/libamdhip64.so.7", arch, "sudo pacman -S miopen-hip"},
      {"rocBLAS", "/usr/lib/x86_64-linux-gnu/libamdhip64.so.7", ubuntu, "sudo apt install librocblas-dev"},
      {"MIOpen", "/usr/lib64/libamdhip64.so.7", fedora, "sudo dnf install miopen"},
      {"hipBLASLt", "/usr/lib64/libamdhip64.so.7", unknown, "install hipblaslt"},
      {"rocBLAS", "/x/site-packages/_rocm_sdk_core/lib/libamdhip64.so.7", ubuntu,
       wheel + "'rocm[libraries,device-gfx1100]'"},
      {"rocBLAS", "/x/site-packages/torch/lib/libamdhip64.so", ubuntu, ""},
  };
  for (const Case& c : cases) {
    const std::string command = gpu::install_library(c.library, c.runtime, "gfx1100", c.system);
    CHECK_MESSAGE(command == c.command, command);
  }
  CHECK(gpu::install_rocm("").find(wheel + "'rocm[libraries]'") != std::string::npos);
}

TEST_CASE("the installed rocm is searched from the newest version") {
  const Folder folder({{"rocm/core-7.14/lib", nullptr}, {"rocm/core-10.0/lib", nullptr}});
  const std::vector<std::string> found = gpu::matching(folder, "/rocm*/core-*/lib");
  CHECK((found == std::vector<std::string>{folder / "rocm/core-7.14/lib", folder / "rocm/core-10.0/lib"}));
}

TEST_CASE("wsl and containers") {
  const AmdSystem wsl = inspect_amd_system(
      Folder({{"dev/dxg", ""}, {"proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n"}}));
  CHECK(wsl.wsl);
  CHECK(wsl.dxg);
  CHECK(wsl.may_have_gpu());
  CHECK(!wsl.kfd);
  CHECK(inspect_amd_system(Folder({{".dockerenv", ""}, {"dev", nullptr}})).container);
}

}  // namespace
}  // namespace graphopt::test
