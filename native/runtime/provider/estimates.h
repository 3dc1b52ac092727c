// Estimates how long a node takes on the device and on the CPU, and how long copies between them take. Needs no device,
// because claims are also predicted where there is none (forecast.h).
#pragma once

#include <string>

#include "operators/node_in_graph.h"
#include "operators/table.h"

namespace graphopt::provider {

// Estimated times in seconds.
struct Estimate {
  double device = 0, cpu = 0;
};

// Returns the estimated times of one node without copies. `op` is the provider's kernel for it.
Estimate estimate(const NodeInGraph& node, const Registration& op);
// Returns the estimated time of a copy of the value between host and device.
double copy_time(const Value& value);
// Returns true if input or output i is a cache of keys and values, which callers keep on the device between runs.
bool is_cache_input(const NodeInGraph& node, size_t i);
bool is_cache_output(const NodeInGraph& node, size_t i);

// Returns the time with its unit, as in "36 us".
std::string time_text(double seconds);

}  // namespace graphopt::provider
