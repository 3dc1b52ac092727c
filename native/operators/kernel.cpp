#include "operators/kernel.h"

#include "blocks/half.h"

namespace graphopt {
namespace {

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

template <class T>
T required(std::optional<T> value, const char* name, const char* type) {
  throw_if(!value, "attribute '", name, "' of type ", type, " is required");
  return *std::move(value);
}

}  // namespace

Error::Error(const std::vector<std::string>& parts) : std::runtime_error(joined(parts)) {}

const char* element_type_name(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return "float";
    case ElementType::kHalf:
      return "float16";
    case ElementType::kBfloat16:
      return "bfloat16";
    case ElementType::kFloat8E4M3Fn:
      return "float8e4m3fn";
    case ElementType::kBool:
      return "bool";
    case ElementType::kUint8:
      return "uint8";
    case ElementType::kInt8:
      return "int8";
    case ElementType::kUint16:
      return "uint16";
    case ElementType::kInt16:
      return "int16";
    case ElementType::kUint32:
      return "uint32";
    case ElementType::kUint64:
      return "uint64";
    case ElementType::kDouble:
      return "double";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kUint4:
      return "uint4";
    case ElementType::kInt4:
      return "int4";
    case ElementType::kUndefined:
      break;
  }
  return "?";
}

float Attributes::get_float(const char* name) const { return required(find_float(name), name, "float"); }
int64_t Attributes::get_int(const char* name) const { return required(find_int(name), name, "int"); }
std::vector<int64_t> Attributes::get_ints(const char* name) const {
  return required(find_ints(name), name, "ints");
}

const Tensor& Call::input(size_t i) const {
  throw_if(!has_input(i), "input ", i, " is required");
  return inputs[i];
}

std::vector<int64_t> Call::integers(size_t i) const {
  const Tensor& t = input(i);
  const int64_t n = t.shape.elements();
  switch (t.type) {
    case ElementType::kInt64:
    case ElementType::kUint64:
      return {t.as<int64_t>(), t.as<int64_t>() + n};
    case ElementType::kInt32:
      return {t.as<int32_t>(), t.as<int32_t>() + n};
    case ElementType::kUint32:
      return {t.as<uint32_t>(), t.as<uint32_t>() + n};
    case ElementType::kInt16:
      return {t.as<int16_t>(), t.as<int16_t>() + n};
    case ElementType::kUint16:
      return {t.as<uint16_t>(), t.as<uint16_t>() + n};
    case ElementType::kInt8:
      return {t.as<int8_t>(), t.as<int8_t>() + n};
    case ElementType::kUint8:
      return {t.as<uint8_t>(), t.as<uint8_t>() + n};
    default:
      throw Error("input ", i, " must hold integers");
  }
}

int64_t Call::integer(size_t i, const char* name) const {
  const std::vector<int64_t> all = integers(i);
  throw_if(all.size() != 1, name, " must have one element");
  return all[0];
}

float Call::number(size_t i, float absent) const {
  if (!has_input(i)) return absent;
  const Tensor& t = inputs[i];
  throw_if(t.shape.elements() != 1, "input ", i, " must have one element");
  if (t.type == ElementType::kFloat) return *t.as<float>();
  if (t.type == ElementType::kHalf) return *t.as<half>();
  throw Error("input ", i, " must be float or float16");
}

void Call::set_output(size_t i, const Shape& shape, ElementType type, Place place) {
  Tensor& t = outputs[i];
  t.type = type;
  t.place = place;
  t.shape = shape;
}

}  // namespace graphopt
