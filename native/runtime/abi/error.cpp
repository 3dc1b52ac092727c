#include "runtime/abi/error.h"

#include <cstdio>
#include <new>

namespace graphopt::abi {

void check(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return;
  const StatusError error(GetErrorMessage(api, status), GetErrorCode(api, status));
  ReleaseStatus(api, status);
  throw error;
}

bool succeeded(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return true;
  ReleaseStatus(api, status);
  return false;
}

OrtStatus* current_exception_status(const OrtApi* api,
                                    std::initializer_list<std::string_view> where) noexcept {
  const auto status = [api, where](ErrorCode code, const char* what) {
    std::string message;
    for (const std::string_view part : where) message += part;
    if (!message.empty()) message += ": ";
    return CreateStatus(api, code, (message + what).c_str());
  };
  try {
    try {
      throw;
    } catch (const StatusError& e) {
      return status(e.code, e.what());
    } catch (const Error& e) {
      return status(ErrorCode::kInvalidArgument, e.what());
    } catch (const std::bad_alloc&) {
      return status(ErrorCode::kFail, "out of memory");
    } catch (const std::exception& e) {
      return status(ErrorCode::kRuntimeException, e.what());
    }
  } catch (...) {  // no memory for the message, or not a std::exception
    return CreateStatus(api, ErrorCode::kFail, "com.graphopt: out of memory or unknown failure");
  }
}

std::pair<int, int> version_of(const OrtApiBase* base) {
  int major = 0, minor = 0;
  if (std::sscanf(base->get_version_string(), "%d.%d", &major, &minor) != 2) return {};
  return {major, minor};
}

OrtStatus* too_old_status(const OrtApiBase* base, const char* who, const char* oldest) noexcept {
  // Every runtime has revision 1, which can create a status. Without a status the failure would go unnoticed.
  const OrtApi* first = base->get_api(1);
  if (first == nullptr) return nullptr;
  const char* version = base->get_version_string != nullptr ? base->get_version_string() : "older";
  char message[200];
  std::snprintf(message, sizeof message, "%s needs ONNX Runtime %s or newer, but this is version %s", who,
                oldest, version);
  return CreateStatus(first, ErrorCode::kNotImplemented, message);
}

}  // namespace graphopt::abi
