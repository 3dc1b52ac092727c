// FusedAttention on the CPU against the definition in double, over features, shapes and layouts. The
// definition takes most of the time, so one process compares all instruction sets of the machine with it. AMX
// runs in a separate process, since it replaces the bfloat16 GEMMs of another instruction set.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // stand_ins/amx.cpp handles SIGILL
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "blocks/half.h"
#include "cpu/isa.h"
#include "operators/attention/attention/op.h"
#include "testing.h"

namespace {

using graphopt::AttentionProblem;
using graphopt::half;
using graphopt::Strides4;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A tensor [B, H, rows, cols] stored in the order that `layout` names.
struct Tensor {
  Strides4 stride;
  int64_t elements = 0;

  // layout: the dims from the outermost to the innermost, for example "bhrc" or "brhc" (BSNH) or "bhcr";
  // missing dims are broadcast.
  Tensor(const std::string& layout, int64_t b, int64_t h, int64_t rows, int64_t cols) {
    elements = 1;
    for (size_t i = layout.size(); i-- > 0;) {
      const char dim = layout[i];
      (dim == 'b' ? stride.b : dim == 'h' ? stride.h : dim == 'r' ? stride.row : stride.col) = elements;
      elements *= dim == 'b' ? b : dim == 'h' ? h : dim == 'r' ? rows : cols;
    }
  }
};

int64_t at(const Strides4& s, int64_t b, int64_t h, int64_t row, int64_t col) {
  return b * s.b + h * s.h + row * s.row + col * s.col;
}

struct Case {
  int64_t B = 1, H = 1, group = 1, S = 1, T = 1, D = 8, Dv = 8;
  const char *q = "bhrc", *k = "bhrc", *v = "bhrc", *o = "bhrc", *bias = "", *mask = "";
  bool has_bias = false, has_mask = false, causal = false, guard = false, window = false;
  int64_t left = 0, right = 0;
  float softcap = 0, mask_value = -kInfinity, spread = 1;
  // Elements to overwrite: tensor, index (modulo its size), value.
  struct Poke {
    char tensor;
    int64_t index;
    float value;
  };
  std::vector<Poke> pokes;
  double mask_density = 0.6;

