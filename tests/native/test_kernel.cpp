// Kernels through their interface, without a session: a chain of three, on the CPU and on a device (the
// kernels compiled for the CPU).
#include <cstring>
#include <map>

#include "device/allocations.h"
#include "device/device_weights.h"
#include "operators/kernels.h"
#include "testing.h"

namespace graphopt::test {
namespace {

class PlainNode final : public Node {
 public:
  std::map<std::string, float> floats;
  std::map<std::string, int64_t> numbers;
  std::map<std::string, std::vector<int64_t>> lists;
  std::map<size_t, Tensor> constants;

  PlainNode(ElementType type, size_t count) {
    name = "plain";
    inputs.assign(count, {true, type, std::nullopt});
    outputs.assign(1, {true, type, std::nullopt});
  }
  std::optional<AttributeValue> find(const char* key, AttributeType type) const override {
    if (type == AttributeType::kFloat) return of(floats, key);
    if (type == AttributeType::kInt) return of(numbers, key);
    return type == AttributeType::kInts ? std::optional<AttributeValue>(of(lists, key)) : std::nullopt;
  }
  std::optional<Tensor> constant(size_t i) const override { return of(constants, i); }

 private:
  template <class Map, class Key>
  static std::optional<typename Map::mapped_type> of(const Map& map, const Key& key) {
    const auto found = map.find(key);
    return found != map.end() ? std::optional(found->second) : std::nullopt;
  }
};

// Host memory, or a device's.
class Machine {
 public:
  explicit Machine(gpu::Device* device) : device_(device) {}

  template <class T>
  Tensor tensor(const std::vector<T>& values, const Shape& shape) {
    Tensor t = empty(shape, sizeof(T) == 2 ? ElementType::kHalf : ElementType::kFloat);
    copy(t.data, values.data(), values.size() * sizeof(T));
    return t;
  }

  template <class T>
  std::vector<T> values(const Tensor& t) {
    std::vector<T> result(static_cast<size_t>(t.shape.elements()));
    copy(result.data(), t.data, result.size() * sizeof(T));
    return result;
  }

  Tensor run(const Kernel& kernel, const std::vector<Tensor>& inputs) {
    CHECK(kernel.device() == device_);
    Call call;
    call.inputs.resize(inputs.size());
    std::copy(inputs.begin(), inputs.end(), call.inputs.begin());
    call.outputs.resize(1);
    call.parallel = &parallel_;
    kernel.plan(call);
    const Tensor planned = call.outputs[0];
    // A plan may be reused: it is run a second time, at another address.
    Tensor results[2];
    for (Tensor& result : results) {
      result = empty(planned.shape, planned.type);
      CHECK(result.place == planned.place);
      call.outputs[0].data = result.data;
      if (call.workspace_bytes > 0) call.workspace = allocate(call.workspace_bytes);
      CHECK(kernel.run(call));
    }
    CHECK(values<uint16_t>(results[0]) == values<uint16_t>(results[1]));
    return results[0];
  }

 private:
  Tensor empty(const Shape& shape, ElementType type) {
    const auto bytes = static_cast<size_t>(shape.elements() * bytes_of(type));
    return {allocate(bytes), type, device_ != nullptr ? Place::kDevice : Place::kHost, shape};
  }
  void* allocate(size_t bytes) {
    return device_ != nullptr ? device_->allocate(bytes) : heap_.allocate(bytes);
  }
  void copy(void* to, const void* from, size_t bytes) {
    if (device_ != nullptr) {
      device_->copy(to, from, bytes, nullptr);
    } else {
      std::memcpy(to, from, bytes);
    }
  }

  gpu::Device* device_;
  ThreadParallel parallel_{3};
  HeapWorkspace heap_;
};

std::unique_ptr<Kernel> create(const Table& table, const std::string& name, const Node& node) {
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const Registration& r) { return r.name == name; });
  if (row == table.end()) throw std::runtime_error("no kernel " + name);
  auto kernel = row->create(node);
  kernel->prepare(node);
  return kernel;
}

