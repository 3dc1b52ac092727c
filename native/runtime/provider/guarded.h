// What the runtime calls ends in a status: no exception leaves the library.
#pragma once

#include <initializer_list>
#include <string>

#include "runtime/abi/error.h"
#include "runtime/abi/ort_ep.h"

namespace graphopt::provider {

// Does `work`; where it throws, the status of that, its message behind the parts of `where`.
template <class Do>
abi::OrtStatus* guarded(const abi::OrtApi24* api, std::initializer_list<const char*> where,
                        Do&& work) noexcept {
  try {
    work();
    return nullptr;
  } catch (...) {
    std::string prefix;
    for (const char* part : where) prefix += part;
    return abi::current_exception_status(api, prefix + ": ");
  }
}

}  // namespace graphopt::provider
