// Einsum of one or two tensors of float, float16, or 32-bit or 64-bit integers. Each operand is first summed over
// labels that neither the output nor the other operand has. A GEMM and a transpose then compute the result.
#include "operators/movement/movement/op.h"

#include <algorithm>
#include <map>
#include <vector>

#include "operators/elementwise/elementwise/op.h"
#include "operators/kernel_bases.h"
#include "operators/matmul/integer_matmul/op.h"
#include "operators/matmul/matmul/gemm_call.h"
#include "operators/reduction/reduction/op.h"

namespace graphopt {
namespace {

// Labels of axes: letters, or kEllipsis + i for axis i of an ellipsis, counted from its last axis.
using Labels = std::vector<int>;
constexpr int kEllipsis = 256;

struct Equation {
  std::vector<Labels> terms;
  Labels output;
};

bool contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

// Returns the labels of a term. `ellipsis`: number of axes that an ellipsis replaces; -1 if the term must not
// have an ellipsis.
Labels read_term(const std::string& text, int64_t ellipsis) {
  Labels labels;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 3, "...") == 0) {
      throw_if(ellipsis < 0, "an ellipsis occurs twice in a term, or only in the output");
      for (int64_t k = ellipsis; k-- > 0;) labels.push_back(kEllipsis + static_cast<int>(k));
      ellipsis = -1;
      i += 2;
    } else if ((text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z')) {
      labels.push_back(text[i]);
    } else {
      throw Error("the equation contains '", text.substr(i, 1), "'");
    }
  }
  return labels;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Parses an equation. Throws Error if it is malformed or does not fit tensors of these ranks.
Equation read_equation(std::string text, const std::vector<size_t>& ranks) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  const size_t arrow = text.find("->");
  const std::vector<std::string> terms = split(text.substr(0, arrow), ',');
  throw_if(terms.size() != ranks.size(), "the equation has ", terms.size(), " terms, but there are ",
           ranks.size(), " inputs");
  Equation e;
  int64_t widest = -1;
  std::map<int, int> count;
  for (size_t i = 0; i < terms.size(); ++i) {
    int64_t left = -1;
    if (terms[i].find("...") != std::string::npos) {
      left = static_cast<int64_t>(ranks[i]) - static_cast<int64_t>(terms[i].size()) + 3;
      throw_if(left < 0, "a term has more labels than the tensor has axes");
    }
    widest = std::max(widest, left);
    e.terms.push_back(read_term(terms[i], left));
    throw_if(e.terms[i].size() != ranks[i], "a term must have a label for each axis");
    for (const int label : e.terms[i]) ++count[label];
  }
  if (arrow != std::string::npos) {
    e.output = read_term(text.substr(arrow + 2), widest);
  } else {
    for (int64_t k = widest; k-- > 0;) e.output.push_back(kEllipsis + static_cast<int>(k));
    for (const auto& [label, n] : count) {
      if (label < kEllipsis && n == 1) e.output.push_back(label);
    }
  }
  for (const int label : e.output) {
    throw_if(count[label] == 0, "the output has a label that no term has");
    throw_if(std::count(e.output.begin(), e.output.end(), label) > 1, "the output has a label twice");
  }
  for (const auto& [label, n] : count) {
    throw_if(label >= kEllipsis && !contains(e.output, label), "the output lacks the ellipsis");
  }
  return e;
}

// A tensor and the stride of each of its labels; 0 for a broadcast label.
struct View {
  Ref memory;
  std::map<int, int64_t> strides;
};

class EinsumPlanner {
 public:
  EinsumPlanner(const Call& call, Program& program, const GemmChoice& choice)
      : call_(call), program_(program), choice_(choice), type_(call.inputs[0].type) {}

  void add(const Labels& term, const Shape& shape) {
    for (size_t d = 0; d < term.size(); ++d) {
      const auto [found, is_new] = sizes_.emplace(term[d], shape[d]);
      if (is_new || shape[d] == found->second || shape[d] == 1) continue;
      throw_if(found->second != 1, "a label has two sizes");
      found->second = shape[d];
    }
  }
  int64_t size(int label) const { return sizes_.at(label); }
  int64_t elements(const Labels& labels) const {
    int64_t n = 1;
    for (const int label : labels) n *= size(label);
    return n;
  }

