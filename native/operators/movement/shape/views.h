// The output shapes of Reshape and similar operators, which keep the bytes of their input. Each class reads the
// attributes of a node. `of` throws Error if the shape does not have as many elements as input 0.
#pragma once

#include "operators/kernel.h"

namespace graphopt {

struct IdentityShape {
  explicit IdentityShape(const Attributes&) {}
  Shape of(const Call& call) const { return call.input(0).shape; }
};

class ReshapeShape {
 public:
  explicit ReshapeShape(const Attributes& node) : allow_zero_(node.get_bool("allowzero")) {}
  Shape of(const Call& call) const;

 private:
  bool allow_zero_;
};

class FlattenShape {
 public:
  explicit FlattenShape(const Attributes& node) : axis_(node.get_int("axis", 1)) {}
  Shape of(const Call& call) const;

 private:
  int64_t axis_;
};

// Squeeze and Unsqueeze: the axes are input 1, or an attribute below opset 13.
class UnsqueezeShape {
 public:
  explicit UnsqueezeShape(const Attributes& node) : axes_(node.find_ints("axes")) {}
  Shape of(const Call& call) const;

 private:
  std::optional<std::vector<int64_t>> axes_;
};

class SqueezeShape {
 public:
  explicit SqueezeShape(const Attributes& node) : axes_(node.find_ints("axes")) {}
  Shape of(const Call& call) const;

 private:
  std::optional<std::vector<int64_t>> axes_;
};

}  // namespace graphopt
