// Reads attributes that the runtime passes as OrtOpAttr.
#pragma once

#include <optional>

#include "operators/kernel.h"
#include "runtime/abi/error.h"
#include "runtime/abi/ort.h"

namespace graphopt::abi {

// Returns the value of an attribute, or nothing if it is missing (null). Throws for an attribute of another type.
std::optional<AttributeValue> read_attribute(const OrtApi* api, const OrtOpAttr* attribute,
                                             AttributeType type);

// A Base with attributes stored as OrtOpAttr. attribute() finds one by name and returns null if it is missing.
template <class Base>
class WithAttributes : public Base {
 public:
  explicit WithAttributes(const OrtApi* api) : attributes_api_(api) {}
  std::optional<AttributeValue> find(const char* name, AttributeType type) const final {
    return read_attribute(attributes_api_, attribute(name), type);
  }

 protected:
  virtual const OrtOpAttr* attribute(const char* name) const = 0;

 private:
  const OrtApi* attributes_api_;
};

}  // namespace graphopt::abi
