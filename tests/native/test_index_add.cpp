#include "operators/movement/index_add/op.h"
#include "testing.h"

namespace graphopt::test {
namespace {

// Adds element by element in the order of the updates, as ONNX defines ScatterElements.
std::vector<float> scattered(const IndexAddProblem& p, std::vector<float> y,
                             const std::vector<int64_t>& indices, const std::vector<float>& updates) {
  for (size_t element = 0; element < updates.size(); ++element) {
    auto rest = static_cast<int64_t>(element);
    int64_t at = 0, stride = 1;
    for (size_t axis = p.data.rank(); axis-- > 0;) {
      int64_t index = rest % p.updates[axis];
      rest /= p.updates[axis];
      if (axis == p.axis) {
        index = indices[p.one_index ? 0 : static_cast<size_t>(index)];
        index += index < 0 ? p.data[axis] : 0;
      }
      at += index * stride;
      stride *= p.data[axis];
    }
    y[static_cast<size_t>(at)] += updates[element];
  }
  return y;
}

void compare_index_add(const Shape& data, const Shape& updates, size_t axis, bool one_index = false) {
  const IndexAddProblem p{data, updates, axis, one_index};
  const auto x = random_tensor<float>(data.elements(), 1), u = random_tensor<float>(updates.elements(), 2);
  std::mt19937 generator(3);
  std::uniform_int_distribution<int64_t> drawn(-data[axis], data[axis] - 1);
  std::vector<int64_t> indices(one_index ? 1 : static_cast<size_t>(updates[axis]));
  for (int64_t& index : indices) index = drawn(generator);
  const std::vector<int32_t> narrow(indices.begin(), indices.end());
  const std::vector<float> expected = scattered(p, x, indices, u);
  for (const size_t workers : {1, 2, 7}) {
    ThreadParallel parallel(workers);
    std::vector<float> y(x.size(), 9.0f), in_place = x;
    cpu::index_add(p, x.data(), indices.data(), false, u.data(), y.data(), parallel);
    CHECK(y == expected);
    cpu::index_add(p, in_place.data(), narrow.data(), true, u.data(), in_place.data(), parallel);
    CHECK(in_place == expected);
  }
}

TEST_CASE("index add along each axis") {
  const Shape shapes[][2] = {{{6, 4, 9}, {30, 4, 9}},
                             {{6, 4, 9}, {6, 30, 9}},
                             {{6, 4, 9}, {6, 4, 30}},
                             {{13}, {70}},
                             {{5, 1}, {8, 1}}};
  for (const auto& [data, updates] : shapes) {
    size_t axis = 0;
    while (data[axis] == updates[axis]) ++axis;
    compare_index_add(data, updates, axis);
    compare_index_add(data, updates, axis, true);
  }
}

TEST_CASE("index add of updates that are smaller than data") {
  for (size_t axis = 0; axis < 4; ++axis) {
    for (size_t smaller = 0; smaller < 4; ++smaller) {
      const Shape data{3, 4, 5, 6};
      Shape updates = data;
      updates[smaller] -= 2;
      updates[axis] = 11;
      compare_index_add(data, updates, axis);
    }
  }
}

TEST_CASE("index add with several threads") {
  compare_index_add({40, 300}, {4000, 300}, 0);        // columns
  compare_index_add({40, 300}, {4000, 299}, 0);        // columns, shorter than the rows of data
  compare_index_add({40, 10}, {130000, 10}, 0);        // too few columns to divide
  compare_index_add({9, 50, 70}, {9, 2000, 70}, 1);    // slices
  compare_index_add({2, 50, 400}, {2, 1600, 400}, 1);  // slices and columns
  compare_index_add({500000, 3}, {2, 3}, 0);           // copies
}

}  // namespace
}  // namespace graphopt::test
