// Attributes that the runtime hands over as OrtOpAttr.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/abi/error.h"
#include "runtime/abi/ort.h"

namespace graphopt::abi {

// Of an attribute that may be missing (null): nothing then. They throw when it is of another type.
std::optional<float> read_float(const OrtApi* api, const OrtOpAttr* attribute);
std::optional<int64_t> read_int(const OrtApi* api, const OrtOpAttr* attribute);
std::optional<std::vector<int64_t>> read_ints(const OrtApi* api, const OrtOpAttr* attribute);
std::optional<std::string> read_string(const OrtApi* api, const OrtOpAttr* attribute);
std::optional<std::vector<std::string>> read_strings(const OrtApi* api, const OrtOpAttr* attribute);

}  // namespace graphopt::abi
