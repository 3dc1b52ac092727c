// Runs the tests of one instruction set, GRAPHOPT_ISA or the best of the machine.
// `graphopt_tests --help` says how to choose among them.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // SIGILL is stand_ins/amx.cpp's
#include <doctest/doctest.h>

#include <cstdio>

#include "device/cpu/isa.h"

int main(int argc, char** argv) {
  std::printf("instruction set: %s\n", graphopt::cpu::isa_name(graphopt::cpu::isa()));
  std::fflush(stdout);
  return doctest::Context(argc, argv).run();
}
