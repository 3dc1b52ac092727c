#include "runtime/abi/attributes.h"

namespace graphopt::abi {
namespace {

template <class T>
std::optional<T> read_number(const OrtApi* api, const OrtOpAttr* attribute, AttributeKind kind) {
  if (attribute == nullptr) return std::nullopt;
  T value = 0;
  size_t size = 0;
  check(api, ReadOpAttr(api, attribute, kind, &value, sizeof value, &size));
  return value;
}

// As many elements as it has, whatever that is: the runtime says how many bytes there must be when there are
// too few.
template <class List>
std::optional<List> read_list(const OrtApi* api, const OrtOpAttr* attribute, AttributeKind kind) {
  if (attribute == nullptr) return std::nullopt;
  constexpr size_t kElement = sizeof(typename List::value_type), kUsual = 64;
  List values(kUsual, 0);
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

}  // namespace

std::optional<float> read_float(const OrtApi* api, const OrtOpAttr* attribute) {
  return read_number<float>(api, attribute, AttributeKind::kFloat);
}

std::optional<int64_t> read_int(const OrtApi* api, const OrtOpAttr* attribute) {
  return read_number<int64_t>(api, attribute, AttributeKind::kInt);
}

std::optional<std::vector<int64_t>> read_ints(const OrtApi* api, const OrtOpAttr* attribute) {
  return read_list<std::vector<int64_t>>(api, attribute, AttributeKind::kInts);
}

std::optional<std::string> read_string(const OrtApi* api, const OrtOpAttr* attribute) {
  auto text = read_list<std::string>(api, attribute, AttributeKind::kString);
  while (text && !text->empty() && text->back() == '\0') text->pop_back();
  return text;
}

std::optional<std::vector<std::string>> read_strings(const OrtApi* api, const OrtOpAttr* attribute) {
  // One behind another, each with a final NUL.
  const auto text = read_list<std::string>(api, attribute, AttributeKind::kStrings);
  if (!text) return std::nullopt;
  std::vector<std::string> all;
  for (size_t at = 0, end = 0; (end = text->find('\0', at)) != std::string::npos; at = end + 1) {
    all.push_back(text->substr(at, end - at));
  }
  return all;
}

}  // namespace graphopt::abi
