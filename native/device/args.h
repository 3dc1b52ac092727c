// The arguments of a kernel: one plain struct, which its launch plan (host C++) fills in and the kernel (clang for AMD,
// nvcc) reads. The structs of a kernel file are in the args.h or *_args.h beside it:
//
//   struct CastArgs : Arguments<2, 32> {
//     In x;
//     Out y;
//     uint32_t total;
//     ...
//   };
//
// The struct begins with its pointers, the slots. In a plan, a slot contains a Buffer (device/launch.h),
// which the launcher replaces with its address.
//
// At a launch the pointers are separate parameters after the struct, and KERNEL (device/platform.h) copies them to
// the slots. Compilers then know that the pointers refer to global memory and apply __restrict__. A loader that does
// not know the slots can also set the buffers (scripts/amd_cases.py). The struct is the first parameter:
// its address is then the address of all arguments, which is in scalar registers anyway. Another address
// would take two more scalar registers; attention on gfx908 has none left.
#pragma once

#include "device/integers.h"

// A function that kernels call. A macro because it consists of attributes.
#if defined(__AMDGCN__) || defined(__CUDACC__)
#define DEVICE __attribute__((device)) inline __attribute__((always_inline))
#else
#define DEVICE inline
#endif

namespace graphopt::hip {

// A pointer that the kernel reads. The kernel may write the same memory through another slot.
struct In {
  using Parameter = const void*;
  const void* address;
  template <class T>
  DEVICE operator const T*() const {
    return static_cast<const T*>(address);
  }
};

// A pointer to memory that the kernel reads and does not write.
struct Constant {
  using Parameter = const void* __restrict__;
  const void* address;
  template <class T>
  DEVICE operator const T*() const {
    return static_cast<const T*>(address);
  }
};

// A pointer that the kernel writes, and may also read.
struct Out {
  using Parameter = void*;
  void* address;
  template <class T>
  DEVICE operator T*() const {
    return static_cast<T*>(address);
  }
};

constexpr int kMaxSlots = 12;

// The base of a kernel's arguments, which have kCount slots and kSize bytes with every compiler.
template <int kCount, size_t kSize>
struct Arguments {
  static constexpr int kSlots = kCount;
  static constexpr size_t kBytes = kSize;
};

template <class Args>
constexpr bool kIsArgs = sizeof(Args) == Args::kBytes && alignof(Args) == 8 && __is_standard_layout(Args) &&
                         __is_trivially_copyable(Args) && Args::kSlots <= kMaxSlots && sizeof(void*) == 8;

// --- Members of arguments

// The constants that compute n / d for n < 2^31 without a division (divide in device/platform.h, make_divisor
// in device/launch.h): Granlund and Montgomery, "Division by invariant integers using multiplication", 1994.
struct Divisor {
  uint32_t d, multiplier, shift;
};

// Maximum number of axes of a walk: a loop nest over all elements of tensors (blocks/gpu/walk.h).
constexpr int kMaxAxes = 5;
// Sizes of the axes from the innermost on; the outermost size is not needed.
struct Axes {
  Divisor inner[kMaxAxes - 1];
};
// Strides in elements, from the innermost axis on; 0 for a broadcast axis.
struct Strides {
  int32_t s[kMaxAxes];
};

}  // namespace graphopt::hip
