// The language of the device kernels, for three compilers: clang for AMD (-x hip, device only, without ROCm's headers
// and device libraries), nvcc for NVIDIA (-x cu), and any C++17 compiler for the CPU (device/emulator/hip_on_cpu.h).
//
// A kernel is defined with macros, since attributes, unmangled names and pragmas cannot depend on template arguments:
//   KERNEL(name, bounds, Args, x, y) { ... }
// bounds is the maximum number of work-items of a work-group, or a LaunchBounds. Args is a struct of device/args.h, and
// x and y are all its slots, in order. The body reads `args`. A body may use
//   thread_x(), block_x(), block_y(), block_z()   indices; sizes are passed as parameters
//   work_item(threads)          the index of the work-item in the grid, from block_x() and thread_x()
//   SHARED(name, Type)          a static object in LDS, uninitialised; at most one in a kernel
//   DYNAMIC_SHARED(name, Type)  a pointer to the dynamic LDS of the launch; at most one in a kernel
//   LARGE_SHARED(name, Type)    like SHARED, for more than the 48 KiB that NVIDIA allows statically: on NVIDIA the
//                               launch requests the memory
//   barrier()                   waits for all work-items of the work-group; orders their accesses to memory and LDS
//   lds_barrier()               the same, but orders only accesses to LDS: on AMD, accesses to memory stay in flight
//   named_barrier(i, threads)   waits for `threads` work-items, which are complete waves and call it with the same i
//                               in [0, 15); on NVIDIA only
//   wave_barrier()              waits for all work-items of the wave; orders their accesses to LDS
//   shuffle(x, lane), shuffle_xor(x, mask)        must be called by every work-item of the wave
//   shuffle_in<n>(x, i)         the value of work-item i of each n adjacent work-items, a power of two
//   any_in_wave(x)              whether x is true for any work-item of the wave
//   UNROLL                      before a loop with a constant trip count; UNROLL_A_LITTLE if complete unrolling would
//                               take too many registers; NO_UNROLL if any unrolling would
//   opaque(i)                   returns i and hides its value from the compiler: a loop recomputes expressions of it
//                               instead of keeping them in registers
//   reload<kReload>(args)       returns args, but the slots of the result must not be used. If kReload is true (by
//                               default on GCN), the compiler for AMD reads arguments again instead of keeping them in
//                               scalar registers
//   global(p)                   returns p, which must point to global memory. Without it, clang for AMD emits `flat`
//                               accesses, which also wait for LDS, if the pointer was loaded from LDS or may be null
//   same_in_wave(i)             returns i, which must be uniform in the wave; expressions of the result use scalar
//                               registers
//   keep_order()                a barrier for the compiler: no load moves across it, which bounds the number of
//                               registers that wait for loads
//   compute_here(x)             makes the compiler compute the vector x before this point. Otherwise it moves the
//                               instructions of RDNA's matrix units past barriers
//   copy_to_lds(to, from, inside), wait_for_copies()
//                               copies 16 bytes, or n with copy_to_lds<n>() (zeros unless `inside`), and waits for all
//                               copies of the work-item; asynchronous only with kCopiesToLds
//   end_group_of_copies(), wait_for_copies_except<n>()
//                               ends a group of copies; waits for all groups except the last n
//   half_t, Pack<T>, load_pack, store_pack
//                               16-byte vectors of float or half_t
//   exp2_fast, exp_fast, log2_fast, rcp_fast, rsqrt_exact, sqrt_exact
//   atomic_exchange(p, value)   an atomic exchange in global memory, among all work-items of the launch
#pragma once

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#elif !defined(__AMDGCN__)  // for AMD, no header is needed: attributes are written out below
#include "device/emulator/hip_on_cpu.h"
#endif

#include "device/args.h"
#include "device/integers.h"
#include "device/traits.h"

// --- Kernels and LDS

