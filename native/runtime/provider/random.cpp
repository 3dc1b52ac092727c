#include "runtime/provider/random.h"

#include <sys/random.h>

#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "blocks/half.h"
#include "runtime/provider/staging.h"

namespace graphopt::provider {
namespace {

struct Distribution {
  bool normal, like;
};

// Returns the type in `dtype`. Without it, the Like forms use the type of their input.
ElementType type_of(const Node& node, bool like) {
  const auto given = node.find_int("dtype");
  return given ? static_cast<ElementType>(*given) : like ? node.type() : ElementType::kFloat;
}

// Calls the system directly: std::random_device needs a newer glibc than the wheel does.
uint32_t fresh_seed() {
  uint32_t seed = 0;
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
    throw Error("the system has no source of random numbers");
  return seed;
}

// Uses the engine and distributions of the runtime's kernels, so equal seeds give equal values.
class Random final : public Kernel {
 public:
  Random(const Node& node, gpu::Device& device, Distribution distribution)
      : device_(device),
        distribution_(distribution),
        type_(type_of(node, distribution.like)),
        first_(node.find_float(distribution.normal ? "mean" : "low").value_or(0.0f)),
        second_(node.find_float(distribution.normal ? "scale" : "high").value_or(1.0f)) {
    if (!distribution.like) dims_ = node.get_ints("shape");
    const auto seed = node.find_float("seed");
    engine_.seed(seed && *seed >= 0.0f && *seed < 4294967296.0f ? static_cast<uint32_t>(*seed)
                                                                : fresh_seed());
  }

  gpu::Device* device() const override { return &device_; }

  void plan(Call& call) const override {
    Shape shape(dims_.size());
    std::copy(dims_.begin(), dims_.end(), shape.data());
    call.set_output(0, distribution_.like ? call.input(0).shape : shape, type_, Place::kDevice);
  }

  bool run(Call& call) const override {
    const auto count = static_cast<size_t>(call.outputs[0].shape.elements());
    if (count == 0) return true;
    if (type_ == ElementType::kHalf) {
      upload(draw<half>(count), call);
    } else {
      upload(draw<float>(count), call);
    }
    return true;
  }

 private:
  template <class T>
  std::vector<T> draw(size_t count) const {
    std::vector<T> values(count);
    const std::lock_guard lock(mutex_);
    if (distribution_.normal) {
      std::normal_distribution<float> next(first_, second_);
      for (T& value : values) value = T(next(engine_));
    } else {
      std::uniform_real_distribution<float> next(first_, second_);
      for (T& value : values) value = T(next(engine_));
    }
    return values;
  }

  template <class T>
  void upload(const std::vector<T>& values, Call& call) const {
    staging(device_).upload(call.outputs[0].data, values.data(), values.size() * sizeof(T), call.stream);
  }

  gpu::Device& device_;
  Distribution distribution_;
  ElementType type_;
  float first_, second_;  // mean and scale, or the low and high limits
  std::vector<int64_t> dims_;
  mutable std::mutex mutex_;
  mutable std::default_random_engine engine_;
};

std::string refuse(const Node& node, Distribution distribution) {
  const ElementType type = type_of(node, distribution.like);
  if (type != ElementType::kFloat && type != ElementType::kHalf)
    return "the type is neither float nor float16";
  if (distribution.like) return "";
  const auto shape = node.find_ints("shape");
  if (!shape) return "no shape";
  for (const int64_t dim : *shape) {
    if (dim < 0 || dim > INT32_MAX) return "the shape has an invalid size";
  }
  return "";
}

}  // namespace

Table with_random(Table table, gpu::Device* device) {
  for (const Distribution distribution :
       {Distribution{false, false}, {false, true}, {true, false}, {true, true}}) {
    Registration& op = table.emplace_back();
    op.name = std::string(distribution.normal ? "RandomNormal" : "RandomUniform") +
              (distribution.like ? "Like" : "");
    op.where = Where::kProvider;
    op.last = 22;
    op.alone = true;
    op.refuse = [distribution](const Node& node) { return refuse(node, distribution); };
    op.create = [device, distribution](const Node& node) -> std::unique_ptr<Kernel> {
      if (device == nullptr) throw Error("there is no device");
      return std::make_unique<Random>(node, *device, distribution);
    };
  }
  return table;
}

}  // namespace graphopt::provider
