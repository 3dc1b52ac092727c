// Reads the configuration of a session.
#pragma once

#include <optional>
#include <string>

#include "runtime/abi/error.h"

namespace graphopt::abi {

// Returns an entry of the session's configuration; nothing if it is not set.
inline std::optional<std::string> config_entry(const OrtApi* api, const OrtSessionOptions* options,
                                               const std::string& key) {
  const auto has = get<int>(api, HasSessionConfigEntry, options, key.c_str());
  if (has == 0) return std::nullopt;
  return get_text(api, GetSessionConfigEntry, options, key.c_str());
}

}  // namespace graphopt::abi