namespace graphopt::hip {

// The minimum number of work-groups that run on a compute unit at the same time, on NVIDIA and on CDNA; 0: no minimum.
struct Occupancy {
  int nvidia, cdna;
  constexpr Occupancy(int on_nvidia, int on_cdna = 0) : nvidia(on_nvidia), cdna(on_cdna) {}
};

// The maximum number of work-items of a work-group, and the occupancy for which the compiler limits registers.
struct LaunchBounds {
  int threads;
  Occupancy groups;
  constexpr LaunchBounds(int max_threads, Occupancy occupancy = 0)
      : threads(max_threads), groups(occupancy) {}

  // Returns the number of waves on each of the four SIMDs of a compute unit of CDNA. One work-group must fit.
  constexpr int waves_on_simd() const {
    const int waves = (threads + kWave - 1) / kWave;
    return groups.cdna * waves > 4 ? groups.cdna * waves / 4 : (waves + 3) / 4;
  }
};

#if defined(__AMDGCN__) || defined(__CUDACC__)
// Does nothing on GPUs, because code objects have their own tables of kernels. The emulator's struct of this name adds
// the kernel to a table (emulator/hip_on_cpu.h).
struct KernelEntry {
  template <class Kernel>
  constexpr KernelEntry(const char*, Kernel*, int) {}
};
#endif

}  // namespace graphopt::hip

#if defined(__GFX9__)
#define GRAPHOPT_GLOBAL(bounds)                                                                \
  __attribute__((global))                                                                      \
  __attribute__((amdgpu_flat_work_group_size(1, graphopt::hip::LaunchBounds(bounds).threads))) \
  __attribute__((amdgpu_waves_per_eu(graphopt::hip::LaunchBounds(bounds).waves_on_simd())))
#elif defined(__AMDGCN__)
#define GRAPHOPT_GLOBAL(bounds) \
  __attribute__((global))       \
  __attribute__((amdgpu_flat_work_group_size(1, graphopt::hip::LaunchBounds(bounds).threads)))
#elif defined(__CUDACC__)
#define GRAPHOPT_GLOBAL(bounds)                                             \
  __global__ __launch_bounds__(graphopt::hip::LaunchBounds(bounds).threads, \
                               graphopt::hip::LaunchBounds(bounds).groups.nvidia)
