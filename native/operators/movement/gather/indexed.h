// Functions common to Gather and Scatter: input 1 holds indices along an axis, or tuples of indices.
#pragma once

#include <cstdint>
#include <string>

#include "operators/kernel_bases.h"

namespace graphopt {

// For GatherElements and ScatterElements, which have an index for each element. Throws Error.
void require_equal_ranks(const Call& call);
std::string refuse_elements(const Node& node);

// For GatherND and ScatterND: the last axis of their indices holds the tuples. Throws Error.
int64_t tuple_length(const Call& call);
// The shape of the addressed elements: for each tuple, an element of x without its first `indexed` axes.
Shape pointed_at(const Shape& indices, const Shape& x, size_t indexed);
// Returns the reason to refuse a node, or "". Tuples have at most five indices, and their length must be known.
std::string refuse_tuples(const Node& node);

}  // namespace graphopt
