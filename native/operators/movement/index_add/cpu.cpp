// Threads compute different units or columns (see Units), never different updates of the same elements: the order of
// the sums is fixed.
#include <algorithm>
#include <cstring>

#include "blocks/half.h"
#include "cpu/parallel_for.h"
#include "operators/movement/index_add/op.h"

namespace graphopt::cpu::GRAPHOPT_ISA {
namespace {

constexpr int64_t kMinBlocks = 4;        // column blocks of a unit
constexpr int64_t kMinColumns = 16;      // columns of a block: a cache line of floats
constexpr int64_t kMinAdds = 1 << 17;    // additions of one thread
constexpr int64_t kMinCopies = 1 << 16;  // elements that one thread copies

// Divides the axes other than the index axis into those that a unit iterates over and those of its columns, which are
// contiguous in both tensors.
struct Units {
  explicit Units(const IndexAddProblem& p) : p(p) {
    const size_t rank = p.data.rank();
    while (first > p.axis + 1 && (first == rank || p.updates[first] == p.data[first])) --first;
    columns = p.updates.elements(first);
    data_step = p.data.elements(p.axis + 1);
    updates_step = p.updates.elements(p.axis + 1);
    count = p.updates.elements(0, p.axis) * p.updates.elements(p.axis + 1, first);
  }

  // Returns the offset of unit i in a tensor of this shape.
  int64_t offset(int64_t i, const Shape& shape) const {
    int64_t at = 0, stride = shape.elements(first);
    for (size_t axis = first; axis-- > 0;) {
      if (axis != p.axis) {
        at += i % p.updates[axis] * stride;
        i /= p.updates[axis];
      }
      stride *= shape[axis];
    }
    return at;
  }

  const IndexAddProblem& p;
  size_t first = p.data.rank();  // the first axis of the columns
  int64_t columns, data_step, updates_step, count;
};

template <class Index>
void add_unit(const Units& units, const Index* indices, const float* updates, float* y, int64_t columns) {
  const int64_t n = units.p.updates[units.p.axis], size = units.p.data[units.p.axis];
  const int64_t next = units.p.one_index ? 0 : 1;
  const auto row = [&](int64_t e) {
    const auto index = static_cast<int64_t>(indices[e * next]);
    return y + (index < 0 ? index + size : index) * units.data_step;
  };
  if (columns == 1) {  // takes half the time of the loop below
    for (int64_t e = 0; e < n; ++e) *row(e) += updates[e * units.updates_step];
    return;
  }
  for (int64_t e = 0; e < n; ++e) {
    float* __restrict to = row(e);
    const float* __restrict from = updates + e * units.updates_step;
    for (int64_t i = 0; i < columns; ++i) to[i] += from[i];
  }
}

}  // namespace

template <class T>
void index_add(const IndexAddProblem& p, const T* data, const void* indices, bool narrow, const T* updates,
               T* y, Parallel& parallel) {
  const auto workers = static_cast<int64_t>(parallel.workers());
  const int64_t elements = p.data.elements(), adds = p.updates.elements();
  const int64_t copies =
      y == data || elements == 0 ? 0 : std::clamp<int64_t>(elements / kMinCopies, 1, workers);
  const Units units(p);
  const int64_t threads = std::clamp<int64_t>(adds / kMinAdds, 1, workers);
  // Fewer units than threads are divided into blocks. Memory is read at half the rate in blocks, so fewer than
  // kMinBlocks would gain nothing.
  const int64_t wanted = (threads + units.count - 1) / std::max<int64_t>(units.count, 1);
  const int64_t blocks =
      wanted < kMinBlocks ? 1 : std::clamp<int64_t>(units.columns / kMinColumns, 1, wanted);
  const int64_t work = adds == 0 ? 0 : units.count * blocks;
  const int64_t parts = std::min(work, threads);
  const auto copy = [&](int64_t part, size_t) {
    const int64_t begin = elements * part / copies, end = elements * (part + 1) / copies;
    std::memcpy(y + begin, data + begin, static_cast<size_t>(end - begin) * sizeof(T));
  };
  const auto add = [&](int64_t part, size_t) {
    for (int64_t i = work * part / parts; i < work * (part + 1) / parts; ++i) {
      const int64_t unit = i / blocks, begin = units.columns * (i % blocks) / blocks;
      const int64_t columns = units.columns * (i % blocks + 1) / blocks - begin;
      const float* from = updates + units.offset(unit, p.updates) + begin;
      float* to = y + units.offset(unit, p.data) + begin;
      if (narrow) {
        add_unit(units, static_cast<const int32_t*>(indices), from, to, columns);
      } else {
        add_unit(units, static_cast<const int64_t*>(indices), from, to, columns);
      }
    }
  };
  parallel_loops(parallel, {{copies, copy}, {parts, add}});
}

template decltype(index_add<float>) index_add<float>;

}  // namespace graphopt::cpu::GRAPHOPT_ISA
