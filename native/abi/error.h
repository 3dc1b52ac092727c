// Failures as exceptions inside the library and as OrtStatus outside.
#pragma once

#include <stdexcept>
#include <string>

#include "abi/ort.h"

namespace graphopt::abi {

// What is wrong with a node, its attributes or its inputs. The wrapper adds the op, the node and the shapes.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ErrorCode code = ErrorCode::kInvalidArgument)
      : std::runtime_error(message), code(code) {}

  ErrorCode code;
};

// Throws Error with the status' code and message unless it is null; releases it.
void check(const OrtApi* api, OrtStatus* status);

// The status for the exception that is being handled, its message prefixed by `where`. Never throws.
OrtStatus* current_exception_status(const OrtApi* api, const std::string& where) noexcept;

}  // namespace graphopt::abi
