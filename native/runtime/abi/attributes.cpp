#include "runtime/abi/attributes.h"

namespace graphopt::abi {
namespace {

template <class T>
T read_number(const OrtApi* api, const OrtOpAttr* attribute, AttributeKind kind) {
  T value = 0;
  get<size_t>(api, ReadOpAttr, attribute, kind, &value, sizeof value);
  return value;
}

// Reads a list of any length. When the buffer is too small, the runtime reports the number of bytes needed.
template <class List>
List read_list(const OrtApi* api, const OrtOpAttr* attribute, AttributeKind kind) {
  constexpr size_t kElement = sizeof(typename List::value_type), kInitialSize = 64;
  List values(kInitialSize, 0);
  size_t bytes = 0;
  OrtStatus* status = ReadOpAttr(api, attribute, kind, values.data(), values.size() * kElement, &bytes);
  if (status != nullptr && bytes > values.size() * kElement) {
    ReleaseStatus(api, status);
    values.resize(bytes / kElement);
    status = ReadOpAttr(api, attribute, kind, values.data(), values.size() * kElement, &bytes);
  }
  check(api, status);
  values.resize(bytes / kElement);
  return values;
}

// Splits strings that are stored one after another, each with a final NUL.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> all;
  for (size_t at = 0, end = 0; (end = text.find('\0', at)) != std::string::npos; at = end + 1) {
    all.push_back(text.substr(at, end - at));
  }
  return all;
}

}  // namespace

std::optional<AttributeValue> read_attribute(const OrtApi* api, const OrtOpAttr* attribute,
                                             AttributeType type) {
  if (attribute == nullptr) return std::nullopt;
  switch (type) {
    case AttributeType::kFloat:
      return read_number<float>(api, attribute, AttributeKind::kFloat);
    case AttributeType::kInt:
      return read_number<int64_t>(api, attribute, AttributeKind::kInt);
    case AttributeType::kInts:
      return read_list<std::vector<int64_t>>(api, attribute, AttributeKind::kInts);
    case AttributeType::kStrings:
      return split(read_list<std::string>(api, attribute, AttributeKind::kStrings));
    case AttributeType::kString:
      break;
  }
  auto text = read_list<std::string>(api, attribute, AttributeKind::kString);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

}  // namespace graphopt::abi