  std::string text() const {
    char buffer[400];
    std::snprintf(buffer, sizeof buffer,
                  "B%d H%d g%d S%d T%d D%d Dv%d q=%s k=%s v=%s o=%s bias=%d'%s' mask=%d'%s'%g causal=%d "
                  "guard=%d cap=%g window=%d'%d,%d' "
                  "spread=%g pokes=%d",
                  int(B), int(H), int(group), int(S), int(T), int(D), int(Dv), q, k, v, o, has_bias, bias,
                  has_mask, mask, double(mask_value), causal, guard, double(softcap), window, int(left),
                  int(right), double(spread), int(pokes.size()));
    return buffer;
  }
};

double worst[5][3] = {};  // by instruction set and by type

// The kernel of one instruction set.
template <class T>
struct Kernel {
  graphopt::cpu::Isa isa;
  decltype(&graphopt::cpu::fused_attention<T>) run;
  decltype(&graphopt::cpu::fused_attention_workspace<T>) workspace;
};

bool only_tiles() { return graphopt::cpu::isa() == graphopt::cpu::Isa::kAmx; }

// Returns the kernels of this machine's instruction sets, including the one that sessions select.
template <class T>
std::vector<Kernel<T>> kernels() {
  using graphopt::cpu::Isa;
  namespace cpu = graphopt::cpu;
  const Kernel<T> all[] = {
#if GRAPHOPT_X86_ISAS
      {Isa::kBaseline, cpu::isa_baseline::fused_attention<T>,
       cpu::isa_baseline::fused_attention_workspace<T>},
      {Isa::kAvx2, cpu::isa_avx2::fused_attention<T>, cpu::isa_avx2::fused_attention_workspace<T>},
      {Isa::kAvx512, cpu::isa_avx512::fused_attention<T>, cpu::isa_avx512::fused_attention_workspace<T>},
      {Isa::kAvx512Bf16, cpu::isa_avx512bf16::fused_attention<T>,
       cpu::isa_avx512bf16::fused_attention_workspace<T>},
#else
      {Isa::kBaseline, cpu::isa_baseline::fused_attention<T>,
       cpu::isa_baseline::fused_attention_workspace<T>},
#endif
  };
  std::vector<Kernel<T>> found;
  for (const Kernel<T>& kernel : all) {
    if (kernel.isa < cpu::isa() && !only_tiles()) found.push_back(kernel);
  }
  found.push_back({cpu::isa(), cpu::fused_attention<T>, cpu::fused_attention_workspace<T>});
  return found;
}

// kBrain: the GEMMs' factors are bfloat16. The expected values are computed from exact probabilities, since
// kernels round a multiple of the probabilities.
template <class T, bool kBrain = false>
void check(const Case& c) {
  if (only_tiles() && !kBrain) return;
  INFO(c.text());
  AttentionProblem p;
  p.bfloat16 = kBrain;
  p.B = c.B, p.H = c.H, p.S = c.S, p.T = c.T, p.D = c.D, p.Dv = c.Dv, p.group = c.group;
  const Tensor q(c.q, c.B, c.H, c.S, c.D), k(c.k, c.B, c.H / c.group, c.T, c.D),
      v(c.v, c.B, c.H / c.group, c.T, c.Dv), o(c.o, c.B, c.H, c.S, c.Dv), bias(c.bias, c.B, c.H, c.S, c.T),
      mask(c.mask, c.B, c.H, c.S, c.T);
  p.q = q.stride, p.k = k.stride, p.v = v.stride, p.o = o.stride;
  if (c.has_bias) p.bias = bias.stride;
  if (c.has_mask) p.mask = mask.stride;
  p.has_bias = c.has_bias, p.has_mask = c.has_mask, p.causal = c.causal, p.guard = c.guard;
  p.window = c.window, p.left = c.left, p.right = c.right;
  p.scale = 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(c.D, 1)));
  p.softcap = c.softcap, p.mask_value = c.mask_value;

  std::mt19937 random(static_cast<unsigned>(c.S * 131 + c.T * 17 + c.D + c.Dv));
  std::normal_distribution<float> normal;
  const auto fill = [&](int64_t n, float spread) {
    // Exact size, which lets the address sanitizer detect reads past the end.
    std::vector<T> x(static_cast<size_t>(n));
    for (T& e : x) e = static_cast<T>(normal(random) * spread);
    return x;
  };
  std::vector<T> qs = fill(q.elements, c.spread), ks = fill(k.elements, 1), vs = fill(v.elements, 1),
                 bs = fill(c.has_bias ? bias.elements : 0, 2);
  std::unique_ptr<bool[]> ms(new bool[static_cast<size_t>(mask.elements)]);
  std::bernoulli_distribution keep(c.mask_density);
  for (int64_t i = 0; i < mask.elements; ++i) ms[static_cast<size_t>(i)] = keep(random);
  for (const Case::Poke& poke : c.pokes) {
    if (poke.tensor == 'm') {
      if (mask.elements > 0) ms[static_cast<size_t>(poke.index % mask.elements)] = poke.value != 0;
      continue;
    }
    std::vector<T>& x = poke.tensor == 'q' ? qs : poke.tensor == 'k' ? ks : poke.tensor == 'v' ? vs : bs;
    if (!x.empty()) x[static_cast<size_t>(poke.index) % x.size()] = static_cast<T>(poke.value);
  }

  const auto factors = [](const std::vector<T>& from, double scale) {
    std::vector<double> to(from.size());
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = double(from[i]) * scale;
      if (kBrain) to[i] = graphopt::test::rounded(static_cast<float>(to[i]));
    }
    return to;
  };
  const std::vector<double> queries = factors(qs, double(p.scale)), keys = factors(ks, 1),
                            values = factors(vs, 1);
  std::vector<double> expected(static_cast<size_t>(o.elements));
  // One head's keys and values with the longer loop's dimension innermost, which lets compilers vectorize it.
  std::vector<double> head_keys(static_cast<size_t>(c.D * c.T)), head_values(static_cast<size_t>(c.T * c.Dv));
  std::vector<double> s(static_cast<size_t>(c.T)), y(static_cast<size_t>(c.Dv));
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t j = 0; j < c.T; ++j) {
        for (int64_t d = 0; d < c.D; ++d)
          head_keys[size_t(d * c.T + j)] = keys[size_t(at(p.k, b, h / c.group, j, d))];
        for (int64_t d = 0; d < c.Dv; ++d)
          head_values[size_t(j * c.Dv + d)] = values[size_t(at(p.v, b, h / c.group, j, d))];
      }
      for (int64_t i = 0; i < c.S; ++i) {
        double highest = -INFINITY, sum = 0;
        bool nan = false;
        std::fill(s.begin(), s.end(), 0);
        for (int64_t d = 0; d < c.D; ++d) {
          const double query = queries[size_t(at(p.q, b, h, i, d))];
          const double* key = head_keys.data() + d * c.T;
          for (int64_t j = 0; j < c.T; ++j) s[size_t(j)] += query * key[j];
        }
        for (int64_t j = 0; j < c.T; ++j) {
          double x = s[size_t(j)];
          if (c.softcap != 0) x = double(c.softcap) * std::tanh(x / double(c.softcap));
          if (c.has_bias) x += double(bs[size_t(at(p.bias, b, h, i, j))]);
          if (c.causal && j > i + c.T - c.S) x = -INFINITY;
          if (c.has_mask && !ms[size_t(at(p.mask, b, h, i, j))]) x = double(c.mask_value);
          const int64_t behind = j - (i + c.T - c.S);
          if (c.window && (behind < -c.left || behind > c.right)) x = -INFINITY;
          nan |= std::isnan(x);
          highest = std::max(highest, x);
          s[size_t(j)] = x;
        }
        if (nan) highest = kNan;
        for (double& x : s) sum += x = std::exp(x - highest);
        for (double& x : s) {
          x /= sum;
          if (c.guard && std::isnan(x)) x = 0;
        }
        std::fill(y.begin(), y.end(), 0);
        for (int64_t j = 0; j < c.T; ++j) {
          const double* value = head_values.data() + j * c.Dv;
          for (int64_t d = 0; d < c.Dv; ++d) y[size_t(d)] += s[size_t(j)] * value[d];
        }
        for (int64_t d = 0; d < c.Dv; ++d) expected[size_t(at(p.o, b, h, i, d))] = y[size_t(d)];
      }
    }
  }
  double square = 0;
  int64_t finite = 0;
  for (double e : expected) {
    if (std::isfinite(e)) square += e * e, ++finite;
  }
  const double rms = square > 0 ? std::sqrt(square / double(finite)) : 1;

  // A probability changes by at most half a unit in the last place, and its factor is at most `largest`.
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::isfinite(x) ? std::abs(x) : 0);
  const double limit = kBrain ? 0x1p-9 * largest / rms + 1e-5 : sizeof(T) == 2 ? 2e-3 : 1e-5;
  for (const Kernel<T>& kernel : kernels<T>()) {
    INFO(graphopt::cpu::isa_name(kernel.isa), kBrain ? " bf16" : sizeof(T) == 2 ? " fp16" : " fp32");
    std::vector<T> first;
    for (size_t workers : {1, 2, 3}) {
      std::vector<T> got(static_cast<size_t>(o.elements), static_cast<T>(77.0f));
      graphopt::test::ThreadParallel threads(workers);
      graphopt::test::HeapWorkspace heap;
      kernel.run(p, qs.data(), ks.data(), vs.data(), bs.data(), ms.get(), got.data(), threads,
                 heap.allocate(kernel.workspace(p, workers)));
      if (workers == 1) {
        first = got;
      } else if (!got.empty()) {
        const bool same = std::memcmp(first.data(), got.data(), got.size() * sizeof(T)) == 0;
        CHECK_MESSAGE(same, workers, " threads give other bits");
      }
      if (o.elements > 200000) break;
    }
    double error = 0;
    int64_t differing = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double y = double(first[i]), e = expected[i];
      if (std::isnan(e) || std::isinf(e)) {
        differing += !(std::isnan(e) ? std::isnan(y) : y == e);
      } else if (!std::isfinite(y)) {
        ++differing;
      } else {
        error = std::max(error, std::abs(y - e) / std::max(rms, std::abs(e)));
      }
    }
    double& seen = worst[size_t(kernel.isa)][kBrain ? 2 : sizeof(T) == 2];
    seen = std::max(seen, error);
    CHECK(differing == 0);  // infinities and NaNs
    CHECK(error <= limit);  // relative to the root mean square
  }
}

