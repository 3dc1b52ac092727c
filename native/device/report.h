// What this library found on the machine, for `graphopt doctor`: the C function GraphoptDescribeDevices,
// without parameters, gives it as a string that is valid until the thread asks again; null when it can't be
// told.
#pragma once

#include <string>

namespace graphopt::gpu {

// JSON:
//
//   {"format": 1,
//    "code": ["gfx908", ...],               architectures that the library has device code for
//    "amd": {                               what Linux shows, without asking any driver
//      "seen": true,                        AMD GPUs on the PCI bus, or their compute driver
//      "dxg": false,                        WSL's device node, of GPUs of any vendor
//      "unreadable": ["/sys/..."],          nodes of GPUs that this container was not given
//      "rocm": ["/opt/rocm-7.1.0/lib"]},    folders that hold the HIP runtime
//    "routes": [{
//      "route": "hip" | "cuda" | "host",    "host": GRAPHOPT_HOST_KERNELS is set
//      "runtime": {"path": "...", "version": "HIP 7.1.123", "needed": "libamdhip64.so.7"},
//                                           empty strings for what is not known; "needed": by ONNX Runtime's
//                                           own ROCm provider
//      "problem": PROBLEM | null,           why the route has no devices
//      "devices": [{
//        "number": 0,                       as the provider counts them: AMD's first, then NVIDIA's
//        "name": "AMD Radeon RX 7900 XTX", "arch": "gfx1100",
//        "code": "gfx1100",                 whose device code it takes, "gfx11-generic"; "" for none
//        "bus_id": "0000:03:00.0", "memory": 25753026560, "integrated": false,
//        "compute_units": 96, "xcds": 1, "wave": 32, "bytes_per_second": 9.6e11, "driver": "HIP 7.1.123",
//        "problem": PROBLEM | null,         why it can't be used
//        "libraries": [{"name": "rocBLAS", "path": "...", "version": "5.0.70100",
//                       "problem": PROBLEM | null}]   why it is not used there
//      }]}]}
//
// PROBLEM: {"code": CODE, "text": "...", "mend": "..."}; mend: a command or a step, "" where none is known
// here. Codes of a route:
//   no_runtime      the runtime's library is nowhere (text: where was looked, or why it can't be loaded)
//   broken_runtime  it lacks functions, or fails when asked
//   no_device       the runtime shows none; of AMD's, what the system shows says more: no_gpu, not_in_container,
//                   no_driver, no_permission, node_fails, hidden, old_driver, not_in_kfd, not_found, no_dxg,
//                   no_device_in_wsl (docs/provider_reference.md)
// of a device:
//   no_code         no device code for it; code [] of the whole library: none was compiled into it
//   old_runtime     the code of its family needs ROCm 6.4 or newer
//   failed          the runtime fails when asked about it
// of a library:
//   missing         nowhere
//   off             by default on this architecture, or by GRAPHOPT_LIBRARIES
//   no_kernels      rocBLAS has no kernels for it and would abort; MIOpen would have to build them
//   failed          it can't be asked for
//
// Looks for libraries of the vendor and so loads them. Throws std::runtime_error.
std::string describe_devices();

}  // namespace graphopt::gpu
