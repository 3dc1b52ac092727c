// GatherBlockQuantized: gathers rows of quantized values and dequantizes them in float32.
//
// Memory-bound: a work-item writes 16 bytes. An index that is out of range gives zeros, as in ONNX Runtime's CUDA
// kernel.
#include "device/platform.h"
#include "operators/quantized/gather_block_quantized/args.h"

namespace graphopt::hip {

// Returns the quantized value at a bit offset.
DEVICE float code_at(const uint8_t* bytes, uint32_t bit, const GatherBlocksArgs& args) {
  const int free = 32 - args.bits;
  const uint32_t code = static_cast<uint32_t>(bytes[bit / 8]) >> (bit % 8) << free;
  return static_cast<float>(args.is_signed != 0 ? static_cast<int32_t>(code) >> free
                                                : static_cast<int32_t>(code >> free));
}

// Returns the index in x of element i of y; -1 if the gathered index is out of range.
DEVICE int64_t source_of(const GatherBlocksArgs& args, uint32_t i) {
  const uint32_t row = divide(i, args.inner), outer = divide(row, args.indices);
  const uint32_t which = row - outer * args.indices.d;
  const int32_t* narrow = args.index;
  const int64_t* wide = args.index;
  int64_t at = args.narrow != 0 ? narrow[which] : wide[which];
  at = at < 0 ? at + args.size : at;
  if (at < 0 || at >= static_cast<int64_t>(args.size)) return -1;
  return (static_cast<int64_t>(outer) * args.size + at) * args.inner.d + (i - row * args.inner.d);
}

template <class T>
struct BlockScale {
  float scale, zero;

  DEVICE BlockScale(const GatherBlocksArgs& args, uint32_t source) {
    const uint32_t line = divide(source, args.q_inner), outer = divide(line, args.q_size);
    const uint32_t block = divide(line - outer * args.q_size.d, args.block);
    const uint32_t at = (outer * args.blocks + block) * args.q_inner.d + (source - line * args.q_inner.d);
    const T* scales = args.scale;
    scale = to_float(scales[at]);
    const uint8_t* zeros = args.zero;
    zero = static_cast<float>(args.default_zero);
    if (zeros == nullptr) return;
    const uint32_t row = divide(at, args.zero_row);
    const uint32_t bit = (at - row * args.zero_row.d) * static_cast<uint32_t>(args.bits);
    zero = code_at(zeros + static_cast<size_t>(row) * args.zero_row_bytes, bit, args);
  }
};

template <class T>
DEVICE void gather_block_quantized(const GatherBlocksArgs& args) {
  constexpr int kSize = Pack<T>::kSize;
  const uint32_t first = work_item(kGatherBlocksThreads) * static_cast<uint32_t>(kSize);
  const uint8_t* x = args.x;
  T* y = args.y;
  const auto bits = static_cast<uint32_t>(args.bits);
  // The bit offset of an element of x may exceed 32 bits.
  const auto element = [&](int64_t source, const BlockScale<T>& block) {
    const uint64_t bit = static_cast<uint64_t>(source) * bits;
    return from_float<T>((code_at(x + bit / 8, static_cast<uint32_t>(bit % 8), args) - block.zero) *
                         block.scale);
  };
  if (first >= args.total) return;
  if (args.uses_packs != 0) {
    const int64_t source = source_of(args, first);
    Pack<T> out = {};
    if (source >= 0) {
      const BlockScale<T> block(args, static_cast<uint32_t>(source));
      UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = element(source + j, block);
    }
    store_pack(y + first, out);
    return;
  }
  NO_UNROLL for (uint32_t i = first; i < first + kSize && i < args.total; ++i) {
    const int64_t source = source_of(args, i);
    y[i] = source < 0 ? from_float<T>(0.0f)
                      : element(source, BlockScale<T>(args, static_cast<uint32_t>(source)));
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(gather_block_quantized, gather_block_quantized<T>, kGatherBlocksThreads, GatherBlocksArgs, x,
              index, scale, zero, y)
