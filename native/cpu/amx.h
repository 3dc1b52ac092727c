// Intel's AMX: registers that hold tiles of a matrix, and what multiplies them in bfloat16.
#pragma once

namespace graphopt::cpu {

// Whether this machine has it and the operating system lets this process use it, which it is asked for by the first
// call: the registers are large, so that only the processes that want them have them saved.
bool may_use_amx();

}  // namespace graphopt::cpu
