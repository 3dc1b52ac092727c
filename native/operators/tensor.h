// The tensors of kernels: an address, a type, a shape, and a place (host or device).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "device/element_type.h"

namespace graphopt {

// The error for an invalid node, attribute or input. The caller of the kernel adds the operator, the node and
// the shapes to the message.
class Error : public std::runtime_error {
 public:
  // Joins the parts, which are strings, numbers and shapes.
  template <class... Parts>
  explicit Error(const Parts&... parts) : Error(std::vector<std::string>{text_of(parts)...}) {}

 private:
  explicit Error(const std::vector<std::string>& parts);

  template <class Part>
  static std::string text_of(const Part& part) {
    if constexpr (std::is_arithmetic_v<Part>) {
      return std::to_string(part);
    } else if constexpr (std::is_convertible_v<Part, std::string>) {
      return part;
    } else {
      return part.text();
    }
  }
};

// Throws Error with these parts if `wrong`. The parts are always evaluated.
template <class... Parts>
void throw_if(bool wrong, const Parts&... parts) {
  if (wrong) throw Error(parts...);
}

const char* element_type_name(ElementType type);
// Returns true if two elements share a byte, the first in its lower half.
constexpr bool is_packed(ElementType type) {
  return type == ElementType::kUint4 || type == ElementType::kInt4;
}
// Returns the bytes of one element; 0 for unsupported and for packed types.
constexpr int64_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::kUint8:
    case ElementType::kInt8:
    case ElementType::kBool:
    case ElementType::kFloat8E4M3Fn:
      return 1;
    case ElementType::kHalf:
    case ElementType::kBfloat16:
    case ElementType::kUint16:
    case ElementType::kInt16:
      return 2;
    case ElementType::kFloat:
    case ElementType::kInt32:
    case ElementType::kUint32:
      return 4;
    case ElementType::kInt64:
    case ElementType::kUint64:
    case ElementType::kDouble:
      return 8;
    case ElementType::kUint4:
    case ElementType::kInt4:
    case ElementType::kUndefined:
      break;
  }
  return 0;
}

// Returns true for the floating-point types that kernels compute with.
constexpr bool is_float(ElementType type) {
  return type == ElementType::kFloat || type == ElementType::kHalf;
}
constexpr bool is_signed(ElementType type) {  // integers only
  return type == ElementType::kInt8 || type == ElementType::kInt16 || type == ElementType::kInt32 ||
         type == ElementType::kInt64;
}
constexpr bool is_unsigned(ElementType type) {
  return type == ElementType::kUint8 || type == ElementType::kUint16 || type == ElementType::kUint32 ||
         type == ElementType::kUint64;
}
constexpr bool is_integer(ElementType type) { return is_signed(type) || is_unsigned(type); }
constexpr bool is_byte(ElementType type) { return type == ElementType::kInt8 || type == ElementType::kUint8; }
// Returns true for uint16, int16, uint32, uint64 and double. Few operators have kernels that compute with
// these types; most only move them.
constexpr bool is_rare(ElementType type) {
  return type == ElementType::kUint16 || type == ElementType::kInt16 || type == ElementType::kUint32 ||
         type == ElementType::kUint64 || type == ElementType::kDouble;
}

// The sizes of a tensor's axes, stored inline.
class Shape {
 public:
  static constexpr size_t kMaxRank = 16;

  Shape() = default;
  // All dims are zero. Throws std::invalid_argument for a rank above kMaxRank.
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

  // Returns the product of the dims in [first, last).
  int64_t elements(size_t first = 0, size_t last = kMaxRank) const {
    int64_t n = 1;
    for (size_t i = first; i < std::min(last, rank_); ++i) n *= dims_[i];
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

enum class Place : uint8_t { kHost, kDevice };

// A contiguous tensor. An omitted optional input has the type kUndefined.
struct Tensor {
  void* data = nullptr;
  ElementType type = ElementType::kUndefined;
  Place place = Place::kHost;
  Shape shape;

  bool present() const { return type != ElementType::kUndefined; }
  size_t bytes() const {
    const int64_t n = shape.elements();
    return static_cast<size_t>(is_packed(type) ? (n + 1) / 2 : n * bytes_of(type));
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// A list of tensors that does not allocate while it is short.
class Tensors {
 public:
  Tensors() = default;
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  size_t size() const { return size_; }
  void resize(size_t n) {
    if (n > kInPlace) more_.resize(n);
    size_ = n;
  }
  Tensor& operator[](size_t i) { return begin()[i]; }
  const Tensor& operator[](size_t i) const { return begin()[i]; }
  Tensor* begin() { return size_ > kInPlace ? more_.data() : few_; }
  Tensor* end() { return begin() + size_; }
  const Tensor* begin() const { return size_ > kInPlace ? more_.data() : few_; }
  const Tensor* end() const { return begin() + size_; }

 private:
  static constexpr size_t kInPlace = 5;
  size_t size_ = 0;
  Tensor few_[kInPlace];
  std::vector<Tensor> more_;
};

// The shapes of a list of tensors.
class Shapes {
 public:
  explicit Shapes(const Tensors& tensors) : tensors_(tensors.begin()) {}
  const Shape& operator[](size_t i) const { return tensors_[i].shape; }

 private:
  const Tensor* tensors_;
};

}  // namespace graphopt
