// Chooses among several implementations of one operator on one device.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "operators/kernel.h"

namespace graphopt {

// One implementation of an operator. A list of implementations is in order of preference, and its last entry accepts
// every valid call. Work describes one call and the device on which it runs.
template <class Work>
struct Implementation {
  const char* name;
  // Returns why the implementation refuses the work; null if it accepts the work. May store data for `plan` in the
  // work.
  const char* (*refuse)(Work& work);
  // Adds the steps of a device implementation to the program. Null for a CPU implementation: a CPU kernel uses only
  // the index of the chosen implementation.
  void (*plan)(Work& work) = nullptr;
  // Loads the vendor libraries that the implementation calls, before the first call; null if it calls none.
  void (*load)(gpu::Device& device, const gpu::LibraryChoices* libraries) = nullptr;
};

template <class Work>
const char* accept_all(Work&) {
  return nullptr;
}

// The names of a list of implementations, and their functions that load libraries.
struct Implementations {
  std::vector<std::string> names;
  std::vector<void (*)(gpu::Device&, const gpu::LibraryChoices*)> loads;
};

template <class Work, size_t n>
Implementations summarize(const Implementation<Work> (&list)[n]) {
  Implementations result;
  for (const Implementation<Work>& implementation : list) {
    result.names.emplace_back(implementation.name);
    if (implementation.load != nullptr) result.loads.push_back(implementation.load);
  }
  return result;
}

// Returns true if the environment variable GRAPHOPT_LOG is 1. Reads the variable once.
bool log_enabled();

// Chooses the implementation of one node and logs each choice once.
class Choice {
 public:
  explicit Choice(const Node& node) : op_(node.op), name_(node.name) {}

  // Returns the index of the implementation to use:
  // - Call::only if it is set; throws Error if that implementation refuses the work;
  // - `measured` if that implementation accepts the work and has not failed in this call;
  // - otherwise the first implementation that accepts the work and has not failed. If all but the last one refuse or
  //   have failed, returns the last one without calling its `refuse`.
  // If `call` is null, the choice holds for all calls.
  template <class Work, size_t n>
  uint32_t choose(const Implementation<Work> (&list)[n], Work& work, const Call* call,
                  int measured = -1) const {
    const bool log = log_enabled();
    std::string refused;
    uint32_t i = 0;
    if (call != nullptr && call->only >= 0) {
      i = static_cast<uint32_t>(call->only);
      throw_if(i >= n, "there are ", n, " implementations");
      const char* why = list[i].refuse(work);
      throw_if(why != nullptr, list[i].name, " refuses this call: ", why);
      return i;
    }
    const auto fast = static_cast<uint32_t>(measured);
    if (measured >= 0 && (call->failed >> fast & 1) == 0 && list[fast].refuse(work) == nullptr) {
      if (log) log_choice(fast, list[fast].name, ", as measured", call);
      return fast;
    }
    for (; i + 1 < n; ++i) {
      const bool failed = call != nullptr && (call->failed >> i & 1) != 0;
      const char* why = failed ? "failed in this call" : list[i].refuse(work);
      if (why == nullptr) break;
      if (log) refused += std::string("; not ") + list[i].name + ": " + why;
    }
    if (log) log_choice(i, list[i].name, refused, call);
    return i;
  }

  // Chooses an implementation and plans the work with it. Returns its index.
  template <class Work, size_t n>
  uint32_t plan(const Implementation<Work> (&list)[n], Work& work, const Call& call,
                int measured = -1) const {
    const uint32_t i = choose(list, work, &call, measured);
    list[i].plan(work);
    return i;
  }

 private:
  // Logs the choice the first time that this index is chosen.
  void log_choice(uint32_t index, const char* name, const std::string& refused, const Call* call) const;

  std::string op_, name_;
  mutable std::atomic<uint32_t> logged_{0};
};

}  // namespace graphopt