void both(const Case& c) {
  check<float>(c);
  check<half>(c);
  static int n = 0;
  if (n++ % 3 == 0) check<float, true>(c);  // bfloat16 differs from float only in the GEMMs
}

TEST_CASE("attention: shapes") {
  const int64_t sizes[] = {1, 2, 3, 7, 17, 64, 65, 130, 600};
  const int64_t heads[] = {1, 8, 40, 64, 33, 80, 5, 128, 16};
  int n = 0;
  for (int64_t S : sizes) {
    for (int64_t T : sizes) {
      Case c;
      c.S = S, c.T = T;
      c.B = 1 + n % 2, c.H = 1 + n % 3;
      c.D = heads[n % 9];
      c.Dv = n % 4 == 0 ? heads[(n + 2) % 9] : c.D;
      both(c);
      c.causal = true;
      c.guard = n % 2 == 0;
      c.q = c.o = c.k = c.v = "brhc";
      both(c);
      ++n;
    }
  }
}

TEST_CASE("attention: features") {
  const char* layouts[][4] = {{"bhrc", "bhrc", "bhrc", "bhrc"},
                              {"brhc", "brhc", "brhc", "brhc"},
                              {"bhrc", "bhcr", "bhrc", "brhc"},
                              {"hbcr", "hrbc", "bhcr", "crhb"}};
  const char* broadcasts[] = {"bhrc", "bc", "hrc", "rc", "c", "r", "", "b", "bhcr", "brc"};
  const int64_t sizes[][2] = {{1, 1},   {1, 130}, {3, 600},  {7, 7},   {17, 3},
                              {64, 65}, {65, 64}, {130, 17}, {49, 49}, {130, 130}};
  int n = 0;
  for (const auto& size : sizes) {
    for (int flags = 0; flags < 64; ++flags) {
      Case c;
      c.S = size[0], c.T = size[1];
      c.B = 2;
      c.group = flags & 8 ? 2 : 1;
      c.H = c.group * (1 + n % 2);
      c.D = n % 3 == 0 ? 40 : 17;
      c.Dv = n % 5 == 0 ? 24 : c.D;
      const auto& layout = layouts[n % 4];
      c.q = layout[0], c.k = layout[1], c.v = layout[2], c.o = layout[3];
      c.has_bias = flags & 1, c.has_mask = flags & 2, c.causal = flags & 4, c.guard = flags & 16;
      if (c.has_bias) c.bias = broadcasts[n % 10];
      if (c.has_mask) c.mask = broadcasts[(n / 3) % 10];
      if (flags & 32) c.softcap = n % 2 ? 2.0f : 50.0f;
      const float values[] = {-kInfinity, -1e4f, -65504.0f, -5.0f};
      c.mask_value = values[n % 4];
      c.spread = n % 7 == 0 ? 10.0f : 1.0f;
      both(c);
      ++n;
    }
  }
}