#endif
#if defined(__AMDGCN__) || defined(__CUDACC__)
// A macro because it declares a variable, like DYNAMIC_SHARED and LARGE_SHARED.
#define SHARED(name, ...) __attribute__((shared)) __VA_ARGS__ name
#define DYNAMIC_SHARED(name, Type) extern __attribute__((shared)) __attribute__((aligned(16))) Type name[]
#endif
#if defined(__CUDACC__)
#define LARGE_SHARED(name, ...)                                                               \
  extern __attribute__((shared)) __attribute__((aligned(1024))) unsigned char name##_bytes[]; \
  auto& name = *reinterpret_cast<__VA_ARGS__*>(name##_bytes)
#elif defined(__AMDGCN__)
#define LARGE_SHARED SHARED
#endif

// Defines the kernel, which copies the pointers to the slots, and the signature of the function with the
// kernel's body.
#define KERNEL(name, bounds, Args, ...)                                                                  \
  DEVICE void name##_body(const Args& args);                                                             \
  extern "C" GRAPHOPT_GLOBAL(bounds) void name(Args args GRAPHOPT_SCAN(                                  \
      GRAPHOPT_SCAN(GRAPHOPT_SCAN(GRAPHOPT_SCAN(GRAPHOPT_SCAN(GRAPHOPT_SCAN(GRAPHOPT_SCAN(GRAPHOPT_SCAN( \
          GRAPHOPT_SCAN(GRAPHOPT_SCAN(GRAPHOPT_SCAN(GRAPHOPT_PARAMETER(Args, __VA_ARGS__))))))))))))) {  \
    graphopt::hip::set_slots(args, __VA_ARGS__);                                                         \
    name##_body(args);                                                                                   \
  }                                                                                                      \
  [[maybe_unused]] static const graphopt::hip::KernelEntry entry_##name(                                 \
      #name, &name, graphopt::hip::LaunchBounds(bounds).threads);                                        \
  DEVICE void name##_body(const Args& args)
// KERNEL_OF defines a kernel that calls `function(args)`; parentheses are necessary around a function that
// contains a comma. FLOAT_KERNELS defines name_f32 and name_f16, BITS_KERNELS name_b8 to name_b64. In both,
// `function` may use T, the element type of the kernel.
#define KERNEL_OF(name, function, bounds, Args, ...) \
  KERNEL(name, bounds, Args, __VA_ARGS__) { (function)(args); }
#define FLOAT_KERNELS(name, function, ...) \
  KERNEL(name##_f32, __VA_ARGS__) {        \
    using T = float;                       \
    (function)(args);                      \
  }                                        \
  KERNEL(name##_f16, __VA_ARGS__) {        \
    using T = half_t;                      \
    (function)(args);                      \
  }
#define BITS_KERNELS(name, function, ...) \
  KERNEL(name##_b8, __VA_ARGS__) {        \
    using T = uint8_t;                    \
    (function)(args);                     \
  }                                       \
  KERNEL(name##_b16, __VA_ARGS__) {       \
    using T = uint16_t;                   \
    (function)(args);                     \
  }                                       \
  KERNEL(name##_b32, __VA_ARGS__) {       \
    using T = uint32_t;                   \
    (function)(args);                     \
  }                                       \
  KERNEL(name##_b64, __VA_ARGS__) {       \
    using T = uint64_t;                   \
    (function)(args);                     \
  }

// GRAPHOPT_PARAMETER expands to the parameter of the first slot. Each scan expands one more, because a macro does not
// expand inside its own expansion. KERNEL has enough scans for kMaxSlots.
#define GRAPHOPT_SCAN(...) __VA_ARGS__
#define GRAPHOPT_PARAMETER(Args, slot, ...) \
  , decltype(Args::slot)::Parameter slot __VA_OPT__(GRAPHOPT_NEXT GRAPHOPT_NONE()()(Args, __VA_ARGS__))
#define GRAPHOPT_NEXT() GRAPHOPT_PARAMETER
#define GRAPHOPT_NONE()

// The compiler of the emulator ignores these pragmas.
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL_A_LITTLE _Pragma("unroll kSmallUnroll")

namespace graphopt::hip {

#if defined(__AMDGCN__)

// With complete unrolling clang for AMD moves the loads of all steps to the front and runs out of registers.
constexpr int kSmallUnroll = 2;

typedef _Float16 half_t;

DEVICE int thread_x() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
DEVICE int block_x() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
DEVICE int block_y() { return static_cast<int>(__builtin_amdgcn_workgroup_id_y()); }
DEVICE int block_z() { return static_cast<int>(__builtin_amdgcn_workgroup_id_z()); }

DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

DEVICE void lds_barrier() {
#if __clang_major__ >= 19  // which has fences for a single address space
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else
  barrier();
#endif
}

DEVICE void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

DEVICE uint32_t shuffle_bits(uint32_t x, int lane) {
  return static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(lane * 4, static_cast<int>(x)));
}

DEVICE bool any_in_wave(bool x) {
  if constexpr (kWave == 64) {
    return __builtin_amdgcn_ballot_w64(x) != 0;
  } else {
    return __builtin_amdgcn_ballot_w32(x) != 0;
  }
}

DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}

DEVICE int opaque(int x) {
  asm volatile("" : "+v"(x));
  return x;
}

template <class T>
DEVICE T* global(T* p) {
  // Through an integer, because the compiler removes two casts that cancel each other.
  return (T*)(__attribute__((address_space(1))) T*)reinterpret_cast<uint64_t>(p);
}

DEVICE int same_in_wave(int x) { return __builtin_amdgcn_readfirstlane(x); }

DEVICE void keep_order() {
  asm volatile("" ::: "memory");
  __builtin_amdgcn_sched_barrier(0);
}
template <class Vector>
DEVICE void compute_here(Vector& x) {
  asm volatile("" : "+v"(x));
}

// The error is 1 ulp; denormal results are flushed to 0.
DEVICE float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
DEVICE float log2_fast(float x) { return __builtin_amdgcn_logf(x); }  // 1 ulp
DEVICE float rcp_fast(float x) { return __builtin_amdgcn_rcpf(x); }   // 1 ulp
DEVICE float sqrt_exact(float x) { return __builtin_sqrtf(x); }
DEVICE float fused_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// Returns the other operand if one is NaN.
DEVICE float max_float(float a, float b) { return __builtin_fmaxf(a, b); }