constexpr int64_t N = 2, C = 5, M = 6, H = 7, W = 9, kGroups = 3;

// Relu(conv(x, w) + b) normalized by groups, then Y = scale y + shift + conv.
template <class T>
std::vector<double> reference(const std::vector<T>& x, const std::vector<T>& w, const std::vector<T>& b,
                              const std::vector<T>& scale, const std::vector<T>& shift) {
  const auto at = [](const std::vector<T>& values, int64_t i) {
    return static_cast<double>(static_cast<float>(values[static_cast<size_t>(i)]));
  };
  std::vector<double> conv(static_cast<size_t>(N * M * H * W)), y(conv.size());
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t v = 0; v < W; ++v) {
          double sum = at(b, m);
          for (int64_t c = 0; c < C; ++c) {
            for (int64_t i = 0; i < 9; ++i) {
              const int64_t row = h + i / 3 - 1, column = v + i % 3 - 1;
              if (row < 0 || row >= H || column < 0 || column >= W) continue;
              sum += at(w, (m * C + c) * 9 + i) * at(x, ((n * C + c) * H + row) * W + column);
            }
          }
          conv[static_cast<size_t>(((n * M + m) * H + h) * W + v)] = std::max(sum, 0.0);
        }
      }
    }
  }
  const int64_t group = M / kGroups * H * W;
  for (int64_t first = 0; first < N * M * H * W; first += group) {
    double mean = 0, square = 0;
    for (int64_t i = first; i < first + group; ++i) mean += conv[static_cast<size_t>(i)] / group;
    for (int64_t i = first; i < first + group; ++i) {
      square += std::pow(conv[static_cast<size_t>(i)] - mean, 2) / group;
    }
    for (int64_t i = first; i < first + group; ++i) {
      const int64_t m = i / (H * W) % M;
      const auto at_i = static_cast<size_t>(i);
      const double normal = at(scale, m) * (conv[at_i] - mean) / std::sqrt(square + 1e-5) + at(shift, m);
      y[at_i] = at(scale, m) * normal + at(shift, m) + conv[at_i];
    }
  }
  return y;
}

template <class T>
void run_three(const Table& table, gpu::Device* device) {
  const ElementType type = sizeof(T) == 2 ? ElementType::kHalf : ElementType::kFloat;
  const auto x = random_tensor<T>(N * C * H * W, 1), w = random_tensor<T>(M * C * 9, 2, 0.3f),
             b = random_tensor<T>(M, 3), scale = random_tensor<T>(M, 4), shift = random_tensor<T>(M, 5);
  Machine machine(device);
  const Tensor weights = machine.tensor(w, {M, C, 3, 3}), per_channel = machine.tensor(scale, {M}),
               more = machine.tensor(shift, {M});
  Tensor planes = per_channel, more_planes = more;
  planes.shape = more_planes.shape = {M, 1, 1};

  const std::vector<double> expected = reference(x, w, b, scale, shift);
  for (const bool constant : {true, false}) {
    PlainNode conv(type, 3), norm(type, 3), sum(type, 4);
    conv.lists["pads"] = {1, 1, 1, 1};
    if (constant) conv.constants[1] = weights;
    norm.floats["epsilon"] = 1e-5f;
    norm.numbers["num_groups"] = kGroups;
    const Tensor y = machine.run(*create(table, "WinogradConvRelu", conv),
                                 {machine.tensor(x, {N, C, H, W}), weights, machine.tensor(b, {M})});
    const Tensor normal = machine.run(*create(table, "FusedGroupNorm", norm), {y, per_channel, more});
    const Tensor result = machine.run(*create(table, "ScaleShiftAdd", sum), {normal, planes, more_planes, y});
    CHECK((result.shape == Shape{N, M, H, W}));
    const double error = relative_error(machine.values<T>(result), expected);
    CHECK(error < (sizeof(T) == 2 ? 1e-2 : 1e-4));
  }
}

