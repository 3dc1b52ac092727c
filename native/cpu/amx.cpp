#include "cpu/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace graphopt::cpu {

#if defined(__x86_64__) && defined(__linux__)
bool may_use_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;       // of EDX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  // Linux refuses if it does not save the tile registers, or if a thread's signal stack is too small for
  // them.
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool may_use_amx() { return false; }
#endif

}  // namespace graphopt::cpu