DEVICE uint32_t atomic_exchange(uint32_t* p, uint32_t value) {
  return __hip_atomic_exchange(p, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

#elif defined(__CUDACC__)

constexpr int kSmallUnroll = 1024;  // complete

typedef __half half_t;

DEVICE int thread_x() { return static_cast<int>(threadIdx.x); }
DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
DEVICE int block_z() { return static_cast<int>(blockIdx.z); }

DEVICE void barrier() { __syncthreads(); }
DEVICE void lds_barrier() { __syncthreads(); }
DEVICE void wave_barrier() { __syncwarp(); }
DEVICE void named_barrier(int i, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(i + 1), "r"(threads) : "memory");
}

DEVICE uint32_t shuffle_bits(uint32_t x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE bool any_in_wave(bool x) { return __any_sync(0xffffffffu, x) != 0; }

DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) { return __umulhi(a, b); }

DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
template <class T>
DEVICE T* global(T* p) {
  return p;
}
DEVICE int same_in_wave(int x) { return x; }
DEVICE void keep_order() { asm volatile("" ::: "memory"); }
template <class Vector>
DEVICE void compute_here(Vector&) {}

DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float log2_fast(float x) { return __log2f(x); }
DEVICE float rcp_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float sqrt_exact(float x) { return __fsqrt_rn(x); }
DEVICE float fused_multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float max_float(float a, float b) { return fmaxf(a, b); }

DEVICE uint32_t atomic_exchange(uint32_t* p, uint32_t value) { return atomicExch(p, value); }

#endif

// Sets all slots of a kernel's arguments, in order, with one store each, because nvcc loses __restrict__
// after a memcpy.
template <class Args, class... Pointers>
DEVICE void set_slots(Args& args, Pointers... pointers) {
  static_assert(kIsArgs<Args>, "one layout for all compilers");
  static_assert(sizeof...(Pointers) == Args::kSlots, "all slots");
  const void** slot = reinterpret_cast<const void**>(&args);
  ((*slot++ = pointers), ...);
}

template <bool kReload = kGcn, class Args>
DEVICE const Args& reload(const Args& args) {
#if defined(__AMDGCN__)
  if constexpr (kReload) {
    auto address = reinterpret_cast<uint64_t>(__builtin_amdgcn_kernarg_segment_ptr());
    asm volatile("" : "+s"(address));
    return *(const Args*)(const __attribute__((address_space(4))) Args*)address;
  }
#endif
  return args;
}

DEVICE float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }
DEVICE float rsqrt_exact(float x) { return 1.0f / sqrt_exact(x); }

// Returns the index of this work-item in a grid along x of work-groups of `threads`.
DEVICE uint32_t work_item(int threads) {
  return static_cast<uint32_t>(block_x()) * static_cast<uint32_t>(threads) +
         static_cast<uint32_t>(thread_x());
}
DEVICE int lane_id() { return thread_x() % kWave; }
DEVICE int wave_id() { return thread_x() / kWave; }

// Reinterprets the bytes of one value as another type of the same size.
template <class To, class From>
DEVICE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "equal sizes");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

DEVICE float infinity() { return bit_cast<float>(uint32_t{0x7f800000}); }

// Returns the value of work-item `lane` of this wave. Every work-item of the wave must call it.
DEVICE float shuffle(float x, int lane) { return bit_cast<float>(shuffle_bits(bit_cast<uint32_t>(x), lane)); }
DEVICE uint32_t shuffle(uint32_t x, int lane) { return shuffle_bits(x, lane); }
DEVICE float shuffle_xor(float x, int mask) { return shuffle(x, lane_id() ^ mask); }
DEVICE uint32_t shuffle_xor(uint32_t x, int mask) { return shuffle_bits(x, lane_id() ^ mask); }
template <int kCount>
DEVICE float shuffle_in(float x, int i) {
#if defined(__CUDACC__)
  return __shfl_sync(0xffffffffu, x, i, kCount);
#else
  return shuffle(x, (lane_id() & -kCount) | i);
#endif
}

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(half_t x) { return static_cast<float>(x); }
template <class T>
DEVICE T from_float(float x) {
  return static_cast<T>(x);
}

