// Converts exceptions to status objects in functions that the runtime calls: no exception may leave the library.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "runtime/abi/error.h"
#include "runtime/abi/ort_ep.h"
#include "runtime/provider/memory.h"

namespace graphopt::provider {

// Calls `work`. If it throws, returns a status with the parts of `where` before the exception's message.
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

// Returns the status of a failed run; call it in an exception handler. The message starts with `where`. If an
// allocation failed, its reason follows, because the runtime hides it; otherwise the exception's message follows.
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
