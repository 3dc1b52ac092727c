#include <cstring>

#include "runtime/abi/ort.h"
#include "testing.h"

extern "C" graphopt::abi::OrtStatus* RegisterCustomOps(graphopt::abi::OrtSessionOptions*,
                                                       const graphopt::abi::OrtApiBase*);

namespace graphopt::test {
namespace {

std::string last_message;

// A runtime from before interface revision 18 supports revision 1 only.
const abi::OrtApi* old_get_api(uint32_t revision) {
  static abi::OrtApi api = [] {
    abi::OrtApi table{};
    table.slots[0] = reinterpret_cast<void (*)()>(+[](abi::ErrorCode, const char* message) {
      last_message = message;
      return reinterpret_cast<abi::OrtStatus*>(&last_message);
    });
    return table;
  }();
  return revision == 1 ? &api : nullptr;
}

TEST_CASE("an old runtime gets an error and not silence") {
  const abi::OrtApiBase base{old_get_api, [] { return "1.17.3"; }};
  CHECK(RegisterCustomOps(nullptr, &base) != nullptr);
  CHECK(last_message == "graphopt needs ONNX Runtime 1.18 or newer, but this is version 1.17.3");
}

}  // namespace
}  // namespace graphopt::test
