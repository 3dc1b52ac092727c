#include "runtime/abi/error.h"

#include <new>

namespace graphopt::abi {

void check(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return;
  const StatusError error(GetErrorMessage(api, status), GetErrorCode(api, status));
  ReleaseStatus(api, status);
  throw error;
}

OrtStatus* current_exception_status(const OrtApi* api, const std::string& where) noexcept {
  try {
    try {
      throw;
    } catch (const StatusError& e) {
      return CreateStatus(api, e.code, (where + e.what()).c_str());
    } catch (const Error& e) {
      return CreateStatus(api, ErrorCode::kInvalidArgument, (where + e.what()).c_str());
    } catch (const std::bad_alloc&) {
      return CreateStatus(api, ErrorCode::kFail, (where + "out of memory").c_str());
    } catch (const std::exception& e) {
      return CreateStatus(api, ErrorCode::kRuntimeException, (where + e.what()).c_str());
    }
  } catch (...) {  // no memory for the message, or not a std::exception
    return CreateStatus(api, ErrorCode::kFail, "com.graphopt: out of memory or unknown failure");
  }
}

}  // namespace graphopt::abi
