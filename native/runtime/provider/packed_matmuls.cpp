#include "runtime/provider/packed_matmuls.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "operators/table.h"
#include "runtime/provider/quantization.h"

namespace graphopt::provider {
namespace {

using abi::GraphNode;

// Inputs of MatMulNBits.
enum : size_t { kA, kB, kScales, kZeroPoints, kGroups, kBias };

// The weights of a DequantizeLinear node, as a matrix with K rows and N columns.
struct BlockedWeights {
  ElementType type = ElementType::kUndefined;
  int64_t K = 0, N = 0, size = 0;  // size: elements of a block along K
  bool transposed = false;         // stored as [N, K]
  bool has_zero_points = false;

  int64_t blocks() const { return (K + size - 1) / size; }
  int bits() const { return is_packed(type) ? 4 : 8; }
  bool is_signed() const { return type == ElementType::kInt4 || type == ElementType::kInt8; }
};

// Integers of kBits bits, the first in the low bits of a byte.
template <int kBits>
struct Codes {
  static constexpr int64_t kInByte = 8 / kBits;
  const uint8_t* bytes;
  // XOR mask. MatMulNBits reads unsigned integers: for signed ones, the mask inverts the sign bit, which adds
  // 2^(kBits - 1).
  uint8_t flip;

  uint8_t at(int64_t i) const { return code(bytes[i / kInByte], i % kInByte); }
  // Writes `count` integers from `first` on, one to each byte.
  void unpack(int64_t first, int64_t count, uint8_t* to) const {
    int64_t i = 0;
    for (; i < count && (first + i) % kInByte != 0; ++i) to[i] = at(first + i);
    const uint8_t* from = bytes + (first + i) / kInByte;
    for (; i + kInByte <= count; i += kInByte, ++from) {
      for (int64_t j = 0; j < kInByte; ++j) to[i + j] = code(*from, j);
    }
    for (; i < count; ++i) to[i] = at(first + i);
  }

 private:
  uint8_t code(int byte, int64_t j) const {
    return static_cast<uint8_t>(((byte >> (j * kBits)) ^ flip) & ((1 << kBits) - 1));
  }
};

// Packs the rows of a matrix [N, K] to rows of `row_bytes`.
template <int kBits>
void pack_rows(const Codes<kBits>& from, int64_t N, int64_t K, int64_t row_bytes, uint8_t* to) {
  constexpr int64_t kInByte = Codes<kBits>::kInByte;
  std::vector<uint8_t> row(static_cast<size_t>(K + kInByte));  // ends with zeros
  for (int64_t n = 0; n < N; ++n) {
    from.unpack(n * K, K, row.data());
    for (int64_t k = 0; k < K; k += kInByte) {
      int byte = 0;
      for (int64_t j = 0; j < kInByte; ++j) byte |= row[static_cast<size_t>(k + j)] << (j * kBits);
      to[n * row_bytes + k / kInByte] = static_cast<uint8_t>(byte);
    }
  }
}

// Packs the columns of a matrix [K, N] to rows of `row_bytes`. Works on tiles, because the bytes of many rows at the
// same k may map to one set of the cache.
template <int kBits>
void pack_columns(const Codes<kBits>& from, int64_t N, int64_t K, int64_t row_bytes, uint8_t* to) {
  constexpr int64_t kInByte = Codes<kBits>::kInByte;
  constexpr int64_t kColumns = 64, kDepth = 64;
  uint8_t tile[kDepth][kColumns] = {}, packed[kColumns][kDepth / kInByte];
  for (int64_t first_n = 0; first_n < N; first_n += kColumns) {
    const int64_t columns = std::min(kColumns, N - first_n);
    for (int64_t first_k = 0; first_k < K; first_k += kDepth) {
      const int64_t depth = std::min(kDepth, K - first_k), bytes = (depth + kInByte - 1) / kInByte;
      for (int64_t k = 0; k < depth; ++k) from.unpack((first_k + k) * N + first_n, columns, tile[k]);
      if (depth < kDepth) std::fill_n(tile[depth], kColumns, uint8_t{0});
      for (int64_t i = 0; i < bytes; ++i) {
        for (int64_t n = 0; n < kColumns; ++n) {
          int byte = 0;
          for (int64_t j = 0; j < kInByte; ++j) byte |= tile[i * kInByte + j][n] << (j * kBits);
          packed[n][i] = static_cast<uint8_t>(byte);
        }
      }
      for (int64_t n = 0; n < columns; ++n) {
        std::copy_n(packed[n], bytes, to + (first_n + n) * row_bytes + first_k / kInByte);
      }
    }
  }
}

template <class T>
void transpose(const T* from, int64_t rows, int64_t columns, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  }
}

class PackedNode final : public NodeInGraph {
 public:
  PackedNode(const GraphNode& dequantize, const GraphNode& matmul, const BlockedWeights& weights)
      : dequantize_(dequantize), matmul_(matmul), weights_(weights) {
    op = "MatMulNBits";
    name = matmul.name;
    version = 1;
    domain_ = kMicrosoft;
    inputs = {matmul.inputs[0], constant_of(ElementType::kUint8), constant_of(scales_type())};
    outputs = matmul.outputs;
    // MatMulNBits' default zero point is 2^(bits - 1), to which Codes::flip maps a signed 0.
    const bool zero_points = weights.has_zero_points || !weights.is_signed();
    inputs.push_back(zero_points ? constant_of(ElementType::kUint8) : Value());
    const std::string layout = (weights.transposed ? "/NxK by " : "/KxN by ") + std::to_string(weights.size);
    const auto packed = [&](size_t i) { return dequantize.input_names()[i] + layout; };
    input_names_ = {matmul.input_names()[0], packed(kX), packed(kScale), ""};
    if (zero_points) {
      input_names_[kZeroPoints] = weights.has_zero_points ? packed(kZero) : packed(kScale) + ", zero points";
    }
    constant_ = {matmul.is_constant(0), true, true, zero_points};
    output_names_ = matmul.output_names();
    if (!matmul.has_input(2)) return;
    inputs.insert(inputs.end(), {Value(), matmul.inputs[2]});
    input_names_.insert(input_names_.end(), {"", matmul.input_names()[2]});
    constant_.insert(constant_.end(), {false, matmul.is_constant(2)});
  }

