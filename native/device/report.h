// The state of the machine for `graphopt doctor`. The C function GraphoptDescribeDevices, without parameters,
// returns it as a string that is valid until the calling thread's next call, or null if it fails.
#pragma once

#include <string>

namespace graphopt::gpu {

// JSON:
//
//   {"format": 1,
//    "code": ["gfx908", ...],               architectures that the library has device code for
//    "amd": {                               information from Linux, without any driver
//      "seen": true,                        whether the PCI bus has AMD GPUs, or /dev/kfd exists
//      "dxg": false,                        whether WSL's device node /dev/dxg exists (for GPUs of any vendor)
//      "unreadable": ["/sys/..."],          nodes of GPUs that this container has no access to
//      "rocm": ["/opt/rocm-7.1.0/lib"]},    folders with the HIP runtime
//    "routes": [{
//      "route": "hip" | "cuda" | "host",    "host": GRAPHOPT_HOST_KERNELS is set
//      "runtime": {"path": "...", "version": "HIP 7.1.123", "needed": "libamdhip64.so.7"},
//                                           empty strings for unknown values; "needed": by ONNX Runtime's own
//                                           ROCm provider
//      "problem": PROBLEM | null,           why the route has no devices
//      "devices": [{
//        "number": 0,                       index among the provider's devices; null if unusable
//        "name": "AMD Radeon RX 7900 XTX", "arch": "gfx1100",
//        "code": "gfx1100",                 architecture of its code objects, or "gfx11-generic"; "" for none
//        "bus_id": "0000:03:00.0", "memory": 25753026560, "integrated": false,
//        "compute_units": 96, "xcds": 1, "wave": 32, "bytes_per_second": 9.6e11,
//        "float32_flops": 5.7e13, "float16_flops": 1.1e14,   peaks; float16 on the matrix units if it has them
//        "driver": "HIP 7.1.123",
//        "problem": PROBLEM | null,         why it is unusable
//        "libraries": [{"name": "rocBLAS", "path": "...", "version": "5.0.70100",
//                       "problem": PROBLEM | null}]   why the library is not used on the device
//      }]}]}
//
// PROBLEM: {"code": CODE, "text": "...", "remedy": "..."}; remedy: a command or step that solves it, or "".
// Codes of a route:
//   no_runtime      the runtime's library is missing (text: the search, or why it cannot be loaded)
//   broken_runtime  the runtime's library lacks functions, or a query fails
//   no_device       the runtime reports no device. For AMD, the state of the system gives a more exact code: no_gpu,
//                   not_in_container, no_driver, no_permission, node_fails, hidden, old_driver, not_in_kfd, not_found,
//                   no_dxg, no_device_in_wsl (docs/provider_reference.md)
// Codes of a device:
//   no_code         no device code for the device; if the list "code" is empty, the library has none at all
//   unsupported     no build of this version has kernels for its architecture
//   old_runtime     the code of its generic target needs ROCm 6.4 or newer
//   failed          the runtime fails to report the properties of the device
// Codes of a library:
//   missing         not found
//   off             not used, by default on this architecture or because of GRAPHOPT_LIBRARIES
//   no_kernels      the library has no kernels for the device, or MIOpen would have to compile them
//   failed          the search fails with another error
//
// Searches for the vendor's libraries and loads them. Throws std::runtime_error.
std::string describe_devices();

}  // namespace graphopt::gpu
