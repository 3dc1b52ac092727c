// Maps rows of an image to rows in window order and back, for the kernels of CPUs and GPUs.
#pragma once

#include "device/args.h"

namespace graphopt::hip {

// Images of height x width rows are padded at the end to complete windows, and rotated up and left by a shift. The
// result is divided into windows. Window order is row-major: images, rows and columns of windows, rows and columns in a
// window.
struct RowWindows {
  uint32_t height, width;                // per image
  uint32_t padded_height, padded_width;  // rounded up to complete windows
  uint32_t down, right;                  // the shift, less than the padded height and width
  Divisor image, padded_image;           // rows per image
  Divisor line, window_height, window_width;
  Divisor window, windows_across;  // rows per window; windows per line of windows
};

constexpr uint32_t kNoRow = 0xffffffff;

// Returns the image row of a row in window order; kNoRow for padding.
template <class Divide>
DEVICE uint32_t row_in_images(const RowWindows& w, uint32_t row, const Divide& divide) {
  const uint32_t image = divide(row, w.padded_image), place = row - image * w.padded_image.d;
  const uint32_t window = divide(place, w.window), inside = place - window * w.window.d;
  const uint32_t above = divide(window, w.windows_across), left = window - above * w.windows_across.d;
  const uint32_t line = divide(inside, w.window_width), column = inside - line * w.window_width.d;
  uint32_t y = above * w.window_height.d + line + w.down, x = left * w.window_width.d + column + w.right;
  y -= y >= w.padded_height ? w.padded_height : 0;
  x -= x >= w.padded_width ? w.padded_width : 0;
  return y < w.height && x < w.width ? (image * w.height + y) * w.width + x : kNoRow;
}

// Returns the row in window order of an image row.
template <class Divide>
DEVICE uint32_t row_in_windows(const RowWindows& w, uint32_t row, const Divide& divide) {
  const uint32_t image = divide(row, w.image), place = row - image * w.image.d;
  uint32_t y = divide(place, w.line), x = place - y * w.line.d;
  y += y < w.down ? w.padded_height - w.down : 0 - w.down;
  x += x < w.right ? w.padded_width - w.right : 0 - w.right;
  const uint32_t above = divide(y, w.window_height), line = y - above * w.window_height.d;
  const uint32_t left = divide(x, w.window_width), column = x - left * w.window_width.d;
  return image * w.padded_image.d + (above * w.windows_across.d + left) * w.window.d +
         line * w.window_width.d + column;
}

}  // namespace graphopt::hip
