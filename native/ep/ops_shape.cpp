// Operators that change a tensor's shape but not its bytes, and Shape itself.
#include <algorithm>

#include "abi/error.h"
#include "ep/operators.h"

namespace graphopt::ep {
namespace {

// Output 0 holds the bytes of input 0.
class View : public OpKernel {
 public:
  void run(Execution& e) const override {
    const Tensor& x = e.input(0);
    const Shape y = shape(e);
    if (y.elements() != x.shape.elements()) {
      throw Error("the shape " + y.text() + " does not hold the elements of " + x.shape.text());
    }
    e.copy(e.output(0, y), x.data, x.shape.elements() * bytes_of(x.type));
  }

 private:
  virtual Shape shape(const Execution& e) const = 0;
};

class Identity final : public View {
  Shape shape(const Execution& e) const override { return e.input(0).shape; }
};

class Reshape final : public View {
 public:
  explicit Reshape(bool allow_zero) : allow_zero_(allow_zero) {}

 private:
  Shape shape(const Execution& e) const override {
    const Shape& x = e.input(0).shape;
    const std::vector<int64_t> wanted = e.integers(1);
    Shape y(wanted.size());
    int64_t known = 1;
    size_t open = wanted.size();
    for (size_t d = 0; d < wanted.size(); ++d) {
      y[d] = wanted[d];
      if (wanted[d] == 0 && !allow_zero_) {
        if (d >= x.rank()) throw Error("a dim of 0 in the shape has no counterpart in " + x.text());
        y[d] = x[d];
      }
      if (wanted[d] == -1) {
        open = d;
      } else {
        known *= y[d];
      }
    }
    if (open < wanted.size()) {
      if (known == 0 || x.elements() % known != 0)
        throw Error("no shape that holds the elements of " + x.text());
      y[open] = x.elements() / known;
    }
    return y;
  }

  bool allow_zero_;
};

class Flatten final : public View {
 public:
  explicit Flatten(int64_t axis) : axis_(axis) {}

 private:
  Shape shape(const Execution& e) const override {
    const Shape& x = e.input(0).shape;
    // All axes may be flattened into the first: this one may be behind the last.
    const auto rank = static_cast<int64_t>(x.rank());
    const size_t axis = axis_ == rank ? x.rank() : axis_of(axis_, x.rank());
    const int64_t inner = x.elements(axis);
    int64_t outer = 1;
    for (size_t d = 0; d < axis; ++d) outer *= x[d];
    return {outer, inner};
  }

  int64_t axis_;
};

std::vector<bool> marked(const std::vector<int64_t>& axes, size_t rank) {
  std::vector<bool> marks(rank, false);
  for (const int64_t axis : axes) marks[axis_of(axis, rank)] = true;
  return marks;
}

// Squeeze and Unsqueeze: the axes are input 1, or an attribute below opset 13.
class AxesView : public View {
 public:
  explicit AxesView(std::vector<int64_t> axes) : axes_(std::move(axes)) {}

 protected:
  std::vector<int64_t> axes(const Execution& e) const { return e.has_input(1) ? e.integers(1) : axes_; }

 private:
  std::vector<int64_t> axes_;
};

class Unsqueeze final : public AxesView {
 public:
  using AxesView::AxesView;

 private:
  Shape shape(const Execution& e) const override {
    const Shape& x = e.input(0).shape;
    const std::vector<int64_t> added = axes(e);
    const std::vector<bool> is_new = marked(added, x.rank() + added.size());
    Shape y(is_new.size());
    size_t from = 0;
    for (size_t d = 0; d < is_new.size(); ++d) y[d] = is_new[d] ? 1 : x[from++];
    return y;
  }
};

class Squeeze final : public AxesView {
 public:
  using AxesView::AxesView;

 private:
  Shape shape(const Execution& e) const override {
    const Shape& x = e.input(0).shape;
    const std::vector<int64_t> given = axes(e);
    std::vector<bool> dropped = marked(given, x.rank());
    size_t rank = 0;
    for (size_t d = 0; d < x.rank(); ++d) {
      if (given.empty()) dropped[d] = x[d] == 1;
      if (!dropped[d]) ++rank;
    }
    Shape y(rank);
    size_t to = 0;
    for (size_t d = 0; d < x.rank(); ++d) {
      if (!dropped[d]) y[to++] = x[d];
    }
    return y;
  }
};

class ShapeOf final : public OpKernel {
 public:
  ShapeOf(int64_t start, std::optional<int64_t> end) : start_(start), end_(end) {}

  void run(Execution& e) const override {
    const Shape& x = e.input(0).shape;
    const auto rank = static_cast<int64_t>(x.rank());
    const auto clamp = [rank](int64_t i) {
      return std::min(std::max<int64_t>(i < 0 ? i + rank : i, 0), rank);
    };
    const int64_t begin = clamp(start_), end = std::max(begin, clamp(end_.value_or(rank)));
    auto* y = static_cast<int64_t*>(e.output(0, {end - begin}, ElementType::kInt64));
    std::copy(x.data() + begin, x.data() + end, y);
  }

 private:
  int64_t start_;
  std::optional<int64_t> end_;
};

}  // namespace

void add_shape(std::vector<Operator>& table) {
  add(table, "Identity", 1, 25, [](const Attributes&) {
    return std::make_unique<Identity>();
  }).reuses(Reuse::kAlias);
  add(table, "Reshape", 5, 25,
      [](const Attributes& a) { return std::make_unique<Reshape>(a.find_int("allowzero").value_or(0) != 0); })
      .reuses(Reuse::kAlias)
      .reads_on_host({1});
  add(table, "Flatten", 1, 25, [](const Attributes& a) {
    return std::make_unique<Flatten>(a.find_int("axis").value_or(1));
  }).reuses(Reuse::kAlias);
  add(table, "Squeeze", 1, 25,
      [](const Attributes& a) {
        return std::make_unique<Squeeze>(a.find_ints("axes").value_or(std::vector<int64_t>()));
      })
      .reuses(Reuse::kAlias)
      .reads_on_host({1});
  add(table, "Unsqueeze", 1, 25,
      [](const Attributes& a) {
        return std::make_unique<Unsqueeze>(a.find_ints("axes").value_or(std::vector<int64_t>()));
      })
      .reuses(Reuse::kAlias)
      .reads_on_host({1});
  add(table, "Shape", 1, 25, [](const Attributes& a) {
    return std::make_unique<ShapeOf>(a.find_int("start").value_or(0), a.find_int("end"));
  }).writes_on_host({0});
}

}  // namespace graphopt::ep
