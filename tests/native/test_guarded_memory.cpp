#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "device/emulator/guarded_memory.h"
#include "testing.h"

using graphopt::gpu::GuardedMemory;

namespace {

// Returns the signal that ends a process which writes there while a kernel runs.
int signal_of_write(GuardedMemory& memory, char* block, ptrdiff_t at) {
  const pid_t child = fork();
  if (child == 0) {
    std::freopen("/dev/null", "w", stderr);
    const GuardedMemory::Access access(memory, "a kernel", {block});
    const_cast<volatile char*>(block)[at] = 1;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

std::string message_of_access(GuardedMemory& memory, const void* address) {
  try {
    const GuardedMemory::Access access(memory, "a kernel", {address});
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("guarded memory is filled with NaN and has no access outside of its blocks") {
  GuardedMemory memory(PROT_NONE);
  for (const size_t bytes : {4, 256, 4096, 10000}) {
    auto* block = static_cast<char*>(memory.allocate(bytes));
    CHECK(reinterpret_cast<uintptr_t>(block) % 256 == 0);
    {
      const GuardedMemory::Access access(memory, "a kernel", {block});
      float first = 0;
      std::memcpy(&first, block, sizeof first);
      CHECK(std::isnan(first));
      std::memset(block, 0, bytes);
    }
    CHECK(signal_of_write(memory, block, 0) == 0);
    CHECK(signal_of_write(memory, block, static_cast<ptrdiff_t>((bytes + 255) / 256 * 256)) == SIGSEGV);
    CHECK(signal_of_write(memory, block, -4096) == SIGSEGV);
    CHECK(memory.check().empty());
    CHECK(memory.free(block).empty());
  }
}

TEST_CASE("an address of freed memory is refused and not handed out again") {
  GuardedMemory memory(PROT_NONE);
  auto* freed = static_cast<char*>(memory.allocate(512));
  CHECK(memory.free(freed).empty());
  auto* block = static_cast<char*>(memory.allocate(512));
  CHECK(std::abs(block - freed) > ptrdiff_t{1} << 32);
  CHECK(message_of_access(memory, block + 512).empty());
  CHECK(message_of_access(memory, &memory).empty());
  CHECK(message_of_access(memory, freed + 8) ==
        "a kernel is given an address 8 bytes into a freed block of 512 bytes");
  CHECK(message_of_access(memory, block + 4096 + 1) ==
        "a kernel is given an address 3585 bytes after a block of 512 bytes");
  CHECK(memory.free(freed).find("freed address is not a block") == 0);
}

TEST_CASE("a write into a red zone is found") {
  for (const ptrdiff_t at : {-1, 100}) {
    GuardedMemory memory(PROT_READ | PROT_WRITE);
    auto* block = static_cast<char*>(memory.allocate(100));
    block[at] = 1;
    const std::string problem =
        std::string("memory was written ") + (at < 0 ? "before" : "after") + " a block of 100 bytes";
    CHECK(memory.check() == problem);
    CHECK(memory.free(block) == problem);
  }
}

TEST_CASE("guarded memory leaves half of a limited address space") {
  const pid_t child = fork();
  if (child == 0) {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    // 1 MiB more than a power of two, which would be reserved as a whole.
    const rlim_t limit = pages * static_cast<rlim_t>(getpagesize()) + (rlim_t{8} << 30) + (1 << 20);
    const rlimit both = {limit, limit};
    setrlimit(RLIMIT_AS, &both);
    GuardedMemory memory(PROT_NONE);
    void* other =
        mmap(nullptr, size_t{1} << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    _exit(memory.allocate(1 << 20) != nullptr && other != MAP_FAILED ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}