TEST_CASE("attention: specials") {
  const float nan = std::nanf("");
  const float values[] = {nan, kInfinity, -kInfinity};
  const int64_t sizes[][2] = {{1, 40}, {5, 5}, {40, 70}, {70, 40}, {30, 600}, {600, 30}, {150, 700}};
  for (const auto& size : sizes) {
    for (float value : values) {
      for (char tensor : {'q', 'k', 'v', 'b'}) {
        for (int flags = 0; flags < 8; ++flags) {
          Case c;
          c.S = size[0], c.T = size[1], c.D = 24, c.Dv = 20, c.H = 2;
          c.causal = flags & 1, c.guard = flags & 2;
          c.has_mask = flags & 4;
          c.mask = flags & 1 ? "bc" : "rc";
          c.mask_value = flags & 1 ? -1e4f : -kInfinity;
          if (tensor == 'b') c.has_bias = true, c.bias = "hrc";
          c.pokes = {{tensor, 3, value}, {tensor, 9973, value}};
          both(c);
        }
      }
    }
  }
  // Rows with all keys hidden, by each kind of mask.
  for (float value : {-kInfinity, std::numeric_limits<float>::lowest(), -65504.0f, 0.0f, 3.0f}) {
    for (int flags = 0; flags < 4; ++flags) {
      for (int64_t T : {5, 64, 1100}) {
        Case c;
        c.B = 2, c.S = 9, c.T = T, c.has_mask = true, c.mask = "r", c.mask_density = 0.5,
        c.mask_value = value;
        c.guard = flags & 1, c.causal = flags & 2;
        c.pokes = {{'m', 0, 0}, {'m', 4, 0}, {'m', 8, 1}};
        check<float>(c);
        if (std::abs(value) < 65505 || value == -kInfinity) check<half>(c);
        c.S = 1200, c.D = c.Dv = 4;
        check<float>(c);
      }
    }
  }
  // -inf and lowest() as additive masks over whole rows.
  for (float value : {-kInfinity, std::numeric_limits<float>::lowest()}) {
    Case c;
    c.S = 6, c.T = 70, c.has_bias = true, c.bias = "rc";
    for (int64_t j = 0; j < 2 * c.T; ++j) c.pokes.push_back({'b', j, value});
    check<float>(c);
    c.guard = true;
    check<float>(c);
  }
}

