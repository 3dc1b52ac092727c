// Which of several implementations is the fastest, found out by running them.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "operators/kernel.h"

namespace graphopt::gpu {

// What was measured, in a file that sessions and processes share: a line for each problem, its parts separated by tabs:
// the device with its driver and the library's version, the problem, the implementation's name. Of several lines for
// one problem the last one counts. Thread-safe.
class Measured {
 public:
  // The file need not exist. `version`: of the library.
  Measured(std::string path, std::string version);

  // What is remembered of a problem on the device, or what `measure` gives, which is then remembered; one at a time,
  // since two would slow each other down.
  std::string get(const Device& device, const std::string& problem,
                  const std::function<std::string()>& measure);

 private:
  std::string path_, version_;
  std::mutex mutex_;
  std::map<std::string, std::string> names_;
};

// The number of the implementation of those with these names that was the fastest for the call, each run on memory of its
// own; -1 where fewer than two take it, or memory is short. What takes the same time has the same `problem`.
int fastest(const Kernel& kernel, const std::string& problem, const std::vector<std::string>& names,
            const Call& call);

}  // namespace graphopt::gpu