  std::optional<Tensor> constant(size_t i) const override {
    if (i == kA) return matmul_.constant(0);
    if (i == kBias) return matmul_.constant(2);
    if (i >= inputs.size() || !inputs[i].present) return std::nullopt;
    const int64_t blocks = weights_.blocks();
    Tensor packed;
    packed.type = inputs[i].type;
    packed.shape = {weights_.N, blocks};
    if (i == kB) packed.shape = {weights_.N, blocks, weights_.size * weights_.bits() / 8};
    if (i == kZeroPoints) packed.shape = {weights_.N, (blocks * weights_.bits() + 7) / 8};
    if (!memory_[i]) {
      memory_[i] = std::make_unique<uint8_t[]>(packed.bytes());  // zeros
      fill(i, packed.bytes() / static_cast<size_t>(std::max<int64_t>(weights_.N, 1)), memory_[i].get());
    }
    packed.data = memory_[i].get();
    return packed;
  }

  std::optional<AttributeValue> find(const char* key, AttributeType type) const override {
    const std::string attribute = key;
    if (type != AttributeType::kInt) return std::nullopt;
    if (attribute == "K") return weights_.K;
    if (attribute == "N") return weights_.N;
    if (attribute == "bits") return int64_t{weights_.bits()};
    if (attribute == "block_size") return weights_.size;
    return std::nullopt;
  }

 private:
  static Value constant_of(ElementType type) { return {true, type, std::nullopt}; }
  ElementType scales_type() const { return dequantize_.inputs[kScale].type; }

  // Writes the packed values of an input, N rows of `row_bytes`.
  void fill(size_t i, size_t row_bytes, uint8_t* to) const {
    if (i == kZeroPoints && !weights_.has_zero_points) return;  // zeros
    const size_t source = i == kB ? kX : i == kScales ? kScale : kZero;
    const std::optional<Tensor> from = dequantize_.constant(source);
    if (!from) throw Error("the constant '" + dequantize_.input_names()[source] + "' has no value");
    const int64_t N = weights_.N, rows = i == kB ? weights_.K : weights_.blocks();
    if (i == kScales && weights_.transposed) {
      std::memcpy(to, from->data, from->bytes());
    } else if (i == kScales && from->type == ElementType::kHalf) {
      transpose(from->as<const uint16_t>(), rows, N, reinterpret_cast<uint16_t*>(to));
    } else if (i == kScales) {
      transpose(from->as<const uint32_t>(), rows, N, reinterpret_cast<uint32_t*>(to));
    } else {
      if (weights_.bits() == 4) {
        pack<4>(from->as<const uint8_t>(), rows, row_bytes, to);
      } else {
        pack<8>(from->as<const uint8_t>(), rows, row_bytes, to);
      }
    }
  }

  template <int kBits>
  void pack(const uint8_t* from, int64_t rows, size_t row_bytes, uint8_t* to) const {
    const Codes<kBits> codes = {from, static_cast<uint8_t>(weights_.is_signed() ? 1 << (kBits - 1) : 0)};
    const auto function = weights_.transposed ? pack_rows<kBits> : pack_columns<kBits>;
    function(codes, weights_.N, rows, static_cast<int64_t>(row_bytes), to);
  }

  const GraphNode& dequantize_;
  const GraphNode& matmul_;
  const BlockedWeights weights_;
  mutable std::unique_ptr<uint8_t[]> memory_[kBias];
};

class PackedMatMulSearch {
 public:
  explicit PackedMatMulSearch(const RegionGraph& graph) : graph_(graph), nodes_(graph.nodes()) {}

