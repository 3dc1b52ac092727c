// Failures as exceptions inside the library and as OrtStatus outside.
#pragma once

#include <string>

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

// The status for the exception that is being handled, its message prefixed by `where`. Never throws.
OrtStatus* current_exception_status(const OrtApi* api, const std::string& where) noexcept;

}  // namespace graphopt::abi
