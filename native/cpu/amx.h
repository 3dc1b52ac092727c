// Support for Intel AMX: tile registers, and instructions that multiply them in bfloat16.
#pragma once

namespace graphopt::cpu {

// Returns true if this machine has AMX and the operating system lets this process use it. The first call requests
// permission, because Linux saves these large registers only for processes that need them.
bool may_use_amx();

}  // namespace graphopt::cpu