// 16 bytes, which a work-item moves in one instruction.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  T v[kSize];
};

#if defined(__CUDACC__)
typedef uint4 Bits128;
#elif defined(__AMDGCN__)
typedef uint32_t Bits128 __attribute__((ext_vector_type(4)));
#else
struct alignas(16) Bits128 {
  uint32_t bits[4];
};
#endif

// Returns whether a pack at `p` is aligned.
template <class T>
DEVICE bool is_pack_aligned(const T* p) {
  return reinterpret_cast<size_t>(p) % sizeof(Pack<T>) == 0;
}
// `p` must be a multiple of 16 bytes.
template <class T>
DEVICE Pack<T> load_pack(const T* p) {
  const Bits128 bits =
      *reinterpret_cast<const Bits128*>(p);  // copied first: a bit_cast from memory moves single bytes
  return bit_cast<Pack<T>>(bits);
}
// For any alignment of `p`.
template <class T>
DEVICE Pack<T> load_pack_anywhere(const T* p) {
  if (is_pack_aligned(p)) return load_pack(p);
  Pack<T> x;
  UNROLL for (int j = 0; j < Pack<T>::kSize; ++j) x.v[j] = p[j];
  return x;
}
template <class T>
DEVICE void store_pack(T* p, const Pack<T>& x) {
  *reinterpret_cast<Bits128*>(p) = bit_cast<Bits128>(x);
}

#if defined(__CUDACC__)
template <int kBytes = 16, class To, class T>
DEVICE void copy_to_lds(To* to, const T* from, bool inside) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(address), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(address), "l"(from), "n"(kBytes), "r"(inside ? kBytes : 0)
                 : "memory");
  }
}
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
DEVICE void end_group_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroups>
DEVICE void wait_for_copies_except() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kGroups) : "memory");
}
#elif defined(__AMDGCN__)
template <int kBytes = 16, class To, class T>
DEVICE void copy_to_lds(To* to, const T* from, bool inside) {
  if constexpr (kBytes == 16) {
    Bits128 bits = {};
    if (inside) bits = *reinterpret_cast<const Bits128*>(from);
    *reinterpret_cast<Bits128*>(to) = bits;
  } else {
    static_assert(kBytes == sizeof(T), "one element");
    *to = inside ? *from : T{};
  }
}
DEVICE void wait_for_copies() {}
DEVICE void end_group_of_copies() {}
template <int kGroups>
DEVICE void wait_for_copies_except() {}
#else
template <int kBytes = 16, class To, class T>
DEVICE void copy_to_lds(To* to, const T* from, bool inside) {
  cpu::copy_to_lds(to, inside ? from : nullptr, kBytes);
}
DEVICE void wait_for_copies() { cpu::wait_for_copies(); }
DEVICE void end_group_of_copies() { cpu::end_group_of_copies(); }
template <int kGroups>
DEVICE void wait_for_copies_except() {
  cpu::wait_for_copies_except(kGroups);
}
#endif

// Returns n / d for n < 2^31 without a division.
DEVICE uint32_t divide(uint32_t n, const Divisor& d) {
  return (multiply_high(n, d.multiplier) + n) >> d.shift;
}

template <bool kFirst, class A, class B>
struct Select {
  using Type = A;
};
template <class A, class B>
struct Select<false, A, B> {
  using Type = B;
};

// Returns a * b. (nvcc compiles the C++ expression to more than one instruction.)
DEVICE uint64_t multiply_wide(uint32_t a, uint32_t b) {
#if defined(__CUDACC__)
  uint64_t y;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(y) : "r"(a), "r"(b));
  return y;
#else
  return static_cast<uint64_t>(a) * b;
#endif
}

DEVICE int min_int(int a, int b) { return a < b ? a : b; }
DEVICE int max_int(int a, int b) { return a > b ? a : b; }

}  // namespace graphopt::hip
