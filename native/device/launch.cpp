#include "device/launch.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "operators/tensor.h"

namespace graphopt::gpu {

Divisor make_divisor(int64_t d) {
  if (d < 1 || d >= int64_t{1} << 31)
    throw std::invalid_argument("divisor out of range: " + std::to_string(d));
  uint32_t shift = 0;
  while ((uint64_t{1} << shift) < static_cast<uint64_t>(d)) ++shift;
  const uint64_t multiplier =
      ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - static_cast<uint64_t>(d))) / static_cast<uint64_t>(d) +
      1;
  return {static_cast<uint32_t>(d), static_cast<uint32_t>(multiplier), shift};
}

uint32_t to_u31(int64_t value) {
  if (value < 0 || value >= int64_t{1} << 31) {
    throw std::invalid_argument("a size, stride or grid of " + std::to_string(value) +
                                " is not in [0, 2^31)");
  }
  return static_cast<uint32_t>(value);
}

const char* kernel_name(std::initializer_list<std::string_view> parts) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string>;
  std::string name;
  for (const std::string_view part : parts) name += part;
  const std::lock_guard<std::mutex> lock(mutex);
  return names.insert(std::move(name)).first->c_str();
}

const char* type_suffix(ElementType type) {
  if (type == ElementType::kFloat) return "_f32";
  if (type == ElementType::kHalf) return "_f16";
  if ((!is_integer(type) && type != ElementType::kBool) || is_packed(type)) return nullptr;
  const int64_t bytes = bytes_of(type);
  return bytes == 1 ? "_i8" : bytes == 2 ? "_i16" : bytes == 4 ? "_i32" : "_i64";
}

Buffer Launch::slot(size_t i) const {
  uint64_t bits;
  std::memcpy(&bits, args + 8 * i, sizeof bits);
  return {static_cast<Role>(bits & 0xff), static_cast<uint8_t>(bits >> 8), static_cast<int64_t>(bits >> 16)};
}

void Launch::set_slot(size_t i, const Buffer& buffer) {
  const hip::In slot = buffer;
  std::memcpy(args + 8 * i, &slot, sizeof slot);
}

const Architecture* find_architecture(const std::string& name) {
  for (const Architecture& a : kArchitectures) {
    if (name == a.name) return &a;
  }
  return nullptr;
}

const Architecture& architecture(const std::string& name) {
  // Caches the last result: a process usually has one device, whose architecture many plans query.
  static std::atomic<const Architecture*> last{nullptr};
  const Architecture* known = last.load(std::memory_order_relaxed);
  if (known != nullptr && name == known->name) return *known;
  const Architecture* found = find_architecture(name);
  if (found == nullptr) throw std::invalid_argument("unknown architecture '" + name + "'");
  last.store(found, std::memory_order_relaxed);
  return *found;
}

DeviceFacts typical_facts(const std::string& arch) { return make_facts(arch, 0, 0, 0, 0); }

DeviceFacts make_facts(const std::string& arch, int compute_units, double clock_hz, double memory_clock_hz,
                       int memory_bits) {
  const Architecture& a = architecture(arch);
  DeviceFacts f;
  f.arch = f.code = arch;
  f.wave = a.wave;
  f.flops_per_clock = a.flops;
  f.l2_bytes = a.l2_bytes;
  f.clock_hz = clock_hz > 0 ? clock_hz : a.clock_hz;
  f.compute_units = compute_units > 0 ? compute_units : a.compute_units;
  f.xcds = a.xcds;
  double lower_bound = a.bytes_per_second;
  // The device may be a partition, with a share of the dies and of the memory bandwidth.
  if (a.xcds > 1 && f.compute_units < a.compute_units) {
    const int units_per_xcd = a.compute_units / a.xcds;
    f.xcds = std::min(a.xcds, std::max(1, (f.compute_units + units_per_xcd / 2) / units_per_xcd));
    lower_bound *= static_cast<double>(f.xcds) / a.xcds;
  }
  // For some types of memory the runtime reports the clock in other units. The result is therefore limited to
  // the bandwidth of the fastest GPU of this architecture.
  f.bytes_per_second = std::min(std::max(lower_bound, a.transfers * memory_clock_hz * memory_bits / 8),
                                a.most_bytes_per_second);
  return f;
}

namespace {

std::string to_json(const Buffer& b) {
  if (b.role == Role::kNull) return "{\"u64\": 0}";
  const char* names[] = {"null", "in", "out", "weights", "ws"};
  const std::string name =
      names[static_cast<int>(b.role)] + (b.role == Role::kWeights ? "" : std::to_string(b.index));
  return "{\"buffer\": \"" + name + "\"" +
         (b.offset != 0 ? ", \"offset\": " + std::to_string(b.offset) : "") + "}";
}

// Returns the parameters in the order of the kernel: the struct with zeros in its slots, then the pointers.
std::string args_to_json(const Launch& launch) {
  std::string json = "{\"hex\": \"" + std::string(16 * launch.slots, '0');
  for (size_t i = 8 * launch.slots; i < launch.size; ++i) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", launch.args[i]);
    json += text;
  }
  json += "\"}";
  for (size_t i = 0; i < launch.slots; ++i) json += ", " + to_json(launch.slot(i));
  return json;
}

}  // namespace

std::string to_json(const Plan& plan) {
  std::string json = "{\"workspace\": [";
  for (size_t i = 0; i < plan.workspace.size(); ++i) {
    json += (i > 0 ? ", " : "") + std::to_string(plan.workspace[i]);
  }
  json += "], \"weights\": " + std::to_string(plan.weights) + ", \"launches\": [";
  bool first = true;
  for (const Launch& launch : plan.launches) {
    json += std::string(first ? "" : ", ") + "{\"kernel\": \"" + launch.kernel + "\", \"grid\": [" +
            std::to_string(launch.grid.x) + ", " + std::to_string(launch.grid.y) + ", " +
            std::to_string(launch.grid.z) + "], \"block\": [" + std::to_string(launch.block) +
            ", 1, 1], \"lds\": " + std::to_string(launch.lds) + ", \"args\": [" + args_to_json(launch) + "]}";
    first = false;
  }
  return json + "]}";
}

}  // namespace graphopt::gpu
