// Runs the tests for one instruction set: GRAPHOPT_ISA, or the best one of the machine.
// `graphopt_tests --help` lists the options that select tests.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // stand_ins/amx.cpp handles SIGILL
#include <doctest/doctest.h>

#include <cstdio>

#include "cpu/isa.h"

int main(int argc, char** argv) {
  std::printf("instruction set: %s\n", graphopt::cpu::isa_name(graphopt::cpu::isa()));
  std::fflush(stdout);
  return doctest::Context(argc, argv).run();
}