  // Returns the replacement of a DequantizeLinear node and of the MatMul, Gemm or FusedMatMul that reads it, possibly
  // through a Transpose; nothing if there is none.
  std::optional<Replacement> from(size_t dequantize) const {
    std::optional<BlockedWeights> weights = blocks_along_columns_or_rows(nodes_[dequantize]);
    if (!weights) return std::nullopt;
    Replacement found;
    found.nodes.push_back(dequantize);
    std::optional<size_t> reader = only_reader(dequantize);
    bool transposed = false;
    if (reader && is_transpose(nodes_[*reader])) {
      transposed = true;
      found.nodes.push_back(*reader);
      reader = only_reader(*reader);
    }
    if (!reader) return std::nullopt;
    const GraphNode& matmul = nodes_[*reader];
    const bool gemm = matmul.op == "Gemm" && matmul.domain().empty();
    const bool fused = matmul.op == "FusedMatMul" && matmul.domain() == kMicrosoft;
    if (!(gemm || fused || (matmul.op == "MatMul" && matmul.domain().empty()))) return std::nullopt;
    if ((gemm || fused) && matmul.get_bool("transB")) transposed = !transposed;
    // Blocks must be along K.
    if (transposed != weights->transposed) return std::nullopt;
    if (transposed) std::swap(weights->K, weights->N);
    if (!multiplies(matmul, nodes_[found.nodes.back()].output_names()[0], weights->N)) return std::nullopt;
    found.nodes.push_back(*reader);
    found.node = std::make_unique<PackedNode>(nodes_[dequantize], matmul, *weights);
    return found;
  }

 private:
  // Returns the only node that reads the output of a node; nothing if it is an output of the region.
  std::optional<size_t> only_reader(size_t node) const {
    const std::vector<size_t>& readers = graph_.private_readers(nodes_[node].output_names()[0]);
    return readers.size() == 1 ? std::optional(readers[0]) : std::nullopt;
  }

  // Returns constant weights of rank 2; K is the size of axis 0. `transposed` is set if the blocks are along axis 1.
  static std::optional<BlockedWeights> blocks_along_columns_or_rows(const GraphNode& node) {
    if (node.op != "DequantizeLinear" || !node.domain().empty()) return std::nullopt;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.has_input(i) && !node.is_constant(i)) return std::nullopt;
    }
    BlockedWeights weights;
    weights.type = node.inputs[kX].type;
    weights.size = node.get_int("block_size", 0);
    weights.has_zero_points = node.has_input(kZero);
    if (weights.size <= 0 || !(is_packed(weights.type) || is_byte(weights.type))) return std::nullopt;
    const std::optional<Tensor> x = node.constant(kX);
    if (!x || x->shape.rank() != 2) return std::nullopt;
    weights.K = x->shape[0];
    weights.N = x->shape[1];
    const int64_t axis = node.get_int("axis", 1);
    if (axis < -2 || axis > 1) return std::nullopt;
    weights.transposed = axis == 1 || axis == -1;
    Shape blocks = x->shape;
    int64_t& along = blocks[weights.transposed ? 1 : 0];
    along = (along + weights.size - 1) / weights.size;
    for (size_t i = kScale; i <= (weights.has_zero_points ? kZero : kScale); ++i) {
      const std::optional<Tensor> value = node.constant(i);
      if (!value || value->shape != blocks) return std::nullopt;  // DequantizeLinear reports the error
    }
    return weights;
  }

  static bool is_transpose(const GraphNode& node) {
    const std::vector<int64_t> perm = node.get_ints("perm", {});
    return node.op == "Transpose" && node.domain().empty() &&
           (perm.empty() || perm == std::vector<int64_t>{1, 0});
  }

  // Returns true for Y = A W + bias with a bias [N] or none.
  static bool multiplies(const GraphNode& matmul, const std::string& w, int64_t N) {
    if (matmul.input_names()[1] != w || !matmul.has_input(0)) return false;
    for (const char* key : {"transA", "transBatchA", "transBatchB"}) {
      if (matmul.get_bool(key)) return false;
    }
    if (matmul.get_float("alpha", 1.0f) != 1.0f) return false;
    if (!matmul.has_input(2)) return true;
    const std::optional<Shape>& bias = matmul.inputs[2].shape;
    return matmul.get_float("beta", 1.0f) == 1.0f && bias && bias->rank() == 1 && (*bias)[0] == N;
  }

  const RegionGraph& graph_;
  const std::vector<GraphNode>& nodes_;
};

}  // namespace

std::vector<Replacement> find_packed_matmuls(const RegionGraph& graph,
                                             const std::function<bool(const NodeInGraph&)>& has_kernel) {
  const PackedMatMulSearch search(graph);
  std::vector<Replacement> found;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    auto matmul = search.from(i);
    if (matmul && has_kernel(*matmul->node)) found.push_back(std::move(*matmul));
  }
  return found;
}

}  // namespace graphopt::provider
