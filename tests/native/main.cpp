// Runs the tests whose names contain the argument, or all.
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>

#include "check.h"
#include "device/cpu/isa.h"

namespace graphopt::test {
namespace {

std::mutex mutex;
int failures = 0;

}  // namespace

std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

int register_test(const char* name, void (*run)()) {
  all_tests().push_back({name, run});
  return 0;
}

void check(bool ok, const char* file, int line, const std::string& what) {
  if (ok) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (++failures <= 50) std::printf("%s:%d: failed: %s\n", file, line, what.c_str());
}

double reference_activation(const Activation& act, double x) {
  const double a = static_cast<double>(act.a);
  const double b = static_cast<double>(act.b);
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (act.kind) {
    case ActivationKind::kNone:
      return x;
    case ActivationKind::kRelu:
      return std::max(x, 0.0);
    case ActivationKind::kLeakyRelu:
      return x < 0 ? a * x : x;
    case ActivationKind::kClip:
      return std::min(std::max(x, a), b);
    case ActivationKind::kSigmoid:
      return sigmoid(x);
    case ActivationKind::kSilu:
      return x * sigmoid(x);
    case ActivationKind::kHardSigmoid:
      return std::max(0.0, std::min(1.0, a * x + b));
    case ActivationKind::kHardSwish:
      return x * std::max(0.0, std::min(1.0, x / 6 + 0.5));
    case ActivationKind::kTanh:
      return std::tanh(x);
    case ActivationKind::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ActivationKind::kGeluTanh:
      return x * sigmoid(2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x));
    case ActivationKind::kMish:
      return x * std::tanh(std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0));
  }
  return x;
}

std::vector<Activation> every_activation() {
  using A = ActivationKind;
  return {
      {A::kNone, 0, 0},        {A::kRelu, 0, 0},    {A::kLeakyRelu, 0.1f, 0}, {A::kLeakyRelu, -2.0f, 0},
      {A::kClip, -0.5f, 0.9f}, {A::kSigmoid, 0, 0}, {A::kSilu, 0, 0},         {A::kHardSigmoid, 0.3f, 0.4f},
      {A::kHardSwish, 0, 0},   {A::kTanh, 0, 0},    {A::kGelu, 0, 0},         {A::kGeluTanh, 0, 0},
      {A::kMish, 0, 0}};
}

}  // namespace graphopt::test

int main(int argc, char** argv) {
  using namespace graphopt;
  std::printf("instruction set: %s\n", cpu::isa_name(cpu::isa()));
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int run = 0;
  for (const test::Test& t : test::all_tests()) {
    if (argc > 1 && std::strstr(t.name, argv[1]) == nullptr) continue;
    ++run;
    const int before = test::failures;
    try {
      t.run();
    } catch (const std::exception& e) {
      test::check(false, t.name, 0, std::string("exception: ") + e.what());
    }
    std::printf("%s %s\n", test::failures == before ? "ok    " : "FAILED", t.name);
  }
  std::printf("%d tests, %d failures\n", run, test::failures);
  return run > 0 && test::failures == 0 ? 0 : 1;
}
