#include "runtime/provider/estimates.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace graphopt::provider {
namespace {

// The assumed speed of a processor.
struct Rates {
  double node;               // seconds for starting a node
  double bytes;              // bytes per second
  double float32, float16;   // multiply-adds per second
  double float16_attention;  // multiply-adds per second
};

// The slowest supported GPU that is not integrated (docs/measurements/placement.md). On a faster GPU a claimed group
// gains more than estimated.
constexpr Rates kDevice = {4e-6, 2e11, 2e12, 8e12, 8e12};
// Eight cores. ONNX Runtime's kernels for the CPU convert float16 to float32 and back.
constexpr Rates kCpu = {2e-6, 3e10, 1e11, 5e10, 5e9};
constexpr double kCopyStart = 1.5e-5, kCopyBytes = 1.2e10;  // seconds per copy; bytes per second

// Assumed values of unknown dimensions: batches of 1, images of 128 x 128 pixels, sequences of 128.
constexpr int64_t kUnknownBatch = 1, kUnknownSize = 128;

int64_t dim(const Value& value, size_t axis) {
  const int64_t size = value.shape && axis < value.shape->rank() ? (*value.shape)[axis] : -1;
  return size >= 0 ? size : axis == 0 ? kUnknownBatch : kUnknownSize;
}

int64_t last_dim(const Value& value, size_t from_end = 0) {
  const size_t rank = value.shape ? value.shape->rank() : 0;
  return rank > from_end ? dim(value, rank - 1 - from_end) : kUnknownSize;
}

double elements(const Value& value) {
  if (!value.present) return 0;
  if (!value.shape) return static_cast<double>(kUnknownSize * kUnknownSize);
  double all = 1;
  for (size_t axis = 0; axis < value.shape->rank(); ++axis) all *= static_cast<double>(dim(value, axis));
  return all;
}

double bytes(const Value& value) {
  const int64_t each = bytes_of(value.type);
  return elements(value) * (each > 0 ? static_cast<double>(each) : 0.5);  // two packed elements share a byte
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Operators with caches: the indices of the input and the output with the cached keys. The cached values are next.
struct Caches {
  const char *domain, *op;
  size_t input, output;
};
constexpr Caches kCaches[] = {{kMicrosoft, "GroupQueryAttention", 3, 1},
                              {kMicrosoft, "MultiHeadAttention", 6, 1},
                              {"", "Attention", 4, 1}};

const Caches* caches_of(const NodeInGraph& node) {
  const auto* const found = std::find_if(std::begin(kCaches), std::end(kCaches), [&node](const Caches& c) {
    return node.domain() == c.domain && node.op == c.op;
  });
  return found != std::end(kCaches) ? found : nullptr;
}

// Returns the number of keys that each query is multiplied by.
int64_t keys_of(const NodeInGraph& node) {
  const Caches* caches = caches_of(node);
  if (caches != nullptr) {
    const size_t present = caches->output, past = caches->input;
    if (present < node.outputs.size() && node.outputs[present].present) return dim(node.outputs[present], 2);
    if (node.has_input(past)) return dim(node.inputs[past], 2);
  }
  return node.has_input(1) ? last_dim(node.inputs[1], 1) : last_dim(node.inputs[0], 1);
}

// Returns the number of multiply-adds in convolutions, matrix multiplications, attention and recurrent layers.
double multiply_adds(const NodeInGraph& node) {
  const std::string& op = node.op;
  if (node.inputs.empty() || node.outputs.empty()) return 0;
  const size_t w = op == "QLinearConv" || op == "QLinearMatMul" ? 3 : 1;
  if (!node.has_input(w)) return 0;
  const Value &x = node.inputs[0], &weights = node.inputs[w], &y = node.outputs[0];
  const double per_channel = elements(weights) / static_cast<double>(std::max<int64_t>(dim(weights, 0), 1));
  if (contains(op, "ConvTranspose")) return elements(x) * per_channel;
  if (contains(op, "Conv")) return elements(y) * per_channel;
  if (contains(op, "Attention")) {
    return 2 * elements(y) * static_cast<double>(keys_of(node));
  }
  if (contains(op, "MatMul") || contains(op, "Gemm") || contains(op, "Linear")) {
    const bool transposed = op == "Gemm" && node.get_bool("transA");
    return elements(y) * static_cast<double>(last_dim(x, transposed ? 1 : 0));
  }
  if (op == "LSTM" || op == "GRU" || op == "RNN") {
    const double recurrent = node.has_input(2) ? elements(node.inputs[2]) : 0;
    return static_cast<double>(dim(x, 0) * dim(x, 1)) * (elements(weights) + recurrent);
  }
  return 0;
}

// Returns the bytes that the node reads and writes.
double bytes_of_node(const NodeInGraph& node, const Registration& op) {
  double written = 0;
  for (const Value& y : node.outputs) written += y.present ? bytes(y) : 0;
  if (contains(node.op, "Gather")) return 2 * written;  // it reads a part of its table
  double read = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i) read += node.has_input(i) ? bytes(node.inputs[i]) : 0;
  return op.reuse == Reuse::kAlias ? 0 : read + written;
}

double time_of(const Rates& rates, const NodeInGraph& node, double operations, double moved) {
  const ElementType type = node.inputs.empty() ? ElementType::kFloat : node.inputs[0].type;
  const bool half = type == ElementType::kHalf;
  const double rate = !half                            ? rates.float32
                      : contains(node.op, "Attention") ? rates.float16_attention
                                                       : rates.float16;
  return rates.node + std::max(operations / rate, moved / rates.bytes);
}

}  // namespace

Estimate estimate(const NodeInGraph& node, const Registration& op) {
  const double operations = multiply_adds(node), moved = bytes_of_node(node, op);
  const bool bfloat16 = std::any_of(node.inputs.begin(), node.inputs.end(), [](const Value& x) {
    return x.present && x.type == ElementType::kBfloat16;
  });
  // ONNX Runtime's CPU provider has no kernels for bfloat16.
  const double cpu = bfloat16 && node.domain() != kDomain ? std::numeric_limits<double>::infinity()
                                                          : time_of(kCpu, node, operations, moved);
  return {time_of(kDevice, node, operations, moved), cpu};
}

double copy_time(const Value& value) { return kCopyStart + bytes(value) / kCopyBytes; }

bool is_cache_input(const NodeInGraph& node, size_t i) {
  const Caches* found = caches_of(node);
  return found != nullptr && (i == found->input || i == found->input + 1);
}

bool is_cache_output(const NodeInGraph& node, size_t i) {
  const Caches* found = caches_of(node);
  return found != nullptr && (i == found->output || i == found->output + 1);
}

std::string time_text(double seconds) {
  char text[32];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof text, "%.0f us", seconds * 1e6);
  } else {
    std::snprintf(text, sizeof text, seconds < 1e-2 ? "%.1f ms" : "%.0f ms", seconds * 1e3);
  }
  return text;
}

}  // namespace graphopt::provider
