// The suffixes of operator names for activations, and the attributes of activations.
#pragma once

#include <vector>

#include "operators/activation.h"
#include "operators/kernel.h"

namespace graphopt {

// All kinds in the order of the enum; kNone's suffix is "".
const std::vector<ActivationKind>& all_activations();
const char* activation_suffix(ActivationKind kind);

// Reads the kind's attributes. Throws Error if one is missing.
Activation read_activation(ActivationKind kind, const Attributes& attributes);

}  // namespace graphopt
