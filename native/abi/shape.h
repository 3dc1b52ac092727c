// Tensor shapes without allocation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace graphopt::abi {

class Shape {
 public:
  static constexpr size_t kMaxRank = 16;

  Shape() = default;
  // Zeros. Throws std::invalid_argument for a rank above kMaxRank.
  explicit Shape(size_t rank) : rank_(rank) {
    if (rank > kMaxRank) {
      throw std::invalid_argument("rank " + std::to_string(rank) + " is not supported, the maximum is " +
                                  std::to_string(kMaxRank));
    }
  }
  Shape(std::initializer_list<int64_t> dims) : rank_(dims.size()) {
    std::copy(dims.begin(), dims.end(), dims_);
  }

  size_t rank() const { return rank_; }
  const int64_t* data() const { return dims_; }
  int64_t* data() { return dims_; }
  int64_t operator[](size_t i) const { return dims_[i]; }
  int64_t& operator[](size_t i) { return dims_[i]; }

  int64_t elements(size_t first_axis = 0) const {
    int64_t n = 1;
    for (size_t i = first_axis; i < rank_; ++i) n *= dims_[i];
    return n;
  }

  friend bool operator==(const Shape& a, const Shape& b) {
    return a.rank_ == b.rank_ && std::equal(a.dims_, a.dims_ + a.rank_, b.dims_);
  }
  friend bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

  // "[1,64,56,56]"
  std::string text() const {
    std::string s = "[";
    for (size_t i = 0; i < rank_; ++i) s += (i ? "," : "") + std::to_string(dims_[i]);
    return s + "]";
  }

 private:
  size_t rank_ = 0;
  int64_t dims_[kMaxRank] = {};
};

// A dim before any tensor exists: a value >= 0, or a symbol, or neither (unknown).
struct Dim {
  int64_t value = -1;
  std::string symbol;

  bool known() const { return value >= 0; }
  bool unnamed() const { return value < 0 && symbol.empty(); }
  friend bool operator==(const Dim& a, const Dim& b) {
    return !a.unnamed() && a.value == b.value && a.symbol == b.symbol;
  }
};

// Empty when the rank is not known; none of our operators takes scalars.
using SymbolicShape = std::vector<Dim>;

}  // namespace graphopt::abi
