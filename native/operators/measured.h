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

// Measured choices in a file that sessions and processes share. Each line has three parts, separated by tabs: the
// device with its driver and this library's version, the problem, and the name of the fastest implementation. If
// several lines agree in the first two parts, the last one is used. Thread-safe.
class Measured {
 public:
  // The file need not exist. `version` is the version of this library.
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

// Returns the index in `names` of the fastest implementation for the call. Returns -1 if fewer than two accept the
// call, if all fail or if memory is exhausted. The measured runs use newly allocated memory. Calls with the same
// `problem` share one measurement, so `problem` must name everything that changes the running time.
int fastest(const Kernel& kernel, const std::string& problem, const std::vector<std::string>& names,
            const Call& call);

}  // namespace graphopt::gpu