  View view(const Labels& term, size_t input) const {
    const Shape& shape = call_.inputs[input].shape;
    const std::vector<int64_t> strides = gpu::contiguous(shape);
    View v{Ref::input(input), {}};
    for (size_t d = 0; d < term.size(); ++d) v.strides[term[d]] += shape[d] == 1 ? 0 : strides[d];
    return v;
  }

  // Returns the tensor, summed over all labels that are not in `kept`.
  View reduced(const View& v, const Labels& kept) {
    Labels remaining, summed;
    for (const auto& [label, stride] : v.strides)
      (contains(kept, label) ? remaining : summed).push_back(label);
    if (summed.empty()) return v;
    const Ref to = program_.reserve(elements(remaining) * bytes_of(type_));
    reduce(v, remaining, summed, to);
    return contiguous(remaining, to);
  }

  void reduce(const View& v, const Labels& remaining, const Labels& summed, Ref to) {
    Labels all = remaining;
    all.insert(all.end(), summed.begin(), summed.end());
    gpu::ReduceProblem p;
    p.x = Shape{elements(remaining), elements(summed)};
    p.reduced = {false, true};
    p.reduction = gpu::Reduction::kSum;
    p.type = type_;
    program_.launch(gpu::reduce_plan(p, call_.aligned()), {in_order(v, all)}, {to});
  }

  View contiguous(const Labels& order, Ref memory) const {
    View v{memory, {}};
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      v.strides[order[i]] = stride;
      stride *= size(order[i]);
    }
    return v;
  }

  // Returns whether the labels have this order in memory, without gaps.
  bool has_order(const View& v, const Labels& order) const {
    const View wanted = contiguous(order, v.memory);
    return std::all_of(order.begin(), order.end(), [&](int label) {
      return size(label) == 1 || v.strides.at(label) == wanted.strides.at(label);
    });
  }

  void copy(const View& v, const Labels& order, Ref to) {
    Shape shape(order.size());
    std::vector<int64_t> strides;
    for (size_t d = 0; d < order.size(); ++d) {
      shape[d] = size(order[d]);
      strides.push_back(v.strides.at(order[d]));
    }
    const gpu::StridedCopy copy = gpu::copy_to(shape, std::move(strides), bytes_of(type_));
    program_.launch(gpu::strided_copy_plan(copy, call_.aligned()), {v.memory}, {to});
  }

  Ref in_order(const View& v, const Labels& order) {
    if (has_order(v, order)) return v.memory;
    const Ref to = program_.reserve(elements(order) * bytes_of(type_));
    copy(v, order, to);
    return to;
  }

  void plan_unary(const View& v, const Labels& output, Ref y) {
    Labels summed;
    for (const auto& [label, stride] : v.strides) {
      if (!contains(output, label)) summed.push_back(label);
    }
    if (summed.empty()) {
      copy(v, output, y);
    } else {
      reduce(v, output, summed, y);
    }
  }

  void plan_binary(const View& a, const View& b, const Labels& output, Ref y) {
    Labels batch, M, N, K;
    for (const int label : output) {
      const bool in_a = a.strides.count(label) > 0, in_b = b.strides.count(label) > 0;
      (in_a && in_b ? batch : in_a ? M : N).push_back(label);
    }
    for (const auto& [label, stride] : a.strides) {
      if (!contains(output, label)) K.push_back(label);
    }
    const auto with_batch = [&batch](const Labels& x, const Labels& z) {
      Labels all = batch;
      all.insert(all.end(), x.begin(), x.end());
      all.insert(all.end(), z.begin(), z.end());
      return all;
    };
    gpu::GemmProblem p;
    p.M = elements(M);
    p.N = elements(N);
    p.K = elements(K);
    p.transpose_a = !has_order(a, with_batch(M, K)) && has_order(a, with_batch(K, M));
    p.transpose_b = !has_order(b, with_batch(K, N)) && has_order(b, with_batch(N, K));
    if (const int64_t n = elements(batch); n != 1) {
      p.batch = Shape{n};
      p.a_batch = {p.M * p.K};
      p.b_batch = {p.K * p.N};
    }
    const Ref left = in_order(a, p.transpose_a ? with_batch(K, M) : with_batch(M, K)),
              right = in_order(b, p.transpose_b ? with_batch(N, K) : with_batch(K, N));
    const Labels gemm_labels = with_batch(M, N);
    const bool direct = has_order(contiguous(gemm_labels, y), output);
    const Ref to = direct ? y : program_.reserve(elements(gemm_labels) * bytes_of(type_));
    if (is_integer(type_)) {
      multiply_integers(p, left, right, to);
    } else {
      choice_.plan({{std::move(p), type_ == ElementType::kHalf, call_, program_}, left, right, to});
    }
    if (!direct) copy(contiguous(gemm_labels, to), output, y);
  }

 private:
  void multiply_integers(const gpu::GemmProblem& p, Ref left, Ref right, Ref to) {
    if (p.M * p.N > 1 || p.K == 0) {
      gpu::IntegerProblem integers;
      integers.left = integers.right = type_;
      program_.launch(gpu::integer_matmul_plan(p, integers), {left, right}, {to});
      return;
    }
    // M = N = 1: multiplies elementwise, then sums over K.
    const int64_t sums = p.batch.elements();
    gpu::IntegerElementwiseProblem multiply;
    multiply.op = hip::IntegerOp::kMul;
    multiply.binary = true;
    multiply.bytes = bytes_of(type_);
    multiply.a = multiply.b = multiply.y = Shape{sums * p.K};
    const Ref product = p.K == 1 ? to : program_.reserve(sums * p.K * multiply.bytes);
    program_.launch(gpu::integer_elementwise_plan(multiply, call_.aligned()), {left, right}, {product});
    if (p.K == 1) return;
    gpu::ReduceProblem sum;
    sum.x = Shape{sums, p.K};
    sum.reduced = {false, true};
    sum.type = type_;
    program_.launch(gpu::reduce_plan(sum, call_.aligned()), {product}, {to});
  }

  const Call& call_;
  Program& program_;
  const GemmChoice& choice_;
  ElementType type_;
  std::map<int, int64_t> sizes_;
};

