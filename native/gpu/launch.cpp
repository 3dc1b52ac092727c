#include "gpu/launch.h"

#include <cstdio>
#include <stdexcept>

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
    throw std::invalid_argument("a tensor or grid with " + std::to_string(value) + " elements is too large");
  }
  return static_cast<uint32_t>(value);
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

const hip::Architecture& architecture(const std::string& name) {
  for (const hip::Architecture& a : hip::kArchitectures) {
    if (name == a.name) return a;
  }
  throw std::invalid_argument("unknown architecture '" + name + "'");
}

// Typical parts: MI210, MI300X, MI355X, RX 6900 XT, RX 7900 XTX, Strix Halo, RX 9070 XT, H200.
DeviceFacts typical_facts(const std::string& arch) {
  const hip::Architecture& a = architecture(arch);
  DeviceFacts f;
  f.arch = arch;
  f.wave = a.wave;
  f.flops_per_clock = a.matrix_f32 ? 256 : 128;
  f.clock_hz = 1.7e9;
  f.compute_units = 104;
  f.l2_bytes = 8 << 20;
  f.bytes_per_second = 1.6e12;
  if (arch == "gfx942" || arch == "gfx950") {
    f.compute_units = 304;
    f.clock_hz = 2.1e9;
    f.l2_bytes = 256 << 20;
    f.bytes_per_second = 5.3e12;
  } else if (arch.rfind("gfx1", 0) == 0) {
    f.compute_units = arch == "gfx1150" ? 16 : arch == "gfx1151" ? 40 : 80;
    f.clock_hz = 2.3e9;
    f.l2_bytes = 64 << 20;
    f.bytes_per_second = arch == "gfx1150" ? 1.2e11 : arch == "gfx1151" ? 2.5e11 : 8e11;
  } else if (arch == "sm_90") {
    f.compute_units = 132;
    f.clock_hz = 1.98e9;
    f.l2_bytes = 50 << 20;
    f.bytes_per_second = 4.2e12;
    f.flops_per_clock = 256;
  }
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

// The parameters in the order of the kernel: the struct with its slots empty, then the pointers.
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
