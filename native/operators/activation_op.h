// Activation suffixes of op names and their attributes.
#pragma once

#include <vector>

#include "operators/activation.h"
#include "operators/kernel.h"

namespace graphopt {

// In the order of the enum; kNone's suffix is "".
const std::vector<ActivationKind>& all_activations();
const char* activation_suffix(ActivationKind kind);

// Reads the attributes that the kind has. Throws Error.
Activation read_activation(ActivationKind kind, const Attributes& attributes);

}  // namespace graphopt