Planner plan_einsum(const Node& node) {
  return
      [choice = GemmChoice(node), equation = node.get_string("equation", "")](Call& call, Program& program) {
        std::vector<size_t> ranks;
        for (const Tensor& x : call.inputs) ranks.push_back(x.shape.rank());
        const Equation e = read_equation(equation, ranks);
        EinsumPlanner planner(call, program, choice);
        for (size_t i = 0; i < e.terms.size(); ++i) planner.add(e.terms[i], call.inputs[i].shape);
        Shape shape(e.output.size());
        for (size_t d = 0; d < shape.rank(); ++d) shape[d] = planner.size(e.output[d]);
        const Ref y = set_output(call, 0, shape);
        if (shape.elements() == 0) return;
        const View a = planner.view(e.terms[0], 0);
        if (e.terms.size() == 1) {
          planner.plan_unary(a, e.output, y);
          return;
        }
        const View b = planner.view(e.terms[1], 1);
        const auto labels_to_keep = [&e](const Labels& other) {
          Labels kept = e.output;
          kept.insert(kept.end(), other.begin(), other.end());
          return kept;
        };
        planner.plan_binary(planner.reduced(a, labels_to_keep(e.terms[1])),
                            planner.reduced(b, labels_to_keep(e.terms[0])), e.output, y);
      };
}

std::string refuse_einsum(const Node& node) {
  if (node.inputs.size() > 2) return "the equation has more than two operands";
  std::vector<size_t> ranks;
  for (const Value& x : node.inputs) {
    if (!x.present || !x.shape) return "the rank of an input is not known";
    ranks.push_back(x.shape->rank());
  }
  try {
    read_equation(node.get_string("equation", ""), ranks);
  } catch (const Error& error) {
    return error.what();
  }
  const ElementType type = node.inputs.front().type;
  const bool integers =
      is_integer(type) && bytes_of(type) >= 4 &&
      std::all_of(node.inputs.begin(), node.inputs.end(), [type](const Value& x) { return x.type == type; });
  return integers ? "" : refuse_mixed_floats(node);
}

}  // namespace

void add_einsum(Kernels& kernels) {
  kernels.add_onnx("Einsum", 12, 28, plan_einsum)
      .refused(refuse_einsum)
      .chooses(GemmChoice::implementations())
      .accepts_all_numbers();
}

}  // namespace graphopt
