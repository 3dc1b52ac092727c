#include "runtime/provider/pairing.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using provider::Hardware;
using provider::pair_devices;

constexpr uint32_t kAmd = 0x1002, kNvidia = 0x10de;

TEST_CASE("devices are paired by their bus") {
  const std::vector<Hardware> devices = {
      {kAmd, "0000:03:00.0"}, {kAmd, "0000:c3:00.0"}, {kNvidia, "0000:41:00.0"}};
  // DRM has no fixed order; the domain may have eight digits, and upper-case letters.
  const std::vector<Hardware> hardware = {{kNvidia, "00000000:41:00.0"},
                                          {kAmd, "0000:C3:00.0"},
                                          {0x8086, "0000:00:02.0"},
                                          {kAmd, "0000:03:00.0"}};
  CHECK((pair_devices(devices, hardware) == std::vector<int>{3, 1, 0}));
}

TEST_CASE("a device without a bus match gets an unmatched entry of its vendor") {
  const std::vector<Hardware> devices = {
      {kAmd, "0000:03:00.0"}, {kAmd, "0000:13:00.0"}, {kAmd, "0000:23:00.0"}};
  // An older runtime reports no bus; a partition of a GPU has no separate one.
  const std::vector<Hardware> hardware = {{kAmd, ""}, {kAmd, "0000:03:00.0"}, {kNvidia, ""}};
  CHECK((pair_devices(devices, hardware) == std::vector<int>{1, 0, -1}));
  CHECK((pair_devices(devices, {}) == std::vector<int>{-1, -1, -1}));
}

}  // namespace
}  // namespace graphopt::test
