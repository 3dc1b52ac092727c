// Failures as exceptions inside the library and as OrtStatus outside.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "runtime/abi/ort.h"

namespace graphopt::abi {

// What the runtime itself reported.
class StatusError : public Error {
 public:
  StatusError(const std::string& message, ErrorCode status) : Error(message), code(status) {}

  ErrorCode code;
};

// Throws StatusError with the status' code and message unless it is null; releases it.
void check(const OrtApi* api, OrtStatus* status);

// Drops the status of a question whose answer may be no; whether it was yes.
bool succeeded(const OrtApi* api, OrtStatus* status);

// The status for the exception that is being handled, its message behind the parts of `where` and a colon.
OrtStatus* current_exception_status(const OrtApi* api,
                                    std::initializer_list<std::string_view> where) noexcept;

// What a runtime gets that lacks the revision of its tables that we need: "WHO needs ONNX Runtime OLDEST or newer".
OrtStatus* too_old_status(const OrtApiBase* base, const char* who, const char* oldest) noexcept;

}  // namespace graphopt::abi
