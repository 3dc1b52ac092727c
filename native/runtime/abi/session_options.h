// What the options of a session say.
#pragma once

#include <optional>
#include <string>

#include "runtime/abi/error.h"

namespace graphopt::abi {

// The text of an entry of the session's configuration; none where there is no such entry.
inline std::optional<std::string> config_entry(const OrtApi* api, const OrtSessionOptions* options,
                                               const std::string& key) {
  int has = 0;
  check(api, HasSessionConfigEntry(api, options, key.c_str(), &has));
  if (has == 0) return std::nullopt;
  size_t size = 0;
  check(api, GetSessionConfigEntry(api, options, key.c_str(), nullptr, &size));
  std::string value(size, '\0');
  check(api, GetSessionConfigEntry(api, options, key.c_str(), value.data(), &size));
  value.resize(size > 0 ? size - 1 : 0);
  return value;
}

}  // namespace graphopt::abi
