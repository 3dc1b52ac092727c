#include <algorithm>

#include "blocks/gpu/slices.h"
#include "operators/reduction/top_k/args.h"
#include "operators/reduction/top_k/op.h"

namespace graphopt::gpu {
namespace {

// Two pairs of buffers (keys, indices). Each launch reads one pair and writes the other one.
class Entries {
 public:
  // Sets the buffers of a launch that reads the output of the previous launch and writes `count` entries.
  template <class Args>
  void set_buffers(Args& args, int64_t count) {
    args.keys = workspace(first_of(current_));
    args.indices = workspace(first_of(current_) + 1);
    current_ = 1 - current_;
    args.next_keys = workspace(first_of(current_));
    args.next_indices = workspace(first_of(current_) + 1);
    max_ = std::max(max_, count);
  }
  std::vector<int64_t> bytes() const { return {8 * max_, 4 * max_, 8 * max_, 4 * max_}; }

 private:
  static uint8_t first_of(int pair) { return static_cast<uint8_t>(2 * pair); }

  int current_ = 0;
  int64_t max_ = 0;
};

int64_t power_of_two(int64_t least) {
  int64_t n = 2;
  while (n < least) n *= 2;
  return n;
}

}  // namespace

Plan top_k_plan(const TopKProblem& p) {
  Plan plan;
  const int64_t rows = p.outer * p.inner;
  if (rows * p.K == 0) return plan;
  constexpr int64_t kChunk = hip::kTopKChunk;
  if (p.R > kChunk) to_u31(2 * rows * round_up(p.R, kChunk));  // entries are counted with 31 bits
  // If K is at most half of a chunk, the kept entries are sorted again in chunks until one chunk remains.
  // Otherwise all chunks are sorted once and then merged.
  const bool sorts_again = 2 * p.K <= kChunk;
  Entries entries;
  const auto addresses = [&](auto& args, bool last, int64_t written) {
    args.x = input(0);
    args.inner = make_divisor(p.inner);
    args.R = to_u31(p.R);
    args.order = p.order;
    args.to_y = last;
    entries.set_buffers(args, last ? 0 : written);
    args.y = output(0);
    args.y_indices = output(1);
  };
  int64_t count = p.R, chunks = 1, keep = 0;
  for (bool from_x = true; from_x || (sorts_again && count > keep); from_x = false) {
    chunks = divide_up(count, kChunk);
    keep = chunks == 1 || sorts_again ? p.K : kChunk;
    hip::TopKSortArgs args = {};
    addresses(args, chunks == 1, rows * chunks * keep);
    args.chunks = make_divisor(chunks);
    args.count = to_u31(count);
    args.keep = to_u31(keep);
    args.size = to_u31(std::min(kChunk, power_of_two(count)));
    args.smallest = p.smallest;
    args.from_x = from_x;
    args.threads = static_cast<int32_t>(std::clamp<int64_t>(args.size / 2, 64, hip::kTopKThreads));
    for_each_launch(rows * chunks, args.threads, [&](int64_t first, uint32_t groups) {
      args.first = to_u31(first);
      plan.launch("top_k_sort", {groups}, static_cast<uint32_t>(args.threads), args);
    });
    count = chunks * keep;
  }
  int64_t runs = chunks;
  for (int64_t run = keep; runs > 1; runs = divide_up(runs, 2)) {
    const int64_t next = std::min(2 * run, p.K);
    hip::TopKMergeArgs args = {};
    addresses(args, runs == 2, rows * divide_up(runs, 2) * next);
    args.count = make_divisor(runs * run);
    args.run = make_divisor(run);
    args.runs = to_u31(runs);
    args.total = to_u31(rows * runs * run);
    args.next = to_u31(next);
    plan.launch_items("top_k_merge", args.total, hip::kTopKThreads, args);
    run = next;
  }
  plan.workspace = entries.bytes();
  return plan;
}

Plan arg_plan(const ArgProblem& p) {
  Plan plan;
  const int64_t total = p.outer * p.inner;
  if (total == 0) return plan;
  Entries entries;
  int64_t count = p.R;
  for (bool from_x = true, last = false; !last; from_x = false) {
    const int64_t slices = choose_slices(p.outer, count, p.inner, hip::kTopKThreads);
    last = slices == 1;
    hip::ArgArgs args = {};
    args.x = input(0);
    entries.set_buffers(args, last ? 0 : total * slices);
    args.y = output(0);
    args.inner = make_divisor(p.inner);
    args.stride = make_divisor(slices * p.inner);
    args.total = to_u31(total * slices);
    args.R = to_u31(p.R);
    args.count = to_u31(count);
    args.order = p.order;
    args.smallest = p.smallest;
    args.last = p.last;
    args.from_x = from_x;
    args.to_y = last;
    if (last && p.inner == 1 && count > 32) {
      for_each_launch(total, hip::kTopKThreads, [&](int64_t first, uint32_t groups) {
        args.row = to_i31(first);
        plan.launch("arg_rows", {groups}, hip::kTopKThreads, args);
      });
    } else {
      const int64_t groups = divide_up(args.total, hip::kTopKThreads);
      plan.launch("arg_columns", {to_u31(groups)}, hip::kTopKThreads, args);
    }
    count = slices;
  }
  plan.workspace = entries.bytes();
  return plan;
}

}  // namespace graphopt::gpu
