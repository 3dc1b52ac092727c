// FusedGroupNorm[act]: y = act(gamma[c] (x - mean) / sqrt(var + epsilon) + beta[c]), with float32 statistics
// of each image and group. The variance is computed from deviations in two passes over registers, never as
// E[x^2] - E[x]^2.
//
// Bound by memory. A group that fits into the registers of one work-group is read once and written once
// (group_norm_*). A larger one is divided into parts: group_norm_stats_* reads X once and writes a mean and a sum
// of squared deviations for each part. group_norm_apply_* combines them (Chan, Golub and LeVeque, 1983) in a
// fixed order and reads X a second time, mostly from the cache. About 10 FLOPs per element. Reached on an
// H200 (docs/measurements/gpu_h200.md): 62 to 89 % of a copy's bandwidth for 8 to 256 images, 16 to 30 % for
// one image of 320 x 64 x 64. Launch: operators/normalization/group_norm/plan.cpp.
#include "blocks/gpu/activation.h"
#include "blocks/gpu/reduce.h"
#include "device/platform.h"
#include "operators/normalization/group_norm/args.h"

namespace graphopt::hip {

// A Pack<T> for GCN. Clang would keep each float16 element of a Pack<T> in its own register.
template <class T>
struct PackBits {
  Bits128 bits;
  DEVICE void operator=(const Pack<T>& pack) { bits = bit_cast<Bits128>(pack); }
  DEVICE operator Pack<T>() const { return bit_cast<Pack<T>>(bits); }
};

// A part of a group in registers. Vector k of work-item t holds the kSize elements from (k threads + t) kSize
// on.
template <class T, int kVectors>
struct GroupPart {
  static constexpr int kSize = Pack<T>::kSize;
  using Held = typename Select<kGcn, PackBits<T>, Pack<T>>::Type;
  Held held[kVectors];

  // On GCN the index is recomputed to save registers: 1,024 work-items have 64 each.
  DEVICE static uint32_t element(int k, int threads) {
    const int thread = kGcn ? opaque(thread_x()) : thread_x();
    return static_cast<uint32_t>(k * threads + thread) * kSize;
  }

  // `vectors`: the address x and the bytes of `size` elements are multiples of 16.
  DEVICE void load(const T* x, uint32_t size, int threads, bool vectors) {
    if (vectors) {
      UNROLL for (int k = 0; k < kVectors; ++k) {
        const uint32_t i = element(k, threads);
        if (i < size) held[k] = load_pack(x + i);
      }
    } else {
      UNROLL for (int k = 0; k < kVectors; ++k) {
        const uint32_t i = element(k, threads);
        typename Select<kGcn, Pack<T>, Pack<T>&>::Type pack = held[k];
        UNROLL for (int j = 0; j < kSize; ++j) {
          if (i + j < size) pack.v[j] = x[i + j];
        }
        if constexpr (kGcn) held[k] = pack;
      }
    }
  }

  // Returns the sum of x - pivot. The pivot is an element of the group, so that a large mean costs no digits.
  DEVICE float sum(float pivot, uint32_t size, int threads, bool vectors) const {
    float s = 0;
    UNROLL for (int k = 0; k < kVectors; ++k) {
      const uint32_t i = element(k, threads);
      if (vectors && i >= size) continue;
      const Pack<T>& pack = held[k];
      UNROLL for (int j = 0; j < kSize; ++j) s +=
          vectors || i + j < size ? to_float(pack.v[j]) - pivot : 0.0f;
    }
    return s;
  }

  DEVICE float squared_deviations(float mean, uint32_t size, int threads, bool vectors) const {
    float s = 0;
    UNROLL for (int k = 0; k < kVectors; ++k) {
      const uint32_t i = element(k, threads);
      if (vectors && i >= size) continue;
      const Pack<T>& pack = held[k];
      UNROLL for (int j = 0; j < kSize; ++j) {
        const float d = to_float(pack.v[j]) - mean;
        s += vectors || i + j < size ? d * d : 0.0f;
      }
    }
    return s;
  }

