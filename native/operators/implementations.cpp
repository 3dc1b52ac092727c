#include "operators/implementations.h"

#include <cstdio>
#include <cstdlib>

namespace graphopt {

bool log_enabled() {
  static const char* const value = std::getenv("GRAPHOPT_LOG");
  static const bool on = value != nullptr && std::string(value) == "1";
  return on;
}

void Choice::log_choice(uint32_t index, const char* name, const std::string& refused,
                        const Call* call) const {
  if ((logged_.fetch_or(1u << index) >> index & 1) != 0) return;
  std::string inputs;
  if (call != nullptr) {
    inputs = ", inputs";
    for (const Tensor& t : call->inputs) inputs += " " + (t.present() ? t.shape.text() : "-");
  }
  std::fprintf(stderr, "graphopt: %s node '%s'%s: %s%s\n", op_.c_str(), name_.c_str(), inputs.c_str(), name,
               refused.c_str());
}

}  // namespace graphopt
