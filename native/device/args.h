// What a kernel takes: one plain struct, which its launch plan (host C++) fills and the kernel (clang for
// AMD, nvcc) reads. Each kernel file has a *_args.h with the structs of its kernels:
//
//   struct CastArgs : Arguments<2, 32> {
//     In x;
//     Out y;
//     uint32_t total;
//     ...
//   };
//
// It begins with its pointers, the slots. In a plan a slot holds a buffer (device/launch.h), for which the
// launcher puts the address.
//
// On the way to the device the pointers are parameters of their own behind the struct, whose slots KERNEL
// (device/platform.h) then fills. Only so do compilers know that they lead to global memory and what
// __restrict__ says of them, and only so can a loader that knows nothing of slots name the buffers
// (scripts/amd_cases.py). The struct comes first because its address is then that of all arguments: another
// one would take two scalar registers, of which attention has none left on gfx908.
#pragma once

#include "device/integers.h"

// A function that kernels call.
#if defined(__AMDGCN__) || defined(__CUDACC__)
#define DEVICE __attribute__((device)) inline __attribute__((always_inline))
#else
#define DEVICE inline
#endif

namespace graphopt::hip {

// Read by the kernel; it may be what the kernel also writes.
struct In {
  using Parameter = const void*;
  const void* address;
  template <class T>
  DEVICE operator const T*() const {
    return static_cast<const T*>(address);
  }
};

// Read by the kernel, which writes none of it.
struct Constant {
  using Parameter = const void* __restrict__;
  const void* address;
  template <class T>
  DEVICE operator const T*() const {
    return static_cast<const T*>(address);
  }
};

// Written by the kernel, which may read it too.
struct Out {
  using Parameter = void*;
  void* address;
  template <class T>
  DEVICE operator T*() const {
    return static_cast<T*>(address);
  }
};

constexpr int kMostSlots = 9;

// A kernel's arguments with so many slots, and so many bytes whatever compiles them.
template <int kCount, size_t kSize>
struct Arguments {
  static constexpr int kSlots = kCount;
  static constexpr size_t kBytes = kSize;
};

template <class Args>
constexpr bool kIsArgs = sizeof(Args) == Args::kBytes && alignof(Args) == 8 && __is_standard_layout(Args) &&
                         __is_trivially_copyable(Args) && Args::kSlots <= kMostSlots && sizeof(void*) == 8;

// --- What arguments are made of

// n / d for n < 2^31 without a division (divide in device/platform.h; device/launch.h makes it): Granlund and
// Montgomery, "Division by invariant integers using multiplication", 1994.
struct Divisor {
  uint32_t d, multiplier, shift;
};

// A walk over tensors of up to this many axes (blocks/gpu/walk.h, blocks/gpu/walk_plan.h).
constexpr int kMostAxes = 5;
// Sizes of the axes from the innermost on; the outermost needs none.
struct Axes {
  Divisor inner[kMostAxes - 1];
};
// In elements, from the innermost axis on; 0 where a tensor is broadcast.
struct Strides {
  int32_t s[kMostAxes];
};

}  // namespace graphopt::hip
