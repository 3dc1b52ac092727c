// Where the values of a region lie in one of its plans: in the arena, where some share bytes, in the caller's inputs and
// outputs, in constants, or in what was uploaded with the plan.
#pragma once

#include <vector>

#include "runtime/provider/region_cache.h"
#include "runtime/provider/steps.h"

namespace graphopt::provider {

// Gives the calls of a plan their addresses, and the plan the slots for those that each run tells. `uploads`: where on the
// device the values are that were computed with the plan.
void set_addresses(const Steps& steps, std::vector<void*> uploads, RegionPlan& plan);

}  // namespace graphopt::provider
