// Runs the device kernels on the CPU, for tests: one fiber for each work-item, one work-group at a time. Each
// wave runs to its next barrier before the next wave starts, or, in random order, to its next shuffle. The order
// of waves and work-items is chosen at run time (forward, reverse, seeded random): a missing barrier then changes
// the results. LDS is filled with NaN before each work-group, which reveals reads of unwritten LDS. Copies to LDS
// complete at once in forward order, and otherwise when the work-item waits for them. A barrier or shuffle that
// some work-items never reach ends the process with a message.
//
// Compile with -DGRAPHOPT_WAVE=32 or 64.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "blocks/half.h"
#include "device/traits.h"

// device/platform.h explains why these are macros.
#define GRAPHOPT_GLOBAL(bounds)
#define SHARED(name, ...)                                                                           \
  static_assert(sizeof(__VA_ARGS__) <= graphopt::hip::kLdsBytes, "more LDS than a work-group has"); \
  auto& name = *static_cast<__VA_ARGS__*>(graphopt::hip::cpu::static_lds(sizeof(__VA_ARGS__)))
// Kernels for NVIDIA only may have more LDS than AMD has.
#define LARGE_SHARED(name, ...)                                                                           \
  static_assert(sizeof(__VA_ARGS__) <= graphopt::hip::kNvidiaLdsBytes, "more LDS than a work-group has"); \
  auto& name = *static_cast<__VA_ARGS__*>(graphopt::hip::cpu::static_lds(sizeof(__VA_ARGS__)))
#define DYNAMIC_SHARED(name, Type) Type* name = static_cast<Type*>(graphopt::hip::cpu::dynamic_lds())

namespace graphopt::hip {

using half_t = graphopt::half;

namespace cpu {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

// Calls a kernel with arguments given by address, in parameter order.
using Entry = void (*)(void (*kernel)(), void** args);

template <class... P, size_t... I>
void call_with(void (*kernel)(P...), void** args, std::index_sequence<I...>) {
  kernel(*static_cast<P*>(args[I])...);
}

// Adds a kernel to the table of graphopt_host_launch. `parameters`: their sizes in bytes.
void add_kernel(const char* name, void (*kernel)(), int max_threads, Entry entry,
                std::vector<size_t> parameters);

// The position of a work-item. The rest of its state is in hip_on_cpu.cpp.
struct WorkItem {
  Dim3 thread, block;
};
extern WorkItem* current;

void* static_lds(size_t bytes);
void* dynamic_lds();
void wait_for_group();
void wait_for_wave();
// `from` null: copies zeros. `bytes`: at most 16.
void copy_to_lds(void* to, const void* from, size_t bytes);
void end_group_of_copies();
void wait_for_copies();
void wait_for_copies_except(size_t groups);
constexpr size_t kExchangeBytes = 64;  // maximum size of an exchanged value
// Exchanges values within a wave: each work-item passes `bytes` bytes and receives the address of the value
// of work-item 0 of its wave. The values are kExchangeBytes apart and remain valid until the second exchange
// after this one.
const char* wave_exchange(const void* mine, size_t bytes);

template <class T>
class Exchanged {
 public:
  explicit Exchanged(const T& mine) : lanes_(wave_exchange(&mine, sizeof mine)) {
    static_assert(sizeof(T) <= kExchangeBytes);
  }
  const T& of(int lane) const { return *reinterpret_cast<const T*>(lanes_ + lane * kExchangeBytes); }

 private:
  const char* lanes_;
};

}  // namespace cpu

// Adds a kernel to the table.
struct KernelEntry {
  template <class... P>
  KernelEntry(const char* name, void (*kernel)(P...), int max_threads) {
    cpu::add_kernel(name, reinterpret_cast<void (*)()>(kernel), max_threads,
                    [](void (*k)(), void** args) {
                      cpu::call_with(reinterpret_cast<void (*)(P...)>(k), args,
                                     std::index_sequence_for<P...>());
                    },
                    {sizeof(P)...});
  }
};

inline int thread_x() { return static_cast<int>(cpu::current->thread.x); }
inline int block_x() { return static_cast<int>(cpu::current->block.x); }
inline int block_y() { return static_cast<int>(cpu::current->block.y); }
inline int block_z() { return static_cast<int>(cpu::current->block.z); }

inline void barrier() { cpu::wait_for_group(); }
inline void lds_barrier() { barrier(); }
inline void wave_barrier() { cpu::wait_for_wave(); }

inline uint32_t shuffle_bits(uint32_t x, int lane) {
  return cpu::Exchanged<uint32_t>(x).of(lane & (GRAPHOPT_WAVE - 1));
}

inline bool any_in_wave(bool x) {
  const cpu::Exchanged<bool> all(x);
  bool any = false;
  for (int lane = 0; lane < GRAPHOPT_WAVE; ++lane) any = any || all.of(lane);
  return any;
}

inline uint32_t multiply_high(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}

inline int opaque(int x) { return x; }
template <class T>
T* global(T* p) {
  return p;
}
inline int same_in_wave(int x) { return x; }
inline void keep_order() {}
template <class Vector>
inline void compute_here(Vector&) {}

inline float exp2_fast(float x) { return std::exp2(x); }
inline float log2_fast(float x) { return std::log2(x); }
inline float rcp_fast(float x) { return 1.0f / x; }
inline float sqrt_exact(float x) { return std::sqrt(x); }
inline float fused_multiply_add(float a, float b, float c) { return a * b + c; }
inline float max_float(float a, float b) { return std::fmax(a, b); }

inline uint32_t atomic_exchange(uint32_t* p, uint32_t value) { return std::exchange(*p, value); }

}  // namespace graphopt::hip
