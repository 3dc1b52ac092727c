// Several ways to compute one operator on one device.
#pragma once

#include <cstddef>

#include "operators/kernel.h"

namespace graphopt {

// One of them, in a list in order of preference. Problem is the operator's own: what there is to compute, and
// where.
template <class Problem, class Result>
struct Implementation {
  const char* name;
  // Why it does not take a problem; null when it does.
  const char* (*refuse)(const Problem& problem);
  void (*plan)(const Problem& problem, Result& result);
};

// The first of a list that takes the problem and has not failed in this call. The last one takes all.
template <class Problem, class Result, size_t n>
size_t choose(const Implementation<Problem, Result> (&list)[n], const Problem& problem, const Call& call) {
  for (size_t i = 0; i + 1 < n; ++i) {
    if ((call.failed >> i & 1) == 0 && list[i].refuse(problem) == nullptr) return i;
  }
  return n - 1;
}

}  // namespace graphopt
