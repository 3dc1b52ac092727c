#include "operators/operator.h"

namespace graphopt {

void require_shape(const char* name, const Shape& given, const Shape& wanted) {
  if (given != wanted) throw Error(std::string(name) + " must be " + wanted.text() + ", got " + given.text());
}

void require_like(const char* name, const Shape& given, const char* like, const Shape& wanted) {
  if (given == wanted) return;
  throw Error(std::string(name) + " must be like " + like + " " + wanted.text() + ", got " + given.text());
}

}  // namespace graphopt
