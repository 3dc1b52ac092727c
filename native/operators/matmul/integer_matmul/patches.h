// The left operand of a convolution of int8 elements, for gemm/loaders/im2col.h.
#pragma once

#include "device/platform.h"
#include "operators/matmul/integer_matmul/args.h"

namespace graphopt::hip {

// The members that Im2col reads.
struct IntegerPatches {
  const half_t* x;  // the channels of a group
  const IntegerColumnsHeader* header;
  int32_t M, H, W;
  Divisor channels, kernel_w, per_image, columns;
  ConvWindow window;
  int32_t pixel;  // pairs of elements from a pixel to the next

  // Args: IntegerConvArgs or IntegerWarpgroupArgs.
  template <class Args>
  DEVICE IntegerPatches(const Args& args, uint32_t group)
      : x(static_cast<const half_t*>(args.x) + group * static_cast<size_t>(args.channels.d)),
        header(args.columns),
        M(args.M),
        H(args.H),
        W(args.W),
        channels(args.channels),
        kernel_w(args.kernel_w),
        per_image(args.per_image),
        columns(args.columns_of_y),
        window(args.window),
        pixel(args.pixel / 2) {}
  DEVICE const half_t* outside() const { return reinterpret_cast<const half_t*>(header->outside); }
};

}  // namespace graphopt::hip
