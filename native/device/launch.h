// The launches of one node for one set of shapes: kernels, grids, arguments, workspace. They are plain data. An
// operator's plan.cpp creates them without a device, so tests of plans run on any machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "device/architectures.h"
#include "device/args.h"
#include "device/element_type.h"
#include "device/traits.h"

namespace graphopt::gpu {

using hip::Divisor;

// Returns the constants of a division by d, for numerators below 2^31. Throws std::invalid_argument unless
// 1 <= d < 2^31.
Divisor make_divisor(int64_t d);

// The properties of a device that plans depend on, and its names in reports.
struct DeviceFacts {
  std::string arch;      // a name of kArchitectures
  std::string features;  // features of this device, as the runtime appends them to `arch`: ":sramecc+:xnack-"
  // Architecture of the code objects that it runs: its own or a generic target; "" for none.
  std::string code;
  std::string name;         // of the GPU model
  std::string driver;       // name and version of the runtime
  std::string bus_id;       // PCI address, "0000:03:00.0"; empty if there is none
  size_t memory = 0;        // bytes
  bool integrated = false;  // shares the memory of the CPU
  int wave = 32;            // work-items of a wave
  int compute_units = 1;    // CUs on AMD GPUs, multiprocessors on NVIDIA GPUs
  int multiprocessors = 0;  // as counted by the runtime: on RDNA, HIP may count WGPs of two CUs; 0 if unknown
  int xcds = 1;             // dies (XCDs), which receive work-groups round-robin
  int64_t l2_bytes = 0;     // of the entire device
  double clock_hz = 1e9;
  double bytes_per_second = 1e12;
  double flops_per_clock = 128;  // fp32 FLOPs of one compute unit; a fused multiply-add counts as two
};

// Returns null for a name that is not in kArchitectures.
const Architecture* find_architecture(const std::string& name);
// Throws std::invalid_argument.
const Architecture& architecture(const std::string& name);

// Returns the facts of a typical GPU, to plan without a device. Throws std::invalid_argument.
DeviceFacts typical_facts(const std::string& arch);

// Returns the facts of a device from values that its runtime reports; 0 means unknown. Throws
// std::invalid_argument.
DeviceFacts make_facts(const std::string& arch, int compute_units, double clock_hz, double memory_clock_hz,
                       int memory_bits);

// Maximum size of a kernel's arguments in bytes.
constexpr size_t kMaxArgs = 384;

// Workspace is scratch memory of one run. Weights are the results of `prepare` plans, computed once from a
// constant input.
enum class Role : uint8_t { kNull, kInput, kOutput, kWeights, kWorkspace };

// The content of a slot of a kernel's arguments (device/args.h) in a plan: a buffer and an offset.
struct Buffer {
  Role role = Role::kNull;
  uint8_t index = 0;   // index of the input, output or workspace
  int64_t offset = 0;  // bytes, below 2^47

  operator hip::In() const { return in_slot<hip::In>(); }
  operator hip::Constant() const { return in_slot<hip::Constant>(); }
  operator hip::Out() const { return in_slot<hip::Out>(); }

 private:
  // Packs the members into the 8 bytes of a pointer. no_buffer() becomes a null pointer.
  template <class Slot>
  Slot in_slot() const {
    const uint64_t bits =
        static_cast<uint64_t>(offset) << 16 | uint64_t{index} << 8 | static_cast<uint64_t>(role);
    Slot slot;
    static_assert(sizeof slot == sizeof bits);
    std::memcpy(&slot, &bits, sizeof bits);
    return slot;
  }
};

struct Grid {
  uint32_t x = 1, y = 1, z = 1;
};

// One launch. The arguments are a copy of the kernel's argument struct.
struct Launch {
  const char* kernel = nullptr;
  Grid grid;
  uint32_t block = 1;  // work-items of a work-group
  uint32_t lds = 0;    // bytes of dynamic LDS
  uint16_t slots = 0;  // number of pointers at the start of the arguments
  uint16_t size = 0;   // bytes of the arguments
  alignas(8) unsigned char args[kMaxArgs] = {};

  template <class Args>
  Launch(const char* kernel_name, const Grid& groups, uint32_t threads, const Args& arguments)
      : kernel(kernel_name), grid(groups), block(threads), slots(Args::kSlots), size(sizeof(Args)) {
    static_assert(hip::kIsArgs<Args> && sizeof(Args) <= kMaxArgs);
    std::memcpy(args, &arguments, sizeof arguments);
  }

