// Finds the fastest of several implementations by running them.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "operators/kernel.h"

namespace graphopt::gpu {

// Measured choices in a file that sessions and processes share. Each line is a problem with tab-separated parts: the
// device with its driver and the library's version, the problem, and the implementation's name. The last line of a
// problem counts. Thread-safe.
class Measured {
 public:
  // The file need not exist. `version`: of the library.
  Measured(std::string path, std::string version);

  // Returns the stored implementation for a problem on the device, or calls `measure` and stores its result.
  // Measurements run one at a time, because concurrent ones would slow each other down.
  std::string get(const Device& device, const std::string& problem,
                  const std::function<std::string()>& measure);

 private:
  std::string path_, version_;
  std::mutex mutex_;
  std::map<std::string, std::string> names_;
};

// Returns the index in `names` of the fastest implementation for the call, each run on separate memory. Returns -1 if
// fewer than two accept the call, or if memory is exhausted. Calls with the same running time must have the same
// `problem`.
int fastest(const Kernel& kernel, const std::string& problem, const std::vector<std::string>& names,
            const Call& call);

}  // namespace graphopt::gpu
