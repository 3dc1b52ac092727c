// Which nodes of a graph a provider takes, asked before there is a session: `graphopt explain --provider`. A
// graph is handed over as plain C structs (graphopt/placement/ours.py has the same).
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/provider/claims.h"

namespace graphopt::provider::forecast {

// An input or output, which ends where name is null. A name is empty where the node leaves the value out.
struct Value {
  const char* name;
  int32_t type;         // of ElementType; 0: not known
  int32_t rank;         // -1: not known
  const int64_t* dims;  // -1 where one is not known
  int32_t is_constant;
  const void* data;  // of a constant, as far as it is handed over
};

// It ends where name is null.
struct Attribute {
  const char* name;
  int32_t kind;  // the number of its type in ONNX's AttributeProto
  float f;
  int64_t i;
  const char* s;
  const int64_t* ints;
  size_t count;
};

struct Node {
  const char *op, *domain;
  int32_t version;
  const Attribute* attributes;
  const Value *inputs, *outputs;
  const char* const* implicit;  // names of what its bodies read of the graph around it; ends with null
  int32_t works_inside;         // whether the provider takes nodes of its bodies
  int32_t is_elsewhere;         // whether another provider has it already
};

// A graph, whose nodes are in topological order.
struct Graph {
  const Node* nodes;
  size_t count;
  const char* parent;          // the operator whose body it is; empty for the main graph
  const char* const* outputs;  // ends with null
};

}  // namespace graphopt::provider::forecast
