// Several ways to compute one operator on one device.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "operators/kernel.h"

namespace graphopt {

// One of them, in a list in order of preference, of which the last takes whatever the operator allows. Work
// is what there is to do in one call, and where.
template <class Work>
struct Implementation {
  const char* name;
  // Why it does not take it; null when it does. It may keep in the work what plan needs.
  const char* (*refuse)(Work& work);
  // Adds what one for a device does to the program; null on the CPU, where its number is all that a kernel needs.
  void (*plan)(Work& work) = nullptr;
  // Loads what it needs before there is any work; null: nothing.
  void (*load)(gpu::Device& device, const gpu::LibraryChoices* libraries) = nullptr;
};

template <class Work>
const char* take_all(Work&) {
  return nullptr;
}

// What is said of a list where nobody knows its work.
struct Implementations {
  std::vector<std::string> names;
  std::vector<void (*)(gpu::Device&, const gpu::LibraryChoices*)> loads;
};

template <class Work, size_t n>
Implementations described(const Implementation<Work> (&list)[n]) {
  Implementations result;
  for (const Implementation<Work>& implementation : list) {
    result.names.emplace_back(implementation.name);
    if (implementation.load != nullptr) result.loads.push_back(implementation.load);
  }
  return result;
}

// GRAPHOPT_LOG=1, read once.
bool log_enabled();

// What one node chooses from.
class Choice {
 public:
  explicit Choice(const Node& node) : op_(node.op), name_(node.name) {}

  // The number of the first of the list that takes the work and has not failed in this call, or that of the measured
  // one. Without a call it is a choice for all of them.
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
      throw_if(why != nullptr, list[i].name, " does not take it: ", why);
      return i;
    }
    const auto fast = static_cast<uint32_t>(measured);
    if (measured >= 0 && (call->failed >> fast & 1) == 0 && list[fast].refuse(work) == nullptr) {
      if (log) say(fast, list[fast].name, ", as measured", call);
      return fast;
    }
    for (; i + 1 < n; ++i) {
      const bool failed = call != nullptr && (call->failed >> i & 1) != 0;
      const char* why = failed ? "it has failed" : list[i].refuse(work);
      if (why == nullptr) break;
      if (log) refused += std::string("; not ") + list[i].name + ": " + why;
    }
    if (log) say(i, list[i].name, refused, call);
    return i;
  }

  // Plans with it.
  template <class Work, size_t n>
  uint32_t plan(const Implementation<Work> (&list)[n], Work& work, const Call& call,
                int measured = -1) const {
    const uint32_t i = choose(list, work, &call, measured);
    list[i].plan(work);
    return i;
  }

 private:
  // Once for each number.
  void say(uint32_t number, const char* name, const std::string& refused, const Call* call) const;

  std::string op_, name_;
  mutable std::atomic<uint32_t> said_{0};
};

}  // namespace graphopt
