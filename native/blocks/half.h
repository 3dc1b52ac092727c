// IEEE binary16 storage type for host code. Arithmetic is done in float.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace graphopt {

// Not _Float16: g++ 11 does not have this type. Without F16C, its conversions call functions of libgcc 12, which older
// systems lack. Conversions of `half` round to nearest even and preserve NaN, infinities and subnormals.
class half {
 public:
  half() = default;

  [[gnu::always_inline]] half(float value) {  // implicit, like the conversion to a built-in type
#if defined(__F16C__)
    bits_ = static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    uint32_t f;
    std::memcpy(&f, &value, sizeof f);
    const uint32_t magnitude = f & 0x7fffffffu;
    uint32_t h;
    if (magnitude >= 0x47800000u) {  // 2^16 and above, NaN
      h = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (magnitude <
               0x38800000u) {  // below 2^-14: adding 1/2 leaves multiples of 2^-24 in the low bits
      float shifted;
      std::memcpy(&shifted, &magnitude, sizeof shifted);
      shifted += 0.5f;
      std::memcpy(&h, &shifted, sizeof h);
      h -= 0x3f000000u;
    } else {
      h = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    }
    bits_ = static_cast<uint16_t>(h | (f >> 16 & 0x8000u));
#endif
  }

  [[gnu::always_inline]] operator float() const {
#if defined(__F16C__)
    return _cvtsh_ss(bits_);
#else
    const uint32_t shifted = (bits_ & 0x7fffu) << 13;
    float f;
    std::memcpy(&f, &shifted, sizeof f);
    f *= 5192296858534827628530496329220096.0f;  // 2^112, the difference of the exponent biases
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    if ((bits_ & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;
    bits |= static_cast<uint32_t>(bits_ & 0x8000u) << 16;
    std::memcpy(&f, &bits, sizeof f);
    return f;
#endif
  }

 private:
  uint16_t bits_;
};
static_assert(sizeof(half) == 2);

}  // namespace graphopt
