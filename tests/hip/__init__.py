"""GPU kernels: the same cases run on the CPU, in an AMD emulator (scripts/amd_cases.py) and on a GPU."""
