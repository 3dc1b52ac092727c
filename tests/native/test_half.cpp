#include <cstring>

#include "testing.h"

namespace graphopt::test {
namespace {

double value_of(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

half from_bits(uint16_t bits) {
  half h;
  std::memcpy(static_cast<void*>(&h), &bits, sizeof bits);
  return h;
}

uint16_t to_bits(half h) {
  uint16_t bits;
  std::memcpy(&bits, &h, sizeof bits);
  return bits;
}

TEST_CASE("half holds every value") {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const double expected = value_of(bits);
    const float got = from_bits(bits);
    CHECK((std::isnan(expected) ? std::isnan(got) : static_cast<double>(got) == expected));
    if (!std::isnan(expected)) CHECK(to_bits(half(got)) == bits);
  }
}

TEST_CASE("half rounds to nearest even") {
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {  // all neighbours below infinity
    const double low = value_of(bits), high = value_of(static_cast<uint16_t>(bits + 1));
    const double middle = (low + high) / 2;  // exact in float
    const auto even = static_cast<uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    CHECK(to_bits(half(static_cast<float>(middle))) == even);
    CHECK(to_bits(half(std::nextafterf(static_cast<float>(middle), 1e9f))) == bits + 1);
    CHECK(to_bits(half(-std::nextafterf(static_cast<float>(middle), 0.0f))) == (bits | 0x8000));
  }
  CHECK(to_bits(half(65519.0f)) == 0x7bff);
  CHECK(to_bits(half(65520.0f)) == 0x7c00);
  CHECK(to_bits(half(-1e30f)) == 0xfc00);
  CHECK(std::isnan(static_cast<float>(half(std::nanf("")))));
}

}  // namespace
}  // namespace graphopt::test
