// Assigns addresses to the values of a region's plan. A value is stored in the arena (where some values share
// bytes), in the caller's inputs and outputs, in a constant, or in memory uploaded with the plan.
#pragma once

#include <vector>

#include "runtime/provider/region_cache.h"
#include "runtime/provider/steps.h"

namespace graphopt::provider {

// Writes the fixed addresses into the calls of a plan, and adds slots for the addresses that change with each run.
// `uploads`: device addresses of the values computed during planning.
void set_addresses(const Steps& steps, std::vector<void*> uploads, RegionPlan& plan);

}  // namespace graphopt::provider
