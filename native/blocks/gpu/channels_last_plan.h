// Arguments of kernels that compute a tensor y [images, height, width, channels] with one work-item for each pack:
// `pack` adjacent channels of a pixel, or a single channel.
#pragma once

#include "device/launch.h"

namespace graphopt::gpu {

// Fills in x, y, total (packs of y), channels, packs (of a pixel), per_image (pixels) and across (pixels of a row). For
// an empty tensor it only sets total to 0. Returns true if a pack has `pack` channels, false if it has one. Throws
// std::invalid_argument if there are 2^31 packs or more.
template <class Args>
bool fill_channels_last(Args& args, int64_t images, int64_t height, int64_t width, int64_t channels,
                        bool aligned, int64_t pack = 8) {
  const bool wide = aligned && channels % pack == 0;
  const int64_t packs = wide ? channels / pack : channels;
  args.total = to_u31(images * height * width * packs);
  if (args.total == 0) return wide;
  args.x = input(0);
  args.y = output(0);
  args.channels = to_u31(channels);
  args.packs = make_divisor(packs);
  args.per_image = make_divisor(height * width);
  args.across = make_divisor(width);
  return wide;
}

}  // namespace graphopt::gpu
