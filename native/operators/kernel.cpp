#include "operators/kernel.h"

#include "blocks/half.h"

namespace graphopt {
namespace {

template <class T>
T required(std::optional<T> value, const char* name, const char* type) {
  if (!value) throw Error(std::string("attribute '") + name + "' of type " + type + " is required");
  return *std::move(value);
}

}  // namespace

const char* element_type_name(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return "float";
    case ElementType::kHalf:
      return "float16";
    case ElementType::kBfloat16:
      return "bfloat16";
    case ElementType::kBool:
      return "bool";
    case ElementType::kUint8:
      return "uint8";
    case ElementType::kInt8:
      return "int8";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kUndefined:
      break;
  }
  return "?";
}

int64_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::kUint8:
    case ElementType::kInt8:
    case ElementType::kBool:
      return 1;
    case ElementType::kHalf:
    case ElementType::kBfloat16:
      return 2;
    case ElementType::kFloat:
    case ElementType::kInt32:
      return 4;
    case ElementType::kInt64:
      return 8;
    case ElementType::kUndefined:
      break;
  }
  return 0;
}

bool is_float(ElementType type) { return type == ElementType::kFloat || type == ElementType::kHalf; }

float Attributes::get_float(const char* name) const { return required(find_float(name), name, "float"); }
int64_t Attributes::get_int(const char* name) const { return required(find_int(name), name, "int"); }
std::vector<int64_t> Attributes::get_ints(const char* name) const {
  return required(find_ints(name), name, "ints");
}

const Tensor& Call::input(size_t i) const {
  if (!has_input(i)) throw Error("input " + std::to_string(i) + " is required");
  return inputs[i];
}

std::vector<int64_t> Call::integers(size_t i) const {
  const Tensor& t = input(i);
  const int64_t n = t.shape.elements();
  if (t.type == ElementType::kInt64) return {t.as<int64_t>(), t.as<int64_t>() + n};
  if (t.type == ElementType::kInt32) return {t.as<int32_t>(), t.as<int32_t>() + n};
  throw Error("input " + std::to_string(i) + " must hold integers");
}

float Call::number(size_t i, float absent) const {
  if (!has_input(i)) return absent;
  const Tensor& t = inputs[i];
  if (t.shape.elements() != 1) throw Error("input " + std::to_string(i) + " must hold one number");
  if (t.type == ElementType::kFloat) return *t.as<float>();
  if (t.type == ElementType::kHalf) return *t.as<half>();
  throw Error("input " + std::to_string(i) + " must be float or float16");
}

void Call::set_output(size_t i, const Shape& shape, ElementType type, Place place) {
  Tensor& t = outputs[i];
  t.type = type;
  t.place = place;
  t.shape = shape;
}

}  // namespace graphopt
