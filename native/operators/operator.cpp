#include "operators/operator.h"

namespace graphopt {

void require_shape(const char* name, const Shape& given, const Shape& wanted) {
  throw_if(given != wanted, name, " must be ", wanted, ", got ", given);
}

void require_same_shape(const char* name, const Shape& given, const char* like, const Shape& wanted) {
  if (given == wanted) return;
  throw Error(name, " must have the shape of ", like, ", ", wanted, ", got ", given);
}

}  // namespace graphopt
