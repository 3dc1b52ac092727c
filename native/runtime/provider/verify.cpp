// Compares the results of captured graphs with the results of launches. Replays on AMD GPUs have given stale
// and corrupt results without an error (docs/amd_behaviour.md).
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "blocks/half.h"
#include "runtime/provider/region.h"
#include "runtime/provider/staging.h"

namespace graphopt::provider {
namespace {

constexpr size_t kPatternBytes = size_t{1} << 20;

// Fills memory with bytes that are NaN in every floating-point type.
void fill_with_nan(gpu::Device& device, void* memory, size_t bytes, void* stream) {
  const std::vector<unsigned char> pattern(std::min(bytes, kPatternBytes), 0xff);
  staging(device).upload(memory, pattern.data(), pattern.size(), stream);
  for (size_t done = pattern.size(); done < bytes; done *= 2) {
    device.copy(static_cast<char*>(memory) + done, memory, std::min(done, bytes - done), stream);
  }
}

std::vector<unsigned char> read(gpu::Device& device, const void* memory, size_t bytes, void* stream) {
  std::vector<unsigned char> content(memory != nullptr ? bytes : 0);
  if (content.empty()) return content;
  device.copy(content.data(), memory, bytes, stream);
  device.synchronize(stream);
  return content;
}

// Rotates the elements, which keeps indices and sizes valid. If all elements are equal, floats get a pattern.
void alter(std::vector<unsigned char>& content, ElementType type) {
  const auto element = static_cast<size_t>(bytes_of(type));
  if (content.size() < element || element == 0) return;
  const std::vector<unsigned char> before = content;
  std::rotate(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(element), content.end());
  if (content != before) return;
  for (size_t i = 0; i < content.size() / element; ++i) {
    const float value = 0.5f * static_cast<float>(i % 5) - 1.0f;
    const half rounded(value);
    if (type == ElementType::kFloat) std::memcpy(content.data() + i * element, &value, element);
    if (type == ElementType::kHalf) std::memcpy(content.data() + i * element, &rounded, element);
  }
}

}  // namespace

// Runs the launches. Then fills the arena, and the outputs that do not share memory with an input, with NaN, and runs
// the graph. Returns true if all outputs are equal, bit by bit.
bool Region::replays_as_launched(RegionPlan& plan, const Captured& captured, void* stream) const {
  void* arena = captured.arena != nullptr ? captured.arena->data() : nullptr;
  const auto outputs = [&] {
    std::vector<std::vector<unsigned char>> all;
    for (size_t i = steps_.inputs; i < captured.addresses.size(); ++i) {
      all.push_back(read(device_, captured.addresses[i], plan.bytes[i], stream));
    }
    return all;
  };
  if (!enqueue(plan, arena, captured.addresses, stream, false)) throw Error("a vendor library refuses");
  const auto launched = outputs();
  if (plan.arena_bytes > 0) fill_with_nan(device_, arena, plan.arena_bytes, stream);
  const std::vector<bool> in_place = this->in_place(plan, captured.addresses);
  for (size_t i = steps_.inputs; i < captured.addresses.size(); ++i) {
    if (captured.addresses[i] != nullptr && plan.bytes[i] > 0 && !in_place[i]) {
      fill_with_nan(device_, captured.addresses[i], plan.bytes[i], stream);
    }
  }
  captured.graph->launch(stream);
  return outputs() == launched;
}

bool Region::check_graph(RegionPlan& plan, const std::function<bool()>& equal) const {
  try {
    if (equal()) return true;
  } catch (const std::exception& e) {
    refuse(plan, e.what());
    return false;
  }
  if (!disable_graphs()) return false;
  std::fprintf(
      stderr,
      "graphopt: a captured graph of the %s gave other results than its launches (%s): this process uses no "
      "graphs any more\n",
      name_.c_str(), device_.facts().driver.c_str());
  return false;
}

// Compares the graph that works on copies (plan.staged) with the launches, for the inputs of this run and again for
// altered inputs.
bool Region::verify(RegionPlan& plan, const std::vector<void*>& addresses, void* stream) const {
  const Captured& captured = plan.staged;
  plan.verified = check_graph(plan, [&] {
    copy(plan, captured.addresses, addresses, 0, steps_.inputs, stream);
    if (!replays_as_launched(plan, captured, stream)) return false;
    for (size_t i = 0; i < steps_.inputs; ++i) {
      std::vector<unsigned char> content = read(device_, captured.addresses[i], plan.bytes[i], stream);
      if (content.empty()) continue;
      alter(content, plan.types[i]);
      staging(device_).upload(captured.addresses[i], content.data(), content.size(), stream);
    }
    return replays_as_launched(plan, captured, stream);
  });
  return plan.verified;
}

}  // namespace graphopt::provider
