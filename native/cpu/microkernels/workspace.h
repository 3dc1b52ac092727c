// The scratch memory of one call. For kernel files only (see cpu/isa.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace graphopt::cpu::GRAPHOPT_ISA {

// Hands out parts of a block of memory. A kernel takes the same parts twice: during planning from a null block, to
// compute the required size, and from the memory when it runs.
class Workspace {
 public:
  explicit Workspace(void* memory) : memory_(static_cast<char*>(memory)) {}

  // Returns uninitialized memory that starts at a cache line if the block does; null if the block is null.
  template <class T>
  T* take(int64_t n) {
    T* part = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (static_cast<size_t>(n) * sizeof(T) + 63) / 64 * 64;
    return part;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  size_t bytes_ = 0;
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
