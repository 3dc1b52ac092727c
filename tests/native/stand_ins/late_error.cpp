// Kernels for GRAPHOPT_HOST_KERNELS that do nothing. Kernels of row_norm fail like kernels on a GPU: the
// launch succeeds, and the next wait reports the error.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {
bool failed = false;
}

extern "C" __attribute__((visibility("default"))) int graphopt_host_wave() { return 32; }

extern "C" __attribute__((visibility("default"))) int graphopt_host_parameters(const char*, const size_t**) {
  return 0;
}

extern "C" __attribute__((visibility("default"))) int graphopt_host_launch(const char* kernel,
                                                                           const uint32_t*, const uint32_t*,
                                                                           uint32_t, void**, int, uint32_t) {
  if (std::strncmp(kernel, "row_norm", 8) == 0) failed = true;
  return 0;
}

extern "C" __attribute__((visibility("default"))) int graphopt_host_synchronize() { return failed; }