TEST_CASE("three kernels in a row without a session") {
  const Table table = cpu_kernels();
  run_three<float>(table, nullptr);
  run_three<half>(table, nullptr);
}

TEST_CASE("three kernels in a row on a device without a session") {
  const auto device = gpu::open_host(GRAPHOPT_KERNELS_FOR_TESTS);
  const Table table = provider_kernels(*device);
  run_three<float>(table, device.get());
  run_three<half>(table, device.get());
}

// Equal weights occur in two sessions of one model, and in two nodes with one weight.
TEST_CASE("kernels on a device share equal weights") {
  const auto device = gpu::open_host(GRAPHOPT_KERNELS_FOR_TESTS);
  const Table table = provider_kernels(*device);
  Machine machine(device.get());
  gpu::DeviceWeights& shared = gpu::DeviceWeights::process();
  const auto x = random_tensor<float>(N * C * H * W, 1), b = random_tensor<float>(M, 3);
  const auto w = random_tensor<float>(M * C * 9, 2, 0.3f);
  auto other = w;
  other.back() += 1;
  const auto conv = [&](const std::vector<float>& values) {
    PlainNode node(ElementType::kFloat, 3);
    node.lists["pads"] = {1, 1, 1, 1};
    node.inputs[0].shape = Shape{N, C, H, W};
    node.constants[1] = machine.tensor(values, {M, C, 3, 3});
    return create(table, "WinogradConv", node);
  };
  const auto run = [&](const Kernel& kernel, const std::vector<float>& values) {
    const std::vector<Tensor> inputs = {machine.tensor(x, {N, C, H, W}), machine.tensor(values, {M, C, 3, 3}),
                                        machine.tensor(b, {M})};
    return machine.values<float>(machine.run(kernel, inputs));
  };

  const size_t before = shared.size();
  std::unique_ptr<Kernel> first = conv(w);
  const size_t one = shared.size() - before;
  CHECK(one > 0);
  const std::unique_ptr<Kernel> second = conv(w);
  CHECK(shared.size() == before + one);
  const std::unique_ptr<Kernel> third = conv(other);
  CHECK(shared.size() == before + 2 * one);
  const std::vector<float> y = run(*first, w);
  CHECK(y == run(*second, w));
  CHECK(y != run(*third, other));
  first.reset();
  CHECK(shared.size() == before + 2 * one);
  CHECK(y == run(*second, w));
}

TEST_CASE("weights on a device are compared whole and go with their last user") {
  constexpr size_t kBytes = 10000;
  const auto device = gpu::open_host(GRAPHOPT_KERNELS_FOR_TESTS);
  gpu::DeviceWeights weights;
  const auto get = [&](const char* layout, char last) {
    return weights.get(*device, layout, kBytes, [&](void* memory, void* stream) {
      std::vector<char> content(kBytes);
      content.back() = last;
      device->copy(memory, content.data(), kBytes, stream);
    });
  };
  std::shared_ptr<void> a = get("a", 1), b = get("a", 1);
  CHECK((a == b));
  CHECK((get("a", 2) != a));
  CHECK((get("another", 1) != a));
  CHECK(weights.size() == 1);
  const size_t held = gpu::allocations().statistics().bytes;
  a.reset();
  CHECK(weights.size() == 1);
  b.reset();
  CHECK(weights.size() == 0);
  CHECK(gpu::allocations().statistics().bytes == held - kBytes);
}

TEST_CASE("attributes that must be there") {
  PlainNode node(ElementType::kFloat, 3);
  try {
    create(cpu_kernels(), "FusedGroupNorm", node);
    CHECK(false);
  } catch (const Error& e) {
    CHECK(e.what() == std::string("attribute 'epsilon' of type float is required"));
  }
}

}  // namespace
}  // namespace graphopt::test
