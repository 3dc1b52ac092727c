#include "operators/elementwise/cast/args.h"
#include "operators/elementwise/cast/op.h"

namespace graphopt::gpu {

Plan cast_plan(int64_t total, ElementType from, ElementType to, bool aligned) {
  if (total == 0) return {};
  hip::CastArgs args = {};
  args.x = input(0);
  args.y = output(0);
  args.total = to_u31(total);
  args.from = from;
  args.to = to;
  const bool uses_packs = aligned && is_float(from) && is_float(to) && from != to;
  const char* name = !uses_packs                  ? "cast_number"
                     : from == ElementType::kHalf ? "cast_f16_to_f32"
                                                  : "cast_f32_to_f16";
  return one_launch(name, divide_up(total, uses_packs ? 4 * hip::kCastPacks : hip::kCastElements),
                    hip::kCastThreads, args);
}

}  // namespace graphopt::gpu
