// Predicts the nodes that the provider claims, before a session exists, for `graphopt explain --provider`. Graphs are
// passed as plain C structs, which graphopt/placement/ours.py declares too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/provider/claims.h"

namespace graphopt::provider::forecast {

// An input or output. A null name ends the list; an empty name marks an omitted value.
struct Value {
  const char* name;
  int32_t type;         // an ElementType; 0: unknown
  int32_t rank;         // -1: unknown
  const int64_t* dims;  // -1 for an unknown dim
  int32_t is_constant;
  const void* data;  // the value of a constant; null if it was not passed
};

// A null name ends the list.
struct Attribute {
  const char* name;
  int32_t kind;  // the AttributeProto type
  float f;
  int64_t i;
  const char* s;        // STRING: the text; STRINGS: `count` texts, one after another, each with a final NUL
  const int64_t* ints;  // `count` integers
  size_t count;
};

struct Node {
  const char *op, *domain;
  int32_t version;
  const Attribute* attributes;
  const Value *inputs, *outputs;
  const char* const* implicit;         // names of outer-scope values that its subgraphs read; ends with null
  int32_t has_claimed_subgraph_nodes;  // whether the provider claims nodes in its subgraphs
  int32_t is_assigned_elsewhere;       // whether it is assigned to another provider
};

// A graph with its nodes in topological order.
struct Graph {
  const Node* nodes;
  size_t count;                // number of nodes
  const char* parent;          // operator that has the graph as a subgraph; empty for the main graph
  const char* const* outputs;  // ends with null
};

// Connected nodes that the provider claims.
struct Group {
  int32_t nodes;
  double device, cpu;  // estimated times in seconds; `device` includes the copies of inputs and outputs
};

}  // namespace graphopt::provider::forecast
