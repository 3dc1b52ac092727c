// NonMaxSuppression. A work-group selects the boxes of one image and one class in the order of descending
// scores; boxes with equal scores are ordered by index. In each round it removes the boxes whose IoU with the last
// selected box is above the threshold, and finds the next box. Results do not depend on the device's scheduling.
#include "device/platform.h"
#include "operators/image/nms/args.h"

namespace graphopt::hip {

struct NmsBox {
  float top, left, bottom, right;
};

DEVICE NmsBox nms_box(const float* p, bool centered) {
  if (centered) {  // x, y, width, height
    const float half_width = p[2] / 2, half_height = p[3] / 2;
    return {p[1] - half_height, p[0] - half_width, p[1] + half_height, p[0] + half_width};
  }
  return {p[0] < p[2] ? p[0] : p[2], p[1] < p[3] ? p[1] : p[3], p[0] < p[2] ? p[2] : p[0],
          p[1] < p[3] ? p[3] : p[1]};
}

// Returns true if the intersection over union of the boxes is above the threshold.
DEVICE bool overlaps(const NmsBox& a, const NmsBox& b, float iou_threshold) {
  const float top = a.top > b.top ? a.top : b.top, left = a.left > b.left ? a.left : b.left;
  const float bottom = a.bottom < b.bottom ? a.bottom : b.bottom,
              right = a.right < b.right ? a.right : b.right;
  if (!(bottom > top) || !(right > left)) return false;
  const float both = (bottom - top) * (right - left);
  const float a_area = (a.bottom - a.top) * (a.right - a.left),
              b_area = (b.bottom - b.top) * (b.right - b.left);
  const float either = a_area + b_area - both;
  return a_area > 0 && b_area > 0 && either > 0 && both / either > iou_threshold;
}

// The best candidate of each wave. Rounds alternate between two buffers, so one barrier in each round is
// enough.
struct NmsBest {
  float score[2][kNmsThreads / kWave];
  int at[2][kNmsThreads / kWave];
};

struct NmsCandidate {
  float score;
  int at;
};

DEVICE NmsCandidate better(const NmsCandidate& a, const NmsCandidate& b) {
  return b.score > a.score || (b.score == a.score && b.at < a.at) ? b : a;
}

DEVICE NmsCandidate best_of_group(NmsCandidate mine, NmsBest& best, int buffer) {
  UNROLL for (int mask = kWave / 2; mask > 0; mask /= 2) {
    const auto at = static_cast<int>(shuffle_xor(static_cast<uint32_t>(mine.at), mask));
    mine = better(mine, {shuffle_xor(mine.score, mask), at});
  }
  if (lane_id() == 0) {
    best.score[buffer][wave_id()] = mine.score;
    best.at[buffer][wave_id()] = mine.at;
  }
  barrier();
  mine = {best.score[buffer][0], best.at[buffer][0]};
  UNROLL for (int wave = 1; wave < kNmsThreads / kWave; ++wave) {
    mine = better(mine, {best.score[buffer][wave], best.at[buffer][wave]});
  }
  return mine;
}

DEVICE void select_boxes(const NmsSelectArgs& args) {
  SHARED(best, NmsBest);
  const auto pair = static_cast<uint32_t>(block_x());
  const uint32_t image = divide(pair, args.classes);
  const size_t first = static_cast<size_t>(pair) * static_cast<size_t>(args.N);
  const float* const boxes =
      static_cast<const float*>(args.boxes) + 4 * static_cast<size_t>(image) * static_cast<size_t>(args.N);
  const float* const scores = static_cast<const float*>(args.scores) + first;
  float* const remaining = static_cast<float*>(args.remaining) + first;
  int32_t* const picked =
      static_cast<int32_t*>(args.picked) + static_cast<size_t>(pair) * static_cast<size_t>(args.max_boxes);
  const float none = -infinity();
  const int thread = thread_x();
  for (int i = thread; i < args.N; i += kNmsThreads) {
    const float score = scores[i];
    remaining[i] = args.any_score != 0 || score > args.score_threshold ? score : none;
  }
  int count = 0, last = -1;
  NmsBox selected = {};
  NO_UNROLL while (count < args.max_boxes) {
    NmsCandidate mine = {none, args.N};
    NO_UNROLL for (int i = thread; i < args.N; i += kNmsBoxes * kNmsThreads) {
      // Issues all loads before it waits for the first.
      float score[kNmsBoxes];
      NmsBox box[kNmsBoxes];
      UNROLL for (int k = 0; k < kNmsBoxes; ++k) {
        const int at = i + k * kNmsThreads;
        score[k] = at < args.N ? remaining[at] : none;
        box[k] = nms_box(boxes + 4 * (at < args.N ? at : i), args.centered != 0);
      }
      UNROLL for (int k = 0; k < kNmsBoxes; ++k) {
        const int at = i + k * kNmsThreads;
        if (!(score[k] > none)) continue;
        if (last >= 0 && (at == last || overlaps(selected, box[k], args.iou_threshold))) {
          remaining[at] = none;
        } else if (score[k] > mine.score) {
          mine = {score[k], at};
        }
      }
    }
    last = best_of_group(mine, best, count % 2).at;
    if (last >= args.N) break;
    selected = nms_box(boxes + 4 * last, args.centered != 0);
    if (thread == 0) picked[count] = last;
    ++count;
  }
  if (thread == 0) static_cast<int32_t*>(args.counts)[pair] = count;
}

struct NmsSums {
  int sum[kNmsThreads];
};

DEVICE void write_rows(const NmsRowsArgs& args) {
  SHARED(sums, NmsSums);
  const int pair = block_x(), thread = thread_x();
  const int32_t* const counts = args.counts;
  int before = 0;
  for (int i = thread; i < pair; i += kNmsThreads) before += counts[i];
  sums.sum[thread] = before;
  barrier();
  NO_UNROLL for (int step = kNmsThreads / 2; step > 0; step /= 2) {
    if (thread < step) sums.sum[thread] += sums.sum[thread + step];
    barrier();
  }
  const int start = sums.sum[0], count = counts[pair];
  const uint32_t image = divide(static_cast<uint32_t>(pair), args.classes);
  const int32_t* const picked = static_cast<const int32_t*>(args.picked) +
                                static_cast<size_t>(pair) * static_cast<size_t>(args.max_boxes);
  int64_t* const rows = static_cast<int64_t*>(args.rows) + 3 * static_cast<size_t>(start);
  for (int i = thread; i < count; i += kNmsThreads) {
    rows[3 * i] = image;
    rows[3 * i + 1] = static_cast<uint32_t>(pair) - image * args.classes.d;
    rows[3 * i + 2] = picked[i];
  }
  if (thread == 0 && pair == args.pairs - 1) static_cast<int64_t*>(args.row_count)[0] = start + count;
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

KERNEL_OF(nms_select, select_boxes, kNmsThreads, NmsSelectArgs, boxes, scores, remaining, picked, counts)
KERNEL_OF(nms_rows, write_rows, kNmsThreads, NmsRowsArgs, picked, counts, row_count, rows)
