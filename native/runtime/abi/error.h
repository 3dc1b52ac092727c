// Failures as exceptions inside the library and as OrtStatus outside.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/abi/ort.h"

namespace graphopt::abi {

// An error that the runtime reported.
class StatusError : public Error {
 public:
  StatusError(const std::string& message, ErrorCode status) : Error(message), code(status) {}

  ErrorCode code;
};

// Does nothing if the status is null. Otherwise releases it and throws StatusError with its code and message.
void check(const OrtApi* api, OrtStatus* status);

// Calls a runtime function that writes its result through the last argument, and returns that result. Throws like
// `check`.
template <class Out, class Api, class Function, class... Args>
Out get(const Api* api, const Function& function, Args... args) {
  Out out = {};
  check(api, function(api, args..., &out));
  return out;
}

// Returns the array that `fill` writes; `count` returns its length. Throws like `check`.
template <class T, class Api, class Count, class Fill, class... Args>
std::vector<T> get_list(const Api* api, const Count& count, const Fill& fill, Args... args) {
  std::vector<T> all(get<size_t>(api, count, args...));
  if (!all.empty()) check(api, fill(api, args..., all.data(), all.size()));
  return all;
}

// Returns the text that `function` writes. Called with a null buffer, `function` returns the length including the final
// NUL.
template <class Function, class... Args>
std::string get_text(const OrtApi* api, const Function& function, Args... args) {
  size_t size = 0;
  check(api, function(api, args..., nullptr, &size));
  std::string text(size, '\0');
  check(api, function(api, args..., text.data(), &size));
  text.resize(size > 0 ? size - 1 : 0);
  return text;
}

// Deleter for a runtime object; kRelease is the runtime function that releases it.
template <const auto& kRelease>
struct Releaser {
  const typename std::decay_t<decltype(kRelease)>::Api* api;
  template <class T>
  void operator()(T* object) const {
    kRelease(api, object);
  }
};
template <const auto& kRelease, class Api, class T>
std::unique_ptr<T, Releaser<kRelease>> own(const Api* api, T* object) {
  return {object, Releaser<kRelease>{api}};
}

// Returns true if the call succeeded, and releases the status. For calls whose failure is no error, such as a query of
// an optional attribute.
bool succeeded(const OrtApi* api, OrtStatus* status);

// Returns a status for the exception being handled. The message is the parts of `where`, a colon and the exception's
// text.
OrtStatus* current_exception_status(const OrtApi* api,
                                    std::initializer_list<std::string_view> where) noexcept;

// Returns the major and minor version of the runtime; zeros if the text cannot be parsed.
std::pair<int, int> version_of(const OrtApiBase* base);

// Returns the status for a runtime that is too old: "WHO needs ONNX Runtime OLDEST or newer, but this is version
// VERSION".
OrtStatus* too_old_status(const OrtApiBase* base, const char* who, const char* oldest) noexcept;

}  // namespace graphopt::abi
