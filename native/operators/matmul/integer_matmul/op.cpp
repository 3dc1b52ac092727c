// MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, and the GEMMs of com.microsoft for 8-bit and 16-bit integers.
#include <algorithm>

#include "gemm/loaders/im2col_args.h"
#include "operators/kernel_bases.h"
#include "operators/layout.h"
#include "operators/matmul/integer_matmul/conv.h"
#include "operators/matmul/integer_matmul/matmul.h"

namespace graphopt {
namespace {

using namespace integer_matmul;

// In a convolution A is X and B is W.
constexpr Operands kMatMulInteger({kA, kB, kAZero, kBZero});
constexpr Operands kMatMulInteger16({kA, kB});
constexpr Operands kQLinearMatMul({kA, kAScale, kAZero, kB, kBScale, kBZero, kYScale, kYZero});
constexpr Operands kQLinearConv({kA, kAScale, kAZero, kB, kBScale, kBZero, kYScale, kYZero, kBias, kResidual,
                                 kTable},
                                Kind::kIntegerBias);
constexpr Operands kQGemm({kA, kAScale, kAZero, kB, kBScale, kBZero, kBias, kYScale, kYZero},
                          Kind::kIntegerBias);
constexpr Operands kMatMulIntegerToFloat({kA, kB, kAScale, kBScale, kAZero, kBZero, kBias});
constexpr Operands kDynamicQuantizeMatMul({kA, kB, kBScale, kBZero, kBias}, Kind::kDynamic);

std::string refuse_integers(const Node& node, const Operands& in) {
  const ElementType a = node.inputs[in[kA]].type, b = node.inputs[in[kB]].type;
  if (in.dynamic() ? a != ElementType::kFloat : !is_byte(a)) return no_kernel(a);
  if (!is_byte(b)) return no_kernel(b);
  if ((node.has_input(in[kAZero]) && node.inputs[in[kAZero]].type != a) ||
      (node.has_input(in[kBZero]) && node.inputs[in[kBZero]].type != b)) {
    return "elements and zero point have different types";
  }
  if (node.has_input(in[kYZero]) && !is_byte(node.inputs[in[kYZero]].type)) return "only to int8 and uint8";
  for (const size_t scale : {in[kAScale], in[kBScale], in[kYScale]}) {
    if (node.has_input(scale) && node.inputs[scale].type != ElementType::kFloat)
      return "only scales of float";
  }
  const ElementType bias = in.has_integer_bias() ? ElementType::kInt32 : ElementType::kFloat;
  if (node.has_input(in[kBias]) && node.inputs[in[kBias]].type != bias)
    return "a bias that is not " + std::string(in.has_integer_bias() ? "int32" : "float");
  for (const size_t i : {in[kAScale], in[kAZero]}) {
    if (node.has_input(i) && node.inputs[i].shape && node.inputs[i].shape->elements() > 1) {
      return "a scale or zero point for each row of the first operand";
    }
  }
  return "";
}

// The provider adds the inputs residual and table (runtime/provider/quantized_groups.h). The kernels on the matrix
// units and the depthwise kernels support them.
std::string refuse_convolution(const Node& node) {
  const Operands& in = kQLinearConv;
  if (node.has_input(in[kResidual]) || node.has_input(in[kTable])) {
    const auto& w = node.inputs[in[kB]].shape;
    if (!w || w->rank() != kLayoutRank) return "not two spatial axes";
    if (std::max((*w)[2], (*w)[3]) > hip::kChannelsLastConvTaps) return "the kernel is too large";
  }
  return refuse_integers(node, in);
}

std::string refuse_wide(const Node& node) {
  for (const Value& x : node.inputs) {
    if (x.type != ElementType::kInt16) return no_kernel(x.type);
  }
  return "";
}

// The kernels on the matrix units and the depthwise kernels need channels last.
Layout layout_of(const Node& node, const Operands& in) {
  const auto& w = node.inputs[in[kB]].shape;
  return w && w->rank() == kLayoutRank && !node.get_bool("channels_last") ? Layout::kLast : Layout::kFirst;
}

}  // namespace

void add_integer_matmul(Kernels& kernels) {
  const auto refuse = [](Registration& r, const Operands& in) {
    r.refused([&in](const Node& node) { return refuse_integers(node, in); });
  };
  refuse(kernels.add_onnx("MatMulInteger", 10, 10, kernel<IntegerMatMul>, kMatMulInteger), kMatMulInteger);
  refuse(kernels.add_onnx("QLinearMatMul", 10, 21, kernel<IntegerMatMul>, kQLinearMatMul), kQLinearMatMul);
  refuse(kernels.add_onnx("ConvInteger", 10, 10, kernel<IntegerConv>, kMatMulInteger), kMatMulInteger);
  const auto convolution = [&](Registration& r) {
    r.refused(refuse_convolution);
    r.with_layout([](const Node& node) { return layout_of(node, kQLinearConv); }).with_byte_layouts();
    kernels.has_channels_last(kernel<IntegerConv>, kQLinearConv);
  };
  convolution(kernels.add_onnx("QLinearConv", 10, 10, kernel<IntegerConv>, kQLinearConv));
  refuse(kernels.add_microsoft("MatMulIntegerToFloat", kernel<IntegerMatMul>, kMatMulIntegerToFloat),
         kMatMulIntegerToFloat);
  refuse(kernels.add_microsoft("DynamicQuantizeMatMul", kernel<IntegerMatMul>, kDynamicQuantizeMatMul),
         kDynamicQuantizeMatMul);
  refuse(kernels.add_microsoft("QGemm", kernel<IntegerMatMul>, kQGemm), kQGemm);
  kernels.add_microsoft("MatMulInteger16", kernel<IntegerMatMul>, kMatMulInteger16)
      .refused(refuse_wide)
      .accepts_all_numbers();
  convolution(kernels.add_microsoft("QLinearConv", kernel<IntegerConv>, kQLinearConv));
}

}  // namespace graphopt
