// Device memory for tests, in the address space of the process. The host device (host.cpp) and the stand-ins of drivers
// (tests/native/stand_ins/driver.h) allocate from it. An invalid access is found at once, without a GPU.
//
// A new block is filled with NaN (bytes 0xff: NaN in every floating-point type, -1 in every integer type). Freed memory
// is inaccessible, and its addresses are not reused. Consecutive allocations are terabytes apart, as they can be on a
// device: the distance of two blocks does not fit 32 bits. A block starts at a multiple of 256 bytes and ends
// less than 256 bytes before the end of a page. Red zones surround it: inaccessible pages, and a pattern in
// the rest of its own pages, which is checked when the block is freed.
//
// With GRAPHOPT_GUARD_MEMORY in the environment, allocators that cache memory must return freed memory to this class
// at once. The rules above then hold for each of their blocks.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace graphopt::gpu {

// Thread-safe, except where stated.
class GuardedMemory {
 public:
  // `protection` (PROT_...) applies to the pages of a block while no Access object makes the block accessible.
  explicit GuardedMemory(int protection) : protection_(protection) {
    // Reserves at most half of the address space that is left: a process with a limit needs the rest.
    for (; reserved_ > 0; reserved_ /= 2) {
      void* pages =
          mmap(nullptr, 2 * reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (pages == MAP_FAILED) continue;
      base_ = static_cast<char*>(pages);
      munmap(base_ + reserved_, reserved_);
      for (size_t i = 0; i < kParts; ++i) next_[i] = base_ + i * (reserved_ / kParts);
      break;
    }
    static std::once_flag once;
    std::call_once(once, report_faults);
  }
  ~GuardedMemory() { munmap(base_, reserved_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // Returns null if there is no memory left.
  void* allocate(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const size_t size = (std::max(padded, size_t{1}) + kPage - 1) / kPage * kPage;
    const size_t part = allocations_++ % kParts;
    char*& next = next_[part];
    const char* end = base_ + (part + 1) * (reserved_ / kParts);
    if (padded < bytes || size < padded || static_cast<size_t>(end - next) < size + 2 * kPage) return nullptr;
    char* pages = next + kPage;
    if (mprotect(pages, size, PROT_READ | PROT_WRITE) != 0) return nullptr;
    next = pages + size;
    char* memory = pages + size - padded;
    std::memset(pages, kRedZone, static_cast<size_t>(memory - pages));
    std::memset(memory, kNew, bytes);
    std::memset(memory + bytes, kRedZone, padded - bytes);
    blocks_[memory] = {bytes, pages, size};
    if (protection_ != (PROT_READ | PROT_WRITE)) mprotect(pages, size, protection_);
    return memory;
  }

  // Returns a description of an invalid free or a damaged red zone, else an empty string.
  std::string free(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(static_cast<char*>(memory));
    if (found == blocks_.end()) return "freed address is not a block: " + describe(memory);
    const Block block = found->second;
    mprotect(block.pages, block.size, PROT_READ | PROT_WRITE);
    std::string problem = damage(found->first, block);
    blocks_.erase(found);
    freed_[frees_++ % freed_.size()] = {static_cast<char*>(memory), block.bytes};
    // Mapping new, inaccessible pages at the block's addresses returns its memory to the system.
    mmap(block.pages, block.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return problem;
  }

  // Returns a description of the first damaged red zone, else an empty string.
  std::string check() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string problem;
    for (const auto& [memory, block] : blocks_) {
      if (protection_ == PROT_NONE) mprotect(block.pages, block.size, PROT_READ);
      if (problem.empty()) problem = damage(memory, block);
      if (protection_ == PROT_NONE) mprotect(block.pages, block.size, PROT_NONE);
    }
    return problem;
  }

  // Makes the blocks that contain the given addresses accessible during its lifetime. The mutex is locked for
  // that time.
  class Access {
   public:
    // Throws std::runtime_error if an address of this memory is in no block.
    Access(GuardedMemory& memory, const char* what, const std::vector<const void*>& addresses)
        : memory_(memory), what_(what), lock_(memory.mutex_) {
      for (const void* address : addresses) {
        const auto block = memory.find(address);
        if (block != memory.blocks_.end()) {
          const std::pair<char*, size_t> pages = {block->second.pages, block->second.size};
          if (std::find(opened_.begin(), opened_.end(), pages) == opened_.end()) opened_.push_back(pages);
        } else if (memory.owns(address)) {
          throw std::runtime_error(std::string(what) + " is given an address " + memory.describe(address));
        }
      }
      protect(PROT_READ | PROT_WRITE);
      current() = this;
    }
    ~Access() {
      current() = nullptr;
      protect(memory_.protection_);
    }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    void protect(int how) {
      if (memory_.protection_ == (PROT_READ | PROT_WRITE)) return;
      for (const auto& [pages, size] : opened_) mprotect(pages, size, how);
    }

    friend class GuardedMemory;
    GuardedMemory& memory_;
    const char* what_;
    std::lock_guard<std::mutex> lock_;
    std::vector<std::pair<char*, size_t>> opened_;
  };

 private:
  // Bytes of a page; alignment in bytes; parts of the reserved addresses, which allocations use in turns.
  static constexpr size_t kPage = 4096, kAlignment = 256, kParts = 8;
  static constexpr int kNew = 0xff, kRedZone = 0xa5;
  struct Block {
    size_t bytes;  // as requested
    char* pages;
    size_t size;  // bytes of pages
  };
  struct Freed {
    char* memory = nullptr;
    size_t bytes = 0;
  };
  using Blocks = std::map<char*, Block>;

  bool owns(const void* address) const {
    const auto* at = static_cast<const char*>(address);
    return at >= base_ && at < base_ + reserved_;
  }

  // Returns the block that contains the address or ends at it. (The address of an empty block is its end.)
  // The mutex must be held.
  Blocks::const_iterator find(const void* address) const {
    auto after = blocks_.upper_bound(static_cast<char*>(const_cast<void*>(address)));
    if (after == blocks_.begin()) return blocks_.end();
    --after;
    const bool inside = static_cast<const char*>(address) <= after->second.pages + after->second.size;
    return inside ? after : blocks_.end();
  }

  std::string damage(const char* memory, const Block& block) const {
    const auto is_intact = [](const char* from, const char* to) {
      return std::all_of(from, to, [](char c) { return static_cast<unsigned char>(c) == kRedZone; });
    };
    const bool before = is_intact(block.pages, memory),
               after = is_intact(memory + block.bytes, block.pages + block.size);
    if (before && after) return "";
    return std::string("memory was written ") + (before ? "after" : "before") + " a block of " +
           std::to_string(block.bytes) + " bytes";
  }

  // Describes an address outside all blocks. The mutex must be held.
  std::string describe(const void* address) const {
    const auto* at = static_cast<const char*>(address);
    if (!owns(address)) return "memory that is not the device's";
    const auto text = [](ptrdiff_t distance, const char* where, size_t bytes) {
      return std::to_string(distance) + where + std::to_string(bytes) + " bytes";
    };
    for (const Freed& one : freed_) {
      if (one.memory != nullptr && at >= one.memory && at <= one.memory + one.bytes) {
        return text(at - one.memory, " bytes into a freed block of ", one.bytes);
      }
    }
    const auto after = blocks_.upper_bound(const_cast<char*>(at));
    if (after != blocks_.end() && at >= after->second.pages - kPage) {
      return text(after->first - at, " bytes before a block of ", after->second.bytes);
    }
    if (after != blocks_.begin()) {
      const auto& [memory, block] = *std::prev(after);
      if (at < block.pages + block.size + kPage) {
        return text(at - memory - static_cast<ptrdiff_t>(block.bytes), " bytes after a block of ",
                    block.bytes);
      }
    }
    return "in freed memory";
  }

  // The Access object of the calling thread; null if there is none.
  static const Access*& current() {
    static thread_local const Access* access = nullptr;
    return access;
  }

  // Reports the kernel of a memory fault. The fault then ends the process as usual.
  static void report_faults() {
    static struct sigaction before = {};
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      const Access* access = current();
      if (access != nullptr) {
        std::fprintf(stderr, "graphopt: %s accesses memory %s\n", access->what_,
                     access->memory_.describe(info->si_addr).c_str());
      }
      sigaction(SIGSEGV, &before, nullptr);
    };
    sigaction(SIGSEGV, &action, &before);
  }

  const int protection_;
  mutable std::mutex mutex_;
  size_t reserved_ = size_t{1} << 45;
  char *base_ = nullptr, *next_[kParts] = {};  // the first unused page of each part
  size_t allocations_ = 0;
  Blocks blocks_;
  std::array<Freed, 1024> freed_ = {};  // the most recently freed blocks
  size_t frees_ = 0;
};

}  // namespace graphopt::gpu
