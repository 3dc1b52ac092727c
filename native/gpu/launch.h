// What runs on a device for one node and one set of shapes: kernels, grids, arguments, workspace. Plain data,
// made by the *_plan.cpp files without any device, so that plans can be tested anywhere.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "hip/traits.h"
#include "ops/activation.h"

namespace graphopt::gpu {

// Passed to kernels by value; mirrors hip::Divisor (hip/platform.h), which says what it is.
struct Divisor {
  uint32_t d, multiplier, shift;
};

// For numerators below 2^31. Throws std::invalid_argument unless 1 <= d < 2^31.
Divisor make_divisor(int64_t d);

// What a plan must know of the device, and what a report calls it.
struct DeviceFacts {
  std::string arch;       // a name of hip::kArchitectures
  std::string name;       // of the product
  std::string driver;     // with its version
  int wave = 32;          // lanes of a wave
  int compute_units = 1;  // CUs, or multiprocessors
  int64_t l2_bytes = 0;   // of the whole device
  double clock_hz = 1e9;
  double bytes_per_second = 1e12;
  double flops_per_clock = 128;  // fp32, of one compute unit; a fused multiply-add is two
};

// Throws std::invalid_argument.
const hip::Architecture& architecture(const std::string& name);

// The facts of an architecture of hip::kArchitectures for planning without a device. Throws
// std::invalid_argument.
DeviceFacts typical_facts(const std::string& arch);

// Workspace is scratch memory of one run; weights are what `prepare` plans make once from a constant input.
enum class Role : uint8_t { kNull, kInput, kOutput, kWeights, kWorkspace };

struct Argument {
  enum class Kind : uint8_t { kPointer, kI32, kU32, kF32, kBytes };
  Kind kind = Kind::kBytes;
  Role role = Role::kNull;
  uint8_t index = 0;   // of the input, output or workspace
  uint8_t size = 0;    // bytes of a value
  int64_t offset = 0;  // bytes, of a pointer
  unsigned char bytes[64] = {};
};

struct Buffer {
  Role role = Role::kNull;
  uint8_t index = 0;
  int64_t offset = 0;
};

struct Launch {
  const char* kernel = nullptr;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block = 1;
  uint32_t lds = 0;  // dynamic
  std::vector<Argument> args;

  Launch(const char* kernel_name, uint32_t x, uint32_t y, uint32_t z, uint32_t threads)
      : kernel(kernel_name), grid{x, y, z}, block(threads) {}

  Launch& add(const Buffer& buffer) {
    Argument a;
    a.kind = Argument::Kind::kPointer;
    a.role = buffer.role;
    a.index = buffer.index;
    a.offset = buffer.offset;
    args.push_back(a);
    return *this;
  }
  // T is what the kernel declares: int32_t, uint32_t, float or a struct.
  template <class T>
  Launch& add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Argument::bytes));
    Argument a;
    a.kind = std::is_same_v<T, int32_t>    ? Argument::Kind::kI32
             : std::is_same_v<T, uint32_t> ? Argument::Kind::kU32
             : std::is_same_v<T, float>    ? Argument::Kind::kF32
                                           : Argument::Kind::kBytes;
    a.size = sizeof(T);
    std::memcpy(a.bytes, &value, sizeof(T));
    args.push_back(a);
    return *this;
  }
};

struct Plan {
  std::vector<Launch> launches;
  std::vector<int64_t> workspace;  // bytes of each workspace buffer
  int64_t weights = 0;             // bytes that a prepare plan writes
};

// Of convolutions and pools, at most.
constexpr size_t kSpatialAxes = 3;

inline constexpr Buffer input(uint8_t i) { return {Role::kInput, i, 0}; }
inline constexpr Buffer output(uint8_t i) { return {Role::kOutput, i, 0}; }
inline constexpr Buffer workspace(uint8_t i) { return {Role::kWorkspace, i, 0}; }
inline constexpr Buffer weights() { return {Role::kWeights, 0, 0}; }
inline constexpr Buffer no_buffer() { return {}; }

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// A grid dimension or element count that kernels hold in 31 bits. Throws std::invalid_argument when it does
// not fit.
uint32_t to_u31(int64_t value);
inline int32_t to_i31(int64_t value) { return static_cast<int32_t>(to_u31(value)); }

// Of the second and third axis of a grid, at most.
constexpr int64_t kMostGrid = 65535;

// The plan as JSON, with the keys of one case of the manifest of scripts/amd_cases.py ("launches") and
// "workspace".
std::string to_json(const Plan& plan);

}  // namespace graphopt::gpu
