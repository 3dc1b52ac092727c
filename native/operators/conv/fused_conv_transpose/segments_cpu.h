// The sums of a strip that are contiguous in a row of y. For kernel files only (see cpu/isa.h).
#pragma once

#include <algorithm>
#include <vector>

#include "operators/conv/fused_conv/strips.h"
#include "operators/conv/fused_conv_transpose/phases_cpu.h"

namespace graphopt::cpu::GRAPHOPT_ISA {

// `count` interleaved sums of a row of phases, from index `from` on. Their elements of y are contiguous, from offset
// `at` of a plane on.
struct Segment {
  int64_t from, count, at;
};

// The segments of a strip for a phase set.
class Segments {
 public:
  Segments(const ConvolutionProblem& p, const PhasePlan& plan, const PhaseSet& set, const Strip& strip)
      : rows_(static_cast<int64_t>(set.rows.size())) {
    const int64_t panels = ceil_div(strip.span(), kPanelWidth);
    for (int64_t panel = 0; panel < panels; ++panel) {
      for (const PhaseRow& row : set.rows) {
        begins_.push_back(segments_.size());
        add(p, plan, row, strip, panel * kPanelWidth);
      }
    }
    begins_.push_back(segments_.size());
  }

  const Segment* begin(int64_t panel, int64_t row) const {
    return segments_.data() + begins_[static_cast<size_t>(panel * rows_ + row)];
  }
  const Segment* end(int64_t panel, int64_t row) const { return begin(panel, row + 1); }

 private:
  // Adds the segments of a row of phases for the panel that begins with pixel `first` of the strip.
  void add(const ConvolutionProblem& p, const PhasePlan& plan, const PhaseRow& row, const Strip& strip,
           int64_t first) {
    const auto columns = static_cast<int64_t>(plan.remainders.size());
    const auto place = [&](size_t axis, int64_t q) {
      return (p.pad[axis] / p.stride[axis] + strip.first[axis] + q) * p.stride[axis] - p.pad[axis];
    };
    int64_t w = first % strip.size[2], rest = first / strip.size[2];
    for (int64_t i = 0; i < kPanelWidth; ++rest, w = 0) {
      const int64_t qh = rest % strip.size[1], qd = rest / strip.size[1];
      const int64_t run = std::min(kPanelWidth - i, strip.size[2] - w);
      const int64_t d = place(0, qd) + row.depth, h = place(1, qh) + row.height;
      const bool inside =
          qd < strip.out[0] && qh < strip.out[1] && d >= 0 && d < p.out[0] && h >= 0 && h < p.out[1];
      const int64_t count = inside ? std::clamp<int64_t>(strip.out[2] - w, 0, run) : 0;
      add_run(p, plan, i * columns, count * columns, place(2, w), (d * p.out[1] + h) * p.out[2]);
      i += run;
    }
  }
  // Adds the segments of `count` sums from `from` on; the first one belongs to column w of a row of y.
  void add_run(const ConvolutionProblem& p, const PhasePlan& plan, int64_t from, int64_t count, int64_t w,
               int64_t row) {
    if (plan.has_all_columns) {
      const int64_t begin = std::max<int64_t>(-w, 0), end = std::min(count, p.out[2] - w);
      if (begin < end) segments_.push_back({from + begin, end - begin, row + w + begin});
      return;
    }
    const auto columns = static_cast<int64_t>(plan.remainders.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = w + i / columns * p.stride[2] + plan.remainders[static_cast<size_t>(i % columns)];
      if (at >= 0 && at < p.out[2]) segments_.push_back({from + i, 1, row + at});
    }
  }

  int64_t rows_;
  std::vector<Segment> segments_;
  std::vector<size_t> begins_;  // by panel and row
};

}  // namespace graphopt::cpu::GRAPHOPT_ISA
