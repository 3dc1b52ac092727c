// What the runtime calls ends in a status: no exception leaves the library.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "runtime/abi/error.h"
#include "runtime/abi/ort_ep.h"
#include "runtime/provider/memory.h"

namespace graphopt::provider {

// Does `work`; where it throws, the status of that, its message behind the parts of `where`.
template <class Do>
abi::OrtStatus* guarded(const abi::OrtApi24* api, std::initializer_list<std::string_view> where,
                        Do&& work) noexcept {
  try {
    work();
    return nullptr;
  } catch (...) {
    return abi::current_exception_status(api, where);
  }
}

// The status of a run that has thrown, which is being handled: behind what `where` says, the reason why there was no
// memory, which the runtime hides, or else the exception's.
template <class Where>
abi::OrtStatus* failed_run(const abi::OrtApi24* api, const Where& where) noexcept {
  try {
    const std::string place = where(), reason = last_failure();
    if (reason.empty()) return abi::current_exception_status(api, {place});
    return abi::CreateStatus(api, abi::ErrorCode::kFail, (place + ": " + reason).c_str());
  } catch (...) {
    return abi::current_exception_status(api, {});
  }
}

}  // namespace graphopt::provider
