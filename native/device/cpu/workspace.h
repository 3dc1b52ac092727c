// Scratch memory of one Compute call, from whoever owns memory there (ONNX Runtime's arena inside a session).
#pragma once

#include <cstddef>

namespace graphopt::cpu {

class Workspace {
 public:
  virtual ~Workspace() = default;

  // 64-byte aligned, uninitialised, valid until the Compute call ends. Throws std::bad_alloc.
  virtual void* allocate(size_t bytes) = 0;
};

}  // namespace graphopt::cpu
