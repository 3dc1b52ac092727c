// ROCm's marker library for tests: prints ranges to stderr.
#include <cstdio>

extern "C" __attribute__((visibility("default"))) int roctxRangePushA(const char* name) {
  return std::fprintf(stderr, "range %s\n", name);
}

extern "C" __attribute__((visibility("default"))) int roctxRangePop() {
  return std::fprintf(stderr, "range ends\n");
}
