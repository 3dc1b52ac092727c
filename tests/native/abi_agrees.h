// Tests whether a call through our declaration of a function matches the real one, on a machine that passes 64-bit
// integers and pointers alike. scripts/abi_check.py includes it beside the real headers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
namespace abi_check {
template <class T>
struct is_function_pointer : std::is_function<std::remove_pointer_t<T>> {};
template <class T, class = void>
struct size_of : std::integral_constant<size_t, 0> {};
template <class T>
struct size_of<T, std::enable_if_t<!std::is_function_v<T> && (sizeof(T) > 0)>>
    : std::integral_constant<size_t, sizeof(T)> {};
template <class T>
constexpr bool is_number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <class Ours, class Theirs>
struct agree;
template <class Ours, class Theirs>
constexpr bool pointees() {
  using O = std::remove_cv_t<Ours>;
  using T = std::remove_cv_t<Theirs>;
  // Written memory must not be const in our declaration. Opaque handles are void pointers in our declaration.
  if (std::is_const_v<Ours> && !std::is_const_v<Theirs> && size_of<T>::value > 0) return false;
  if constexpr (std::is_void_v<O> || std::is_void_v<T>)
    return true;
  else if constexpr (is_number<O> || is_number<T> || std::is_pointer_v<O> || std::is_pointer_v<T>)
    return agree<O, T>::value;
  else
    return true;  // tables of functions grow; structs that we read are compared separately
}
template <class Ours, class Theirs>
constexpr bool values() {
  using O = std::remove_cv_t<std::remove_reference_t<Ours>>;
  using T = std::remove_cv_t<std::remove_reference_t<Theirs>>;
  if constexpr (std::is_same_v<O, T>)
    return true;
  else if constexpr (std::is_pointer_v<O> && std::is_pointer_v<T>) {
    using OP = std::remove_pointer_t<O>;
    using TP = std::remove_pointer_t<T>;
    if constexpr (std::is_function_v<OP> && std::is_function_v<TP>)
      return agree<O, T>::value;
    else
      return pointees<OP, TP>();
  } else if constexpr (is_number<O> && is_number<T>)
    return sizeof(O) == sizeof(T) && std::is_floating_point_v<O> == std::is_floating_point_v<T>;
  else if constexpr (std::is_pointer_v<O> && std::is_integral_v<T>)
    return sizeof(T) == sizeof(O);  // CUdeviceptr
  else
    return false;
}
template <class Ours, class Theirs>
struct agree : std::bool_constant<values<Ours, Theirs>()> {};
template <class R, class... A, class S, class... B>
struct agree<R (*)(A...), S (*)(B...)> {
  template <class X, class Y>
  static constexpr bool result() {
    if constexpr (std::is_void_v<X> || std::is_void_v<Y>)
      return std::is_same_v<X, Y>;
    else
      return values<X, Y>();
  }
  template <bool same_count>
  static constexpr bool all() {
    if constexpr (same_count)
      return (values<A, B>() && ... && result<R, S>());
    else
      return false;
  }
  static constexpr bool value = all<sizeof...(A) == sizeof...(B)>();
};
template <class R, class... A, class S, class... B>
struct agree<R (*)(A...), S (*)(B...) noexcept> : agree<R (*)(A...), S (*)(B...)> {};
template <class Ours, class Theirs>
constexpr bool agrees = agree<std::remove_cv_t<Ours>, std::remove_cv_t<Theirs>>::value;

// An integer of ours that must equal that of a header.
template <long long ours, long long theirs>
struct Number {
  static_assert(ours == theirs, "a number");
  static constexpr int value = ours;
};

// The index and the signature of a slot.
template <class T>
struct slot;
template <template <size_t, class> class S, size_t I, class R, class... A>
struct slot<const S<I, R(A...)>> {
  static constexpr size_t index = I;
  using type = R (*)(A...);
};
template <template <class, size_t, class> class S, class Table, size_t I, class R, class... A>
struct slot<const S<Table, I, R(A...)>> {
  static constexpr size_t index = I;
  using type = R (*)(A...);
};
}  // namespace abi_check