  // `first` is the index in the group of the part's first element; gamma and beta point to the group's first channel.
  DEVICE void store(T* y, uint32_t size, int threads, bool vectors, uint32_t first, float mean, float scale,
                    const T* __restrict__ gamma, const T* __restrict__ beta, const Divisor& inner,
                    const Activation& act) const {
    UNROLL for (int k = 0; k < kVectors; ++k) {
      const uint32_t i = element(k, threads);
      if (i >= size) continue;
      const Pack<T>& pack = held[k];
      uint32_t c = divide(first + i, inner);
      uint32_t offset = first + i - c * inner.d;
      float a = to_float(gamma[c]) * scale, b = to_float(beta[c]);
      float value[kSize];
      if (vectors && inner.d % kSize == 0) {  // the entire vector has one channel
        UNROLL for (int j = 0; j < kSize; ++j) value[j] = (to_float(pack.v[j]) - mean) * a + b;
      } else {
        UNROLL for (int j = 0; j < kSize; ++j) {
          if (offset == inner.d && i + j < size) {
            offset = 0;
            ++c;
            a = to_float(gamma[c]) * scale;
            b = to_float(beta[c]);
          }
          value[j] = (to_float(pack.v[j]) - mean) * a + b;
          ++offset;
        }
      }
      activate(act, value);
      if (vectors) {
        Pack<T> out;
        UNROLL for (int j = 0; j < kSize; ++j) out.v[j] = from_float<T>(value[j]);
        store_pack(y + i, out);
      } else {
        UNROLL for (int j = 0; j < kSize; ++j) {
          if (i + j < size) y[i + j] = from_float<T>(value[j]);
        }
      }
    }
  }
};

// The elements of a work-group, if a group is divided into parts.
struct PartRange {
  uint32_t n;      // index of the group
  uint32_t first;  // index in the group of the part's first element
  uint32_t count;  // elements of the part
};

DEVICE PartRange range_of_part(uint32_t size, const Divisor& parts) {
  const auto b = static_cast<uint32_t>(block_x());
  const uint32_t n = divide(b, parts);
  const uint32_t first = (b - n * parts.d) * kGroupNormPart;
  return {n, first, size - first < kGroupNormPart ? size - first : kGroupNormPart};
}

struct GroupNormLds {
  WaveSums first, second;
};

// Requires that all pointers are multiples of 16.
template <class T, int kVectors>
DEVICE void group_norm(const GroupNormArgs& args) {
  SHARED(lds, GroupNormLds);
  const T *x = args.x, *gamma = args.gamma, *beta = args.beta;
  T* y = args.y;
  const uint32_t size = args.size;
  const int threads = args.threads;
  const Divisor& groups = args.groups;
  const auto n = static_cast<uint32_t>(block_x());
  const uint32_t channel = (n - divide(n, groups) * groups.d) * args.group_channels;
  const size_t offset = static_cast<size_t>(n) * size;
  GroupPart<T, kVectors> part;
  part.load(x + offset, size, threads, true);
  const float count = static_cast<float>(size);
  const float pivot = to_float(x[offset]);
  const float mean = pivot + group_sum(part.sum(pivot, size, threads, true), lds.first, threads) / count;
  const float m2 = group_sum(part.squared_deviations(mean, size, threads, true), lds.second, threads);
  const float scale = rsqrt_exact(m2 / count + args.epsilon);
  part.store(y + offset, size, threads, true, 0, mean, scale, gamma + channel, beta + channel, args.inner,
             args.act);
}

template <class T>
DEVICE void group_norm_stats(const GroupNormStatsArgs& args) {
  SHARED(lds, GroupNormLds);
  const T* x = args.x;
  float* partial = args.partial;
  const uint32_t size = args.size;
  const auto b = static_cast<uint32_t>(block_x());
  const auto [n, first, count] = range_of_part(size, args.parts);
  GroupPart<T, kGroupNormSmallElements / Pack<T>::kSize> part;
  x += static_cast<size_t>(n) * size + first;
  part.load(x, count, kGroupNormSplitThreads, args.vectors != 0);
  const float pivot = to_float(x[0]);
  const float sum = part.sum(pivot, count, kGroupNormSplitThreads, args.vectors != 0);
  const float mean = pivot + group_sum(sum, lds.first, kGroupNormSplitThreads) / static_cast<float>(count);
  const float m2 = group_sum(part.squared_deviations(mean, count, kGroupNormSplitThreads, args.vectors != 0),
                             lds.second, kGroupNormSplitThreads);
  if (thread_x() == 0) {
    partial[2 * b] = mean;
    partial[2 * b + 1] = m2;
  }
}

template <class T>
DEVICE void group_norm_apply(const GroupNormApplyArgs& args) {
  SHARED(lds, GroupNormLds);
  const T *x = args.x, *gamma = args.gamma, *beta = args.beta;
  const float* partial = args.partial;
  T* y = args.y;
  const uint32_t size = args.size;
  const Divisor &groups = args.groups, &parts = args.parts;
  constexpr uint32_t kPart = kGroupNormPart;
  const auto [n, first, count] = range_of_part(size, parts);
  const size_t offset = static_cast<size_t>(n) * size + first;
  GroupPart<T, kGroupNormSmallElements / Pack<T>::kSize> part;
  part.load(x + offset, count, kGroupNormSplitThreads, args.vectors != 0);

  const float* mine = partial + static_cast<size_t>(n) * parts.d * 2;
  const auto count_of = [&](uint32_t p) {
    return static_cast<float>(size - p * kPart < kPart ? size - p * kPart : kPart);
  };
  const float pivot = mine[0];
  float sum = 0;
  for (auto p = static_cast<uint32_t>(thread_x()); p < parts.d; p += kGroupNormSplitThreads) {
    sum += (mine[2 * p] - pivot) * count_of(p);
  }
  const float mean = pivot + group_sum(sum, lds.first, kGroupNormSplitThreads) / static_cast<float>(size);
  float m2 = 0;
  for (auto p = static_cast<uint32_t>(thread_x()); p < parts.d; p += kGroupNormSplitThreads) {
    const float d = mine[2 * p] - mean;
    m2 += mine[2 * p + 1] + d * d * count_of(p);
  }
  const float variance = group_sum(m2, lds.second, kGroupNormSplitThreads) / static_cast<float>(size);
  const float scale = rsqrt_exact(variance + args.epsilon);
  const uint32_t channel = (n - divide(n, groups) * groups.d) * args.group_channels;
  part.store(y + offset, count, kGroupNormSplitThreads, args.vectors != 0, first, mean, scale,
             gamma + channel, beta + channel, args.inner, args.act);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(group_norm_small, (group_norm<T, kGroupNormSmallElements / Pack<T>::kSize>),
              kGroupNormMaxThreads, GroupNormArgs, x, gamma, beta, y)
KERNEL_OF(group_norm_large_f32, (group_norm<float, kGroupNormLargeElements / Pack<float>::kSize>),
          LaunchBounds(kGroupNormMaxThreads, 1), GroupNormArgs, x, gamma, beta, y)
KERNEL_OF(group_norm_large_f16, (group_norm<half_t, kGroupNormLargeElements / Pack<half_t>::kSize>),
          LaunchBounds(kGroupNormMaxThreads, 2), GroupNormArgs, x, gamma, beta, y)
FLOAT_KERNELS(group_norm_stats, group_norm_stats<T>, kGroupNormSplitThreads, GroupNormStatsArgs, x, partial)
FLOAT_KERNELS(group_norm_apply, group_norm_apply<T>, kGroupNormSplitThreads, GroupNormApplyArgs, x, gamma,
              beta, partial, y)