TEST_CASE("attention: windows") {
  const int64_t sizes[][2] = {{1, 40}, {5, 5}, {40, 70}, {70, 40}, {30, 600}, {600, 30}, {150, 1100}};
  const int64_t windows[][2] = {{0, 0}, {3, 1}, {100, 0}, {0, INT32_MAX}, {INT32_MAX, 7}, {-9, 12}};
  int n = 0;
  for (const auto& size : sizes) {
    for (const auto& window : windows) {
      for (int flags = 0; flags < 8; ++flags) {
        Case c;
        c.S = size[0], c.T = size[1], c.D = n % 2 ? 24 : 17, c.Dv = n % 3 ? 20 : 48;
        c.group = n % 3 == 0 ? 2 : 1, c.H = 2;
        c.window = true, c.left = window[0], c.right = window[1];
        c.has_mask = flags & 1, c.has_bias = flags & 2, c.guard = flags & 4;
        c.mask = "rc", c.bias = "hrc", c.mask_value = n % 2 ? -1e4f : -kInfinity;
        if (n % 5 == 0) c.softcap = 2.0f;
        if (n % 4 == 0) c.pokes = {{'v', 3, kInfinity}, {'v', 9973, std::nanf("")}};
        both(c);
        ++n;
      }
    }
  }
}

TEST_CASE("attention: edges") {
  for (int64_t zero = 0; zero < 5; ++zero) {
    Case c;
    c.B = 2, c.H = 2, c.S = 3, c.T = 5;
    (zero == 0 ? c.B : zero == 1 ? c.S : zero == 2 ? c.T : zero == 3 ? c.D : c.Dv) = 0;
    both(c);
  }
  Case decode;
  decode.group = 4, decode.H = 8, decode.D = decode.Dv = 64;
  for (int64_t T : {1, 15, 1023, 4097, 20000}) {
    decode.T = T;
    decode.causal = T % 2;
    both(decode);
    decode.k = "bhcr";
    both(decode);
    decode.k = decode.v = "brhc";
    both(decode);
    decode.k = decode.v = "bhrc";
  }
  Case large;
  large.S = 260, large.T = 300, large.D = 512, large.Dv = 520, large.H = 2;
  both(large);
  large.D = 700, large.Dv = 3;
  both(large);
  Case repeated;  // all heads share one K and V, by strides
  repeated.S = 50, repeated.T = 60, repeated.H = 3, repeated.B = 2, repeated.k = "rc", repeated.v = "hrc";
  both(repeated);
}

}  // namespace

int main(int argc, char** argv) {
  const int status = doctest::Context(argc, argv).run();
  for (const Kernel<float>& kernel : kernels<float>()) {
    const double* seen = worst[size_t(kernel.isa)];
    std::printf("%s: worst error %.2e (fp32), %.2e (fp16) and %.2e (bf16) of RMS\n",
                graphopt::cpu::isa_name(kernel.isa), seen[0], seen[1], seen[2]);
  }
  return status;
}