  Buffer slot(size_t i) const;
  void set_slot(size_t i, const Buffer& buffer);
  // Args must be the type of the constructor's arguments.
  template <class Args>
  Args arguments() const {
    if (size != sizeof(Args) || slots != Args::kSlots) throw std::logic_error("arguments of another type");
    Args result;
    std::memcpy(static_cast<void*>(&result), args, sizeof result);
    return result;
  }
};

// Returns the concatenated name of a kernel. The string lives until the process ends.
const char* kernel_name(std::initializer_list<std::string_view> parts);
// Return the names that FLOAT_KERNELS and BITS_KERNELS (device/platform.h) define.
inline const char* float_kernel(std::string_view name, bool half) {
  return kernel_name({name, half ? "_f16" : "_f32"});
}
inline const char* bits_kernel(std::string_view name, int64_t bytes) {
  return kernel_name({name, "_b", std::to_string(8 * bytes)});
}
// Returns the suffix of kernels for a type: "_f32", "_f16", or "_i8" to "_i64" for booleans and integers,
// signed or not; null for other types.
const char* type_suffix(ElementType type);

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// Converts a grid dimension or element count for kernels, which use 31 bits. Throws std::invalid_argument if
// it does not fit.
uint32_t to_u31(int64_t value);
inline int32_t to_i31(int64_t value) { return static_cast<int32_t>(to_u31(value)); }

struct Plan {
  std::vector<Launch> launches;
  std::vector<int64_t> workspace;  // bytes of each workspace buffer
  int64_t weights = 0;             // bytes that a prepare plan writes

  // Adds a launch with `grid` work-groups of `threads`; the kernel's arguments must be of type Args.
  template <class Args>
  Launch& launch(const char* kernel, const Grid& grid, uint32_t threads, const Args& args) {
    return launches.emplace_back(kernel, grid, threads, args);
  }
  // Adds a launch with enough work-groups for `items` work-items.
  template <class Args>
  void launch_items(const char* kernel, int64_t items, uint32_t threads, const Args& args) {
    launch(kernel, {to_u31(divide_up(items, threads))}, threads, args);
  }
};

// Returns a plan with one launch.
template <class Args>
Plan one_launch(const char* kernel, const Grid& grid, uint32_t threads, const Args& args) {
  return {{Launch(kernel, grid, threads, args)}, {}, 0};
}
template <class Args>
Plan one_launch(const char* kernel, int64_t items, uint32_t threads, const Args& args) {
  return one_launch(kernel, Grid{to_u31(divide_up(items, threads))}, threads, args);
}

// Maximum number of spatial axes of convolutions and pools.
constexpr size_t kSpatialAxes = 3;

inline constexpr Buffer input(uint8_t i) { return {Role::kInput, i, 0}; }
inline constexpr Buffer output(uint8_t i) { return {Role::kOutput, i, 0}; }
inline constexpr Buffer workspace(uint8_t i) { return {Role::kWorkspace, i, 0}; }
inline constexpr Buffer weights() { return {Role::kWeights, 0, 0}; }
inline constexpr Buffer no_buffer() { return {}; }

// Maximum alignment that plans require of addresses.
constexpr size_t kMaxAlignment = 256;
// Returns the common alignment of addresses: the largest power of two, at most kMaxAlignment, that divides all of
// them. `bitwise_or`: the bitwise or of the addresses.
inline size_t alignment_of(uintptr_t bitwise_or) {
  const uintptr_t bits = bitwise_or | kMaxAlignment;
  return bits & (~bits + 1);
}

inline Buffer offset_by(Buffer buffer, int64_t bytes) {
  if (buffer.role != Role::kNull) buffer.offset += bytes;
  return buffer;
}

// Splits `rows` work-groups of `threads` work-items into launches and calls add(first, count) for each. A
// launch has at most 2^32 - 1 work-items along x on AMD, and at most 2^31 - 1 work-groups along x on NVIDIA.
template <class Add>
void for_each_launch(int64_t rows, int64_t threads, const Add& add) {
  const int64_t most = std::min<int64_t>(UINT32_MAX / threads, INT32_MAX);
  for (int64_t first = 0; first < rows; first += most) add(first, to_u31(std::min(most, rows - first)));
}

// Maximum size of the second and third axis of a grid.
constexpr int64_t kMaxGrid = 65535;

// Returns the plan as JSON: "launches" as in a case of the manifest of scripts/amd_cases.py, and the sizes
// "workspace" and "weights".
std::string to_json(const Plan& plan);

}  // namespace graphopt::gpu
