// Arithmetic, comparisons and roundings of values that shapes depend on.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "blocks/gpu/walk_plan.h"
#include "operators/movement/shape/arithmetic.h"
#include "operators/reduction/reduction/op.h"

namespace graphopt {
namespace {

// Calls body with a zero of the type.
template <class Body>
void with_type(ElementType type, const Body& body) {
  switch (type) {
    case ElementType::kInt64:
      return body(int64_t());
    case ElementType::kInt32:
      return body(int32_t());
    case ElementType::kFloat:
      return body(float());
    case ElementType::kBool:
      return body(bool());
    default:
      throw Error(no_kernel(type));
  }
}

std::string refuse_bools(const Node& node) {
  return node.type() == ElementType::kBool ? no_kernel(node.type()) : refuse_unless_arithmetic(node);
}

std::string refuse_floats(const Node& node) {
  return node.type() == ElementType::kFloat ? no_kernel(node.type()) : refuse_bools(node);
}

enum class Operation {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMod,
  kMin,
  kMax,
  kEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kAnd,
  kOr,
  kXor,
};

bool compares(Operation op) { return op >= Operation::kEqual; }

// Integers wrap around.
template <class T>
T wrapped(Operation op, T a, T b) {
  using U = std::make_unsigned_t<T>;
  const U x = static_cast<U>(a), y = static_cast<U>(b);
  return static_cast<T>(op == Operation::kAdd ? x + y : op == Operation::kSub ? x - y : x * y);
}

// The quotient is rounded towards 0; the remainder has the sign of b.
template <class T>
T divided(Operation op, T a, T b) {
  throw_if(b == 0, "an integer is divided by 0");
  if (b == -1) return op == Operation::kDiv ? wrapped<T>(Operation::kSub, 0, a) : 0;
  if (op == Operation::kDiv) return a / b;
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

template <class T>
T computed(Operation op, T a, T b) {
  if (op == Operation::kMin || op == Operation::kMax) {
    if (a != a) return a;  // a is NaN; if b is NaN, the comparison below is false and returns b
    return (op == Operation::kMin ? a < b : a > b) ? a : b;
  }
  if constexpr (std::is_same_v<T, bool>) {
    throw Error(no_kernel(ElementType::kBool));
  } else if constexpr (std::is_same_v<T, float>) {
    switch (op) {
      case Operation::kAdd:
        return a + b;
      case Operation::kSub:
        return a - b;
      case Operation::kMul:
        return a * b;
      case Operation::kDiv:
        return a / b;
      default:
        return std::fmod(a, b);
    }
  } else {
    return op == Operation::kDiv || op == Operation::kMod ? divided(op, a, b) : wrapped(op, a, b);
  }
}

template <class T>
bool compared(Operation op, T a, T b) {
  switch (op) {
    case Operation::kEqual:
      return a == b;
    case Operation::kLess:
      return a < b;
    case Operation::kLessOrEqual:
      return a <= b;
    case Operation::kGreater:
      return a > b;
    case Operation::kGreaterOrEqual:
      return a >= b;
    case Operation::kAnd:
      return a && b;
    case Operation::kOr:
      return a || b;
    default:
      return !a != !b;
  }
}

// Returns the strides of each input, broadcast to y.
std::vector<std::vector<int64_t>> broadcast_strides(const Call& call, const Shape& y) {
  std::vector<std::vector<int64_t>> strides;
  for (const Tensor& x : call.inputs) strides.push_back(gpu::broadcast(x.shape, y));
  return strides;
}

// Returns a function of two or more broadcast inputs.
HostFunction binary(Operation op) {
  return [op](const Call& call) -> HostValue {
    Shape shape = call.input(0).shape;
    for (size_t i = 1; i < call.inputs.size(); ++i) {
      shape = gpu::broadcast_shape(shape, call.input(i).shape);
    }
    const ElementType type = call.input(0).type;
    const auto write = [&call, op, type](const Tensor& y) {
      const auto strides = broadcast_strides(call, y.shape);
      with_type(type, [&](auto number) {
        using T = decltype(number);
        const auto input = [&](size_t k, int64_t at) { return call.inputs[k].as<const T>()[at]; };
        int64_t i = 0;
        walk(y.shape, strides, std::vector<int64_t>(strides.size()), [&](const std::vector<int64_t>& at) {
          T value = input(0, at[0]);
          if (compares(op)) {
            y.as<bool>()[i++] = compared(op, value, input(1, at[1]));
            return;
          }
          for (size_t k = 1; k < at.size(); ++k) value = computed(op, value, input(k, at[k]));
          y.as<T>()[i++] = value;
        });
      });
    };
    return {shape, compares(op) ? ElementType::kBool : type, write};
  };
}

// Only two remainders have a kernel: that of floats with the dividend's sign (fmod = 1), and that of integers with the
// divisor's sign (fmod = 0).
std::string refuse_remainder(const Node& node) {
  const bool fmod = node.get_bool("fmod");
  if (fmod != (node.type() == ElementType::kFloat)) return "fmod is 1 for integers, or 0 for floats";
  return refuse_bools(node);
}

HostValue select(const Call& call) {
  const Shape given = gpu::broadcast_shape(call.input(1).shape, call.input(2).shape);
  const auto write = [&call](const Tensor& y) {
    const auto bytes = static_cast<size_t>(bytes_of(y.type));
    auto* to = y.as<char>();
    walk(y.shape, broadcast_strides(call, y.shape), {0, 0, 0}, [&](const std::vector<int64_t>& at) {
      const size_t from = call.inputs[0].as<const bool>()[at[0]] ? 1 : 2;
      std::memcpy(to, call.inputs[from].as<const char>() + static_cast<size_t>(at[from]) * bytes, bytes);
      to += bytes;
    });
  };
  return {gpu::broadcast_shape(call.input(0).shape, given), call.input(1).type, write};
}

enum class Function { kNot, kNeg, kAbs, kSqrt, kFloor, kCeil, kRound };

template <class T>
T compute_unary(Function f, T x) {
  if constexpr (std::is_same_v<T, bool>) {
    return !x;
  } else if constexpr (std::is_same_v<T, float>) {
    switch (f) {
      case Function::kNeg:
        return -x;
      case Function::kAbs:
        return std::fabs(x);
      case Function::kSqrt:
        return std::sqrt(x);
      case Function::kFloor:
        return std::floor(x);
      case Function::kCeil:
        return std::ceil(x);
      default:
        return std::nearbyint(x);  // rounds halves to even
    }
  } else {
    return f == Function::kNeg || x < 0 ? wrapped<T>(Operation::kSub, 0, x) : x;
  }
}

HostFunction unary(Function f) {
  return [f](const Call& call) -> HostValue {
    const Tensor& x = call.input(0);
    const auto write = [&x, f](const Tensor& y) {
      with_type(x.type, [&](auto number) {
        using T = decltype(number);
        const T* from = x.as<const T>();
        std::transform(from, from + x.shape.elements(), y.as<T>(),
                       [f](T value) { return compute_unary(f, value); });
      });
    };
    return {x.shape, x.type, write};
  };
}

std::string refuse_unless_bool(const Node& node) {
  return node.type() == ElementType::kBool ? "" : no_kernel(node.type());
}

std::string refuse_unless_float(const Node& node) {
  return node.type() == ElementType::kFloat ? "" : no_kernel(node.type());
}

// Floats are truncated; NaN and values out of range become the least integer, as in x86's conversion.
template <class To, class From>
To converted(From x) {
  if constexpr (std::is_same_v<From, float> && !std::is_same_v<To, float> && !std::is_same_v<To, bool>) {
    const float end = std::ldexp(1.0f, std::numeric_limits<To>::digits);
    return x >= -end && x < end ? static_cast<To>(x) : std::numeric_limits<To>::min();
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else {
    return static_cast<To>(x);
  }
}

HostFunction cast(const Node& node) {
  return [type = static_cast<ElementType>(node.get_int("to"))](const Call& call) -> HostValue {
    const Tensor& x = call.input(0);
    const auto write = [&x](const Tensor& y) {
      with_type(x.type, [&](auto from) {
        with_type(y.type, [&](auto to) {
          using From = decltype(from);
          using To = decltype(to);
          const From* first = x.as<const From>();
          std::transform(first, first + x.shape.elements(), y.as<To>(), converted<To, From>);
        });
      });
    };
    return {x.shape, type, write};
  };
}

// Reduces the given axes, or all axes, by Mul, Add, Min or Max.
template <Operation kOp>
HostFunction reduce(const Node& node) {
  return [axes = ReducedAxes(node)](const Call& call) -> HostValue {
    const Tensor& x = call.input(0);
    constexpr bool kHasIdentity =
        kOp == Operation::kAdd || kOp == Operation::kMul;  // 0 or 1, the result for no elements
    const std::vector<bool> reduced = axes.reduced(call);
    for (size_t d = 0; d < x.shape.rank(); ++d) {
      throw_if(reduced[d] && x.shape[d] == 0 && !kHasIdentity, "the reduced axes have no elements");
    }
    const auto write = [&x, reduced](const Tensor& y) {
      std::vector<int64_t> strides(x.shape.rank());  // strides in y
      for (size_t d = x.shape.rank(), step = 1; d-- > 0;) {
        if (reduced[d]) continue;
        strides[d] = static_cast<int64_t>(step);
        step *= static_cast<size_t>(x.shape[d]);
      }
      with_type(x.type, [&](auto number) {
        using T = decltype(number);
        std::vector<char> begun(static_cast<size_t>(y.shape.elements()));
        const T* from = x.as<const T>();
        std::fill_n(y.as<T>(), y.shape.elements(), static_cast<T>(kOp == Operation::kMul ? 1 : 0));
        walk(x.shape, {strides}, {0}, [&](const std::vector<int64_t>& at) {
          T& to = y.as<T>()[at[0]];
          char& any = begun[static_cast<size_t>(at[0])];
          to = any ? computed(kOp, to, *from) : *from;
          any = 1;
          ++from;
        });
      });
    };
    return {axes.output_shape(x.shape, reduced), x.type, write};
  };
}

}  // namespace

void add_host_arithmetic(Kernels& kernels) {
  const auto add_binary = [&](const char* name, int first, Operation op, std::string (*refuse)(const Node&)) {
    add_host(kernels, name, first, binary(op)).refused(refuse);
  };
  add_binary("Add", 7, Operation::kAdd, refuse_bools);
  add_binary("Sub", 7, Operation::kSub, refuse_bools);
  add_binary("Mul", 7, Operation::kMul, refuse_bools);
  add_binary("Div", 7, Operation::kDiv, refuse_bools);
  add_binary("Mod", 10, Operation::kMod, refuse_remainder);
  add_binary("Min", 8, Operation::kMin, refuse_bools);
  add_binary("Max", 8, Operation::kMax, refuse_bools);
  add_binary("Equal", 7, Operation::kEqual, refuse_unless_arithmetic);
  add_binary("Less", 7, Operation::kLess, refuse_bools);
  add_binary("LessOrEqual", 12, Operation::kLessOrEqual, refuse_bools);
  add_binary("Greater", 7, Operation::kGreater, refuse_bools);
  add_binary("GreaterOrEqual", 12, Operation::kGreaterOrEqual, refuse_bools);
  add_binary("And", 7, Operation::kAnd, refuse_unless_bool);
  add_binary("Or", 7, Operation::kOr, refuse_unless_bool);
  add_binary("Xor", 7, Operation::kXor, refuse_unless_bool);
  add_host(kernels, "Where", 9, select).refused(refuse_unless_arithmetic);
  const auto add_unary = [&](const char* name, int first, Function f, std::string (*refuse)(const Node&)) {
    add_host(kernels, name, first, unary(f)).refused(refuse);
  };
  add_unary("Not", 1, Function::kNot, refuse_unless_bool);
  add_unary("Neg", 6, Function::kNeg, refuse_bools);
  add_unary("Abs", 6, Function::kAbs, refuse_bools);
  add_unary("Sqrt", 6, Function::kSqrt, refuse_unless_float);
  add_unary("Floor", 6, Function::kFloor, refuse_unless_float);
  add_unary("Ceil", 6, Function::kCeil, refuse_unless_float);
  add_unary("Round", 11, Function::kRound, refuse_unless_float);
  add_host(kernels, "Cast", 6, cast).refused(refuse_unless_arithmetic);
  add_host(kernels, "ReduceProd", 1, reduce<Operation::kMul>).refused(refuse_floats);
  add_host(kernels, "ReduceSum", 1, reduce<Operation::kAdd>).refused(refuse_floats);
  add_host(kernels, "ReduceMin", 1, reduce<Operation::kMin>).refused(refuse_bools);
  add_host(kernels, "ReduceMax", 1, reduce<Operation::kMax>).refused(refuse_bools);
}

}  // namespace graphopt
