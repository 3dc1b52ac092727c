// Attributes that the runtime hands over as OrtOpAttr.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/abi/error.h"
#include "runtime/abi/ort.h"

namespace graphopt::abi {

// The value of an attribute, or nothing where it is missing (null). They throw when it is of another type.
std::optional<float> read_float(const OrtApi* api, const OrtOpAttr* attribute);
std::optional<int64_t> read_int(const OrtApi* api, const OrtOpAttr* attribute);
std::optional<std::vector<int64_t>> read_ints(const OrtApi* api, const OrtOpAttr* attribute);
std::optional<std::string> read_string(const OrtApi* api, const OrtOpAttr* attribute);
std::optional<std::vector<std::string>> read_strings(const OrtApi* api, const OrtOpAttr* attribute);

// A Base whose attributes are such: they are found by name, null where there is none.
template <class Base>
class WithAttributes : public Base {
 public:
  explicit WithAttributes(const OrtApi* api) : attributes_api_(api) {}

  std::optional<float> find_float(const char* name) const final { return read(read_float, name); }
  std::optional<int64_t> find_int(const char* name) const final { return read(read_int, name); }
  std::optional<std::vector<int64_t>> find_ints(const char* name) const final {
    return read(read_ints, name);
  }
  std::optional<std::string> find_string(const char* name) const final { return read(read_string, name); }
  std::optional<std::vector<std::string>> find_strings(const char* name) const final {
    return read(read_strings, name);
  }

 protected:
  virtual const OrtOpAttr* attribute(const char* name) const = 0;

 private:
  template <class T>
  std::optional<T> read(std::optional<T> (*reader)(const OrtApi*, const OrtOpAttr*), const char* name) const {
    return reader(attributes_api_, attribute(name));
  }

  const OrtApi* attributes_api_;
};

}  // namespace graphopt::abi
