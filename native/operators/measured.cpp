#include "operators/measured.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "device/allocations.h"
#include "device/node_scope.h"
#include "device/stream_context.h"
#include "operators/implementations.h"

namespace graphopt::gpu {
namespace {

constexpr int kRounds = 4, kRuns = 20;
constexpr double kMaxRoundSeconds = 0.05;  // a round that takes longer is the last one

// Appends the line in one write, so lines of several processes do not mix.
void append(const std::string& path, const std::string& line) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const bool written =
      file >= 0 && write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (!written) {
    std::fprintf(stderr, "graphopt: measurements can't be written to %s: %s\n", path.c_str(),
                 std::strerror(errno));
  }
  if (file >= 0) close(file);
}

// Captures kRuns runs of the call in a graph, as a region does. Returns null if they cannot be captured, for
// example on the null stream.
std::unique_ptr<Graph> capture_runs(const Kernel& kernel, Device& device, Call& call) {
  if (call.stream == nullptr || synchronous()) return nullptr;
  try {
    Capture capture(device, call.stream, device.graph_rules().max_nodes);
    if (capture.why_not() != nullptr) return nullptr;
    for (int i = 0; i < kRuns; ++i) {
      if (!kernel.run(call)) return nullptr;
    }
    return capture.end();
  } catch (const std::exception&) {
    return nullptr;
  }
}

struct Timed {
  double seconds;  // of one run: the mean over the fastest round
  bool captured;   // in a graph
};

// Measures a planned call; returns nothing if it fails. Uses a graph if possible: calling a vendor library for a small
// convolution takes longer on the host than on the device, and a captured region calls it only once.
std::optional<Timed> measure(const Kernel& kernel, Device& device, Call& call) {
  std::vector<DeviceMemory> scratch;
  const auto allocate = [&](size_t bytes) {
    return scratch.emplace_back(allocate_owned(device, bytes, MemoryUse::kWorkspaces)).get();
  };
  for (Tensor& t : call.inputs) {
    if (t.present() && t.place == Place::kDevice) t.data = allocate(t.bytes());
  }
  for (Tensor& t : call.outputs) t.data = allocate(t.bytes());
  call.workspace = allocate(call.workspace_bytes);
  if (!kernel.run(call)) return std::nullopt;
  device.synchronize(call.stream);
  const std::unique_ptr<Graph> graph = capture_runs(kernel, device, call);
  Timed timed = {std::numeric_limits<double>::infinity(), graph != nullptr};
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    if (graph != nullptr) {
      graph->launch(call.stream);
    } else {
      for (int i = 0; i < kRuns; ++i) {
        if (!kernel.run(call)) return std::nullopt;
      }
    }
    device.synchronize(call.stream);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    timed.seconds = std::min(timed.seconds, took.count() / kRuns);
    if (took.count() > kMaxRoundSeconds) break;
  }
  return timed;
}

// Returns a copy of the call that is not planned yet and must use implementation `only`.
std::unique_ptr<Call> unplanned_copy(const Call& call, int only) {
  auto trial = std::make_unique<Call>();
  trial->inputs.resize(call.inputs.size());
  std::copy(call.inputs.begin(), call.inputs.end(), trial->inputs.begin());
  trial->outputs.resize(call.outputs.size());
  trial->alignment = call.alignment;
  trial->stream = call.stream;
  trial->only = only;
  trial->libraries = call.libraries;
  return trial;
}

}  // namespace

Measured::Measured(std::string path, std::string version)
    : path_(std::move(path)), version_(std::move(version)) {
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    const size_t name = line.rfind('\t');
    if (name != std::string::npos) names_[line.substr(0, name)] = line.substr(name + 1);
  }
}

std::string Measured::get(const Device& device, const std::string& problem,
                          const std::function<std::string()>& measure) {
  const DeviceFacts& facts = device.facts();
  const std::string key =
      facts.name + ", " + facts.arch + ", " + facts.driver + ", " + version_ + "\t" + problem;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = names_.find(key);
  if (found != names_.end()) return found->second;
  const std::string name = measure();
  if (name.empty()) return name;
  names_[key] = name;
  append(path_, key + "\t" + name + "\n");
  return name;
}

int fastest(const Kernel& kernel, const std::string& problem, const std::vector<std::string>& names,
            const Call& call) {
  Device& device = *kernel.device();
  std::map<size_t, std::unique_ptr<Call>> planned;
  std::string key = problem;
  for (size_t i = 0; i < names.size(); ++i) {
    auto trial = unplanned_copy(call, static_cast<int>(i));
    try {
      kernel.plan(*trial);
    } catch (const std::exception&) {
      continue;  // the implementation refuses the call
    }
    key += "; " + names[i];
    planned.emplace(i, std::move(trial));
  }
  if (planned.size() < 2) return -1;
  const std::string name = call.measured->get(device, key, [&] {
    device.synchronize(call.stream);  // earlier work would slow down the first measurement
    std::optional<double> least;
    std::string best;
    for (const auto& [i, trial] : planned) {
      std::optional<Timed> timed;
      try {
        timed = measure(kernel, device, *trial);
      } catch (const OutOfMemory&) {
        return std::string();
      }
      if (!timed) continue;
      if (log_enabled()) {
        std::fprintf(stderr, "graphopt: %s: %.1f us%s\n", names[i].c_str(), 1e6 * timed->seconds,
                     timed->captured ? ", captured" : "");
      }
      if (least && *least <= timed->seconds) continue;
      best = names[i];
      least = timed->seconds;
    }
    return best;
  });
  for (const auto& [i, trial] : planned) {
    if (names[i] == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace graphopt::gpu
