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

std::string buffer_name(const Argument& a) {
  const char* names[] = {"null", "in", "out", "weights", "ws"};
  return names[static_cast<int>(a.role)] + (a.role == Role::kWeights ? "" : std::to_string(a.index));
}

std::string to_json(const Argument& a) {
  char text[64];
  switch (a.kind) {
    case Argument::Kind::kPointer:
      if (a.role == Role::kNull) return "{\"u64\": 0}";
      if (a.offset != 0) {
        return "{\"buffer\": \"" + buffer_name(a) + "\", \"offset\": " + std::to_string(a.offset) + "}";
      }
      return "{\"buffer\": \"" + buffer_name(a) + "\"}";
    case Argument::Kind::kI32: {
      int32_t value;
      std::memcpy(&value, a.bytes, sizeof value);
      return "{\"i32\": " + std::to_string(value) + "}";
    }
    case Argument::Kind::kU32: {
      uint32_t value;
      std::memcpy(&value, a.bytes, sizeof value);
      return "{\"u32\": " + std::to_string(value) + "}";
    }
    case Argument::Kind::kF32: {
      float value;
      std::memcpy(&value, a.bytes, sizeof value);
      std::snprintf(text, sizeof text, "{\"f32\": %.9g}", static_cast<double>(value));
      return text;
    }
    case Argument::Kind::kBytes:
      break;
  }
  std::string hex;
  for (int i = 0; i < a.size; ++i) {
    std::snprintf(text, sizeof text, "%02x", a.bytes[i]);
    hex += text;
  }
  return "{\"hex\": \"" + hex + "\"}";
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
            std::to_string(launch.grid[0]) + ", " + std::to_string(launch.grid[1]) + ", " +
            std::to_string(launch.grid[2]) + "], \"block\": [" + std::to_string(launch.block) +
            ", 1, 1], \"lds\": " + std::to_string(launch.lds) + ", \"args\": [";
    for (size_t i = 0; i < launch.args.size(); ++i) json += (i > 0 ? ", " : "") + to_json(launch.args[i]);
    json += "]}";
    first = false;
  }
  return json + "]}";
}

}  // namespace graphopt::gpu
