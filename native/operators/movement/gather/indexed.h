// Functions common to Gather and Scatter: input 1 holds indices along an axis, or tuples of indices.
#pragma once

#include <cstdint>
#include <string>

#include "operators/kernel_bases.h"

namespace graphopt {

// For GatherElements and ScatterElements, which have an index for each element. Throws Error unless inputs 0
// and 1 have the same rank.
void require_equal_ranks(const Call& call);
// Refuses a node whose data has an unknown rank or a rank above 5.
std::string refuse_elements(const Node& node);

// Returns the number of indices in a tuple of GatherND or ScatterND: the size of the last axis of input 1.
// Throws Error if input 1 is a scalar.
int64_t tuple_length(const Call& call);
// Returns the shape of the slices of x that the tuples select: all axes of `indices` but the last, then the
// axes of x after the first `indexed` ones.
Shape selected_shape(const Shape& indices, const Shape& x, size_t indexed);
// Returns the reason to refuse a GatherND or ScatterND node, or "". Tuples may have at most five indices, and
// their length must be known.
std::string refuse_tuples(const Node& node);

}  // namespace graphopt
