// What this library has of the memory of its devices, whoever in it has asked for it: tensors, constants, weights that
// sessions share, workspaces that vendors' libraries are given.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

namespace graphopt::gpu {

// Of all devices of the process. Thread-safe.
class Allocations {
 public:
  struct Statistics {
    size_t bytes = 0, most = 0;  // now, and at once so far
    size_t recordings = 0;       // graphs that there are, whose memory is the driver's own
  };

  void add(const void* memory, size_t bytes);
  void remove(const void* memory) noexcept;
  void add_recording();
  void remove_recording() noexcept;
  Statistics statistics() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, size_t> blocks_;
  Statistics statistics_;
};

Allocations& allocations();

}  // namespace graphopt::gpu
