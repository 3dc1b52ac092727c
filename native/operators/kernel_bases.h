// Base classes of the kernels in op.cpp files, and their registration in the table.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "blocks/half.h"
#include "cpu/parallel.h"
#include "cpu/weight_cache.h"
#include "device/program.h"
#include "operators/implementations.h"
#include "operators/operator.h"

namespace graphopt {

using gpu::Program;
using gpu::Ref;

// --- On the CPU

// Base class for CPU kernels of com.graphopt operators. Op is derived from Operator (operator.h).
template <class Op>
class CpuKernel : public Kernel {
 public:
  CpuKernel(const Op& op, const Node& node) : op_(op) { op_.read(node); }
  static Implementations implementations() { return {}; }

  void plan(Call& call) const final {
    const Shapes shapes(call.inputs);
    const size_t workers = call.parallel->workers();
    const Problem p = op_.problem(shapes);
    call.state.emplace<Planned>(p, create_run_data(p, workers));
    const Shape y = op_.output(shapes);
    const std::vector<ElementType> types = op_.output_types();
    for (size_t i = 0; i < op_.outputs(); ++i) {
      call.set_output(i, op_.output_shape(y, i), types.empty() ? call.inputs[0].type : types[i],
                      Place::kHost);
    }
    call.workspace_bytes = workspace(p, workers);
  }

 protected:
  using Problem = typename Op::Problem;
  static const Problem& problem(const Call& call) { return call.state.get<Planned>().problem; }
  // Returns the bytes of workspace that run needs.
  virtual size_t workspace(const Problem& p, size_t workers) const = 0;
  // Returns data that all runs of a planned call share, in addition to the problem. These runs never overlap.
  virtual std::shared_ptr<void> create_run_data(const Problem& p, size_t workers) const {
    static_cast<void>(p), static_cast<void>(workers);
    return nullptr;
  }
  static void* run_data(const Call& call) { return call.state.get<Planned>().run_data.get(); }

  Op op_;

 private:
  struct Planned {
    Problem problem;
    std::shared_ptr<void> run_data;
  };
};

// Returns input i of a call as T; null if the call has fewer inputs.
template <class T>
const T* data(const Call& call, size_t i) {
  return i < call.inputs.size() ? call.inputs[i].as<const T>() : nullptr;
}

// A kernel for an operator whose tensors all have the element type T. It calls kRun with the problem, kInputs
// inputs, the output and the threads. kWorkspace, if given, returns the bytes of a workspace, which kRun receives last.
template <class Op, class T, size_t kInputs, auto kRun, auto... kWorkspace>
class CpuKernelOf final : public CpuKernel<Op> {
 public:
  using CpuKernel<Op>::CpuKernel;
  bool run(Call& call) const override {
    compute(call, std::make_index_sequence<kInputs>());
    return true;
  }

 private:
  template <size_t... kIndex>
  void compute(Call& call, std::index_sequence<kIndex...>) const {
    const auto with = [&](auto... workspace) {
      kRun(this->problem(call), data<T>(call, kIndex)..., call.outputs[0].as<T>(), *call.parallel,
           workspace...);
    };
    if constexpr (sizeof...(kWorkspace) == 0) {
      with();
    } else {
      with(call.workspace);
    }
  }
  size_t workspace([[maybe_unused]] const typename Op::Problem& p,
                   [[maybe_unused]] size_t workers) const override {
    return (size_t{0} + ... + kWorkspace(p, workers));
  }
};

// The packed weights of a kernel. Constant weights are packed once for all sessions. Other weights are packed by each
// run, at the start of its workspace.
class PackedWeights {
 public:
  // Packs constant weights. The arguments are those of WeightCache::get.
  void pack(const std::string& layout, const void* weights, size_t bytes, size_t packed_bytes,
            const std::function<void(void* packed)>& pack_into) {
    packed_ = cpu::WeightCache::process().get(layout, weights, bytes, packed_bytes, pack_into);
  }

  // Returns the bytes of workspace for weights with this packed size. Scratch memory follows, so they are whole cache
  // lines.
  size_t in_workspace(size_t packed_bytes) const { return packed_ ? 0 : (packed_bytes + 63) / 64 * 64; }

  struct OfRun {
    const void* packed;
    void* scratch;  // the rest of the workspace
  };
  // Returns the weights for a run; packs them by pack_into(workspace) unless they are constant.
  template <class F>
  OfRun of_run(void* workspace, size_t packed_bytes, F&& pack_into) const {
    if (packed_) return {packed_.get(), workspace};
    pack_into(workspace);
    return {workspace, static_cast<char*>(workspace) + in_workspace(packed_bytes)};
  }

 private:
  std::shared_ptr<const void> packed_;
};

// The kernel of a WeightedOperator that needs packed weights (packed.h). Constant weights are packed once; other
// weights are packed by each run in its workspace.
template <class Op, const auto& kKernels>
class PackedCpuKernel : public CpuKernel<Op> {
 public:
  using CpuKernel<Op>::CpuKernel;

  void prepare(const Node& node) final {
    const auto w = node.constant(1);
    if (!w) return;
    packed_for_ = this->op_.static_problem(node.inputs[0].shape, w->shape);
    const Problem& p = *packed_for_;
    const Algorithm algorithm = choose_algorithm(p);
    packed_.pack(layout(p, algorithm) + " of " + element_type_name(w->type) + w->shape.text(), w->data,
                 w->bytes(), kKernels.weights(p, algorithm),
                 [&](void* packed) { kKernels.prepare(p, algorithm, w->as<const T>(), packed); });
  }

  bool run(Call& call) const final {
    const Problem& p = this->problem(call);
    const Algorithm algorithm = algorithm_of(p);
    const auto [packed, scratch] =
        packed_.of_run(call.workspace, kKernels.weights(p, algorithm),
                       [&](void* to) { kKernels.prepare(p, algorithm, call.inputs[1].as<const T>(), to); });
    compute(p, algorithm, call, packed, scratch);
    return true;
  }

 protected:
  using Problem = typename Op::Problem;
  using T = typename std::decay_t<decltype(kKernels)>::Type;
  using Algorithm = typename std::decay_t<decltype(kKernels)>::Algorithm;

  virtual Algorithm choose_algorithm(const Problem& p) const = 0;
  // Returns a name of the layout that is unique among all kernels.
  virtual std::string layout(const Problem& p, Algorithm algorithm) const = 0;
  // Returns the bytes of scratch memory that compute needs.
  virtual size_t scratch(const Problem& p, Algorithm algorithm, size_t workers) const {
    return kKernels.workspace(p, algorithm, workers);
  }
  // See CpuKernel::create_run_data.
  virtual std::shared_ptr<void> schedule(const Problem& p, Algorithm algorithm, size_t workers) const {
    static_cast<void>(p), static_cast<void>(algorithm), static_cast<void>(workers);
    return nullptr;
  }
  virtual void compute(const Problem& p, Algorithm algorithm, const Call& call, const void* packed,
                       void* scratch) const {
    kKernels.run(p, algorithm, data<T>(call, 0), packed, data<T>(call, 2),
                 p.has_residual ? data<T>(call, 3) : nullptr,
                 this->op_.tail().has_slopes ? data<T>(call, this->op_.slopes()) : nullptr,
                 call.outputs[0].as<T>(), *call.parallel, scratch);
  }

 private:
  size_t workspace(const Problem& p, size_t workers) const final {
    const Algorithm algorithm = algorithm_of(p);
    return scratch(p, algorithm, workers) + packed_.in_workspace(kKernels.weights(p, algorithm));
  }
  std::shared_ptr<void> create_run_data(const Problem& p, size_t workers) const final {
    return schedule(p, algorithm_of(p), workers);
  }
  // Constant weights were packed for one algorithm, which every call uses.
  Algorithm algorithm_of(const Problem& p) const { return choose_algorithm(packed_for_ ? *packed_for_ : p); }

  std::optional<Problem> packed_for_;
  PackedWeights packed_;
};

// --- On a GPU

// Plans the calls of one node: sets the outputs of a call, and adds the steps that compute them to the program.
using Planner = std::function<void(Call& call, Program& program)>;

// The planners of an operator with a counter (kernel.h).
struct CountedPlanner {
  Planner count, plan;
};

class PlannedKernel final : public gpu::DeviceKernel {
 public:
  PlannedKernel(gpu::Device& device, Planner planner) : DeviceKernel(device), planner_(std::move(planner)) {}
  PlannedKernel(gpu::Device& device, CountedPlanner planners)
      : PlannedKernel(device, std::move(planners.plan)) {
    counter_ = std::make_unique<PlannedKernel>(device, std::move(planners.count));
  }
  const Kernel* counter() const override { return counter_.get(); }

 private:
  void plan(Call& call, Program& program) const override { planner_(call, program); }

  Planner planner_;
  std::unique_ptr<PlannedKernel> counter_;
};

// Creates a kernel. `make` is one of these:
// - a Planner;
// - a function of a node and `args` that returns a Planner or a CountedPlanner;
// - a function of a node, a device and `args` that returns the kernel.
template <class Make, class... Args>
std::unique_ptr<Kernel> make_kernel(const Make& make, const Node& node, gpu::Device& device,
                                    const Args&... args) {
  if constexpr (std::is_invocable_v<Make, const Node&, gpu::Device&, const Args&...>) {
    return make(node, device, args...);
  } else if constexpr (std::is_invocable_v<Make, const Node&, const Args&...>) {
    return std::make_unique<PlannedKernel>(device, make(node, args...));
  } else {
    return std::make_unique<PlannedKernel>(device, make);
  }
}

// A function that creates a K, for registration.
template <class K>
struct MakeKernel {
  template <class... Args,
            class = std::enable_if_t<std::is_constructible_v<K, const Node&, gpu::Device&, const Args&...>>>
  std::unique_ptr<Kernel> operator()(const Node& node, gpu::Device& device, const Args&... args) const {
    return std::make_unique<K>(node, device, args...);
  }
};
template <class K>
constexpr MakeKernel<K> kernel{};

// One node's work in one call.
template <class P>
struct GpuWork {
  P p;
  bool half;
  const Call& call;
  Program& program;
  size_t library_bytes = 0;  // bytes of workspace that a vendor library needs

  gpu::Device& device() const { return program.device(); }
  const gpu::DeviceFacts& facts() const { return device().facts(); }
  // Reserves memory for the library, if it needs any.
  Ref library_workspace() const {
    return library_bytes > 0 ? program.reserve(static_cast<int64_t>(library_bytes)) : Ref();
  }
};

// Base class for GPU kernels of com.graphopt operators.
template <class Op>
class GpuKernelOf : public gpu::DeviceKernel {
 public:
  GpuKernelOf(const Op& op, const Node& node, gpu::Device& device)
      : DeviceKernel(device), op_(op), choice_(node), half_(node.type() == ElementType::kHalf) {
    op_.read(node);
  }

 protected:
  using Problem = typename Op::Problem;

  // Sets the outputs of a call. Returns its problem, or nothing if the outputs have no elements.
  std::optional<Problem> problem(Call& call) const {
    const Shapes shapes(call.inputs);
    const Problem p = op_.problem(shapes);
    const Shape y = op_.output(shapes);
    for (size_t i = 0; i < op_.outputs(); ++i) {
      call.set_output(i, op_.output_shape(y, i), call.inputs[0].type, Place::kDevice);
    }
    return y.elements() == 0 ? std::nullopt : std::optional(p);
  }

  Op op_;
  Choice choice_;
  bool half_;
};

// Launches the kernels of a plan. kPlan returns the plan. It receives the problem, whether the tensors are float16,
// whether memory is aligned (Call::aligned) and, if it accepts them, the device's facts.
template <class P, auto kPlan>
void launch_built_in(GpuWork<P>& work) {
  if constexpr (std::is_invocable_v<decltype(kPlan), const P&, bool, bool>) {
    work.program.launch(kPlan(work.p, work.half, work.call.aligned()), work.call);
  } else {
    work.program.launch(kPlan(work.p, work.half, work.call.aligned(), work.facts()), work.call);
  }
}
template <class P, auto kPlan>
constexpr Implementation<GpuWork<P>> kBuiltIn[] = {
    {"built-in kernel", accept_all<GpuWork<P>>, launch_built_in<P, kPlan>},
};

// A kernel that uses one of the implementations in kList, a list of Implementation<GpuWork<Op::Problem>>.
template <class Op, const auto& kList>
class GpuKernel final : public GpuKernelOf<Op> {
 public:
  using GpuKernelOf<Op>::GpuKernelOf;
  static Implementations implementations() { return summarize(kList); }

 private:
  void plan(Call& call, Program& program) const override {
    const auto p = this->problem(call);
    if (!p) return;
    GpuWork<typename Op::Problem> work{*p, this->half_, call, program};
    program.implementation = this->choice_.plan(kList, work, call);
  }
};

// A GpuKernel with one implementation, which launches the kernels that kPlan plans.
template <class Op, auto kPlan>
using BuiltInGpuKernel = GpuKernel<Op, kBuiltIn<typename Op::Problem, kPlan>>;

// Returns a refusal unless all inputs of a node are float or all are float16, because kernels have one type T. Does not
// check `host_inputs`.
std::string refuse_mixed_floats(const Node& node, const std::vector<size_t>& host_inputs = {});
// Returns the refusal of a node whose type no kernel supports.
std::string no_kernel(ElementType type);

// Returns true if `perm` contains each of the axes 0, 1, .. once.
bool is_permutation(const std::vector<int64_t>& perm);

// Returns the axis as an index; negative axes count from the end. Throws Error if it is out of range.
size_t axis_of(int64_t axis, size_t rank);

// Throws Error unless a window attribute is empty or has `count` values from `least` to 2^31 - 1. Sizes computed from
// such values do not overflow 64 bits.
void require_sizes(size_t count, const std::vector<int64_t>& values, int64_t least);
// Returns a required window attribute; nothing if it is missing or does not have `count` such values.
std::optional<std::vector<int64_t>> find_sizes(const Attributes& a, const char* name, size_t count,
                                               int64_t least);
// The same, but throws Error if the attribute is missing or invalid.
std::vector<int64_t> get_sizes(const Attributes& a, const char* name, size_t count, int64_t least);

bool is_half(const Tensor& tensor);

// Returns the product of the dims before the axis, the dim of the axis, and the product of the dims after it.
std::tuple<int64_t, int64_t, int64_t> split_at(const Shape& x, size_t axis);

// Returns the input, or an empty Ref if the node omits it.
Ref input_or_none(const Call& call, size_t i);

// Returns the value of a key in a table; nothing if the table does not contain the key.
template <class Key, class T>
std::optional<T> find_choice(const Key& key, std::initializer_list<std::pair<Key, T>> table) {
  for (const auto& [known, value] : table) {
    if (known == key) return value;
  }
  return std::nullopt;
}

// These set an output on the device. Without a type it has the type of input 0.
Ref set_output(Call& call, size_t i, const Shape& shape, ElementType type);
Ref set_output(Call& call, size_t i, const Shape& shape);

// --- The table

// Collects the kernels that each op.cpp adds (kernels.cpp).
class Kernels {
 public:
  // `device` is called when a GPU kernel is created.
  explicit Kernels(std::function<gpu::Device&()> device) : device_(std::move(device)) {}

  // Adds a com.graphopt operator (operator.h) on the CPU, under the names in `ops`. KernelOf<float> and KernelOf<half>
  // are constructed from an Op and a node.
  template <class Op, template <class> class KernelOf>
  void add_cpu(Reuse reuse = Reuse::kNone,
               const std::vector<ElementType>& types = {ElementType::kFloat, ElementType::kHalf},
               const std::vector<Op>& ops = Op::all()) {
    for (const Op& op : ops) {
      Registration& r = describe(op, Where::kCpu, reuse);
      r.types = types;
      r.implementations = KernelOf<float>::implementations();
      r.create = [op](const Node& node) -> std::unique_ptr<Kernel> {
        if (node.type() == ElementType::kHalf) return std::make_unique<KernelOf<half>>(op, node);
        return std::make_unique<KernelOf<float>>(op, node);
      };
    }
  }

  // The same on a GPU. A KernelOfOp is constructed from an Op, a node and the device. `slices`: Registration::slices.
  template <class Op, class KernelOfOp>
  void add_gpu(Where where, Reuse reuse = Reuse::kNone, size_t slices = 0) {
    for (const Op& op : Op::all()) {
      Registration& r = describe(op, where, reuse);
      r.slices = slices;
      r.implementations = KernelOfOp::implementations();
      r.create = [op, device = device_](const Node& node) {
        return std::make_unique<KernelOfOp>(op, node, device());
      };
    }
  }

  // Adds an ONNX operator and lets the provider claim every node. `make` and `args` are those of make_kernel.
  template <class Make, class... Args>
  Registration& add_onnx(const char* name, int first, int last, Make make, Args... args) {
    Registration& r = add();
    r.name = name;
    r.where = Where::kProvider;
    r.first = first;
    r.last = last;
    r.refuse = [](const Node&) { return std::string(); };
    r.create = [device = device_, make, args...](const Node& node) {
      return make_kernel(make, node, device(), args...);
    };
    return r;
  }

  // Adds an ONNX operator with a host kernel for values computed from shapes.
  Registration& add_arithmetic(const char* name, int first, int last, decltype(Registration::create) create);

  // Adds one of ONNX Runtime's contrib operators; all of them have version 1.
  template <class Make, class... Args>
  Registration& add_microsoft(const char* name, Make make, Args... args) {
    Registration& r = add_onnx(name, 1, 1, make, args...);
    r.domain = kMicrosoft;
    return r;
  }

  // Adds an operator with a kernel for each layout (Layout::kFollows). After `args`, `make` receives whether
  // channels are last.
  template <class Make, class... Args>
  Registration& add_with_both_layouts(const char* name, int first, int last, Make make, Args... args) {
    Registration& r = add_onnx(name, first, last, make, args..., false);
    has_channels_last(make, args...);
    return r.with_layout([](const Node&) { return Layout::kFollows; });
  }

  // Declares that the operator added last can also fuse the nodes after it. A K is constructed from a node, the device
  // and the tail. The input with index `residual` is the tail's residual.
  template <class K>
  void takes_tail(size_t residual) {
    table_.back().residual = residual;
    table_.back().create_with_tail = [device = device_](const Node& node, const Tail& tail) {
      return std::make_unique<K>(node, device(), tail);
    };
  }

  // Declares that the operator added last has a kernel for channels last (make_kernel). `make` receives `args`, then
  // the tail if it accepts a tail, then true.
  template <class Make, class... Args>
  void has_channels_last(Make make, Args... args) {
    table_.back().create_channels_last = [device = device_, make, args...](const Node& node,
                                                                           const std::optional<Tail>& tail) {
      if constexpr (std::is_invocable_v<Make, const Node&, gpu::Device&, Args..., std::optional<Tail>,
                                        bool>) {
        return make_kernel(make, node, device(), args..., tail, true);
      } else {
        return make_kernel(make, node, device(), args..., true);
      }
    };
  }

  // Declares that the com.graphopt operators added last have a kernel for several nodes with the same first input
  // (Registration::create_siblings). Operators with a residual or slopes have none. Nor have those whose activation has
  // attributes, because the kernel reads the attributes of one node only. A KernelOfOp is constructed from an Op, a
  // node, the device and the number of nodes.
  template <class Op, class KernelOfOp>
  void takes_siblings() {
    for_last<Op>([this](const Op& op, Registration& r) {
      const ActivationRow& activation = kActivations[static_cast<int32_t>(op.tail().act.kind)];
      if (r.inputs.size() > 3 || activation.a != nullptr) return;
      r.create_siblings = [op, device = device_](const Node& node, size_t nodes) {
        return std::make_unique<KernelOfOp>(op, node, device(), nodes);
      };
    });
  }

  // Declares that the com.graphopt operators added last have kernels for channels last. A KernelOfOp is constructed
  // from an Op, a node, the device and true.
  template <class Op, class KernelOfOp>
  void have_channels_last(Layout (*layout)(const Node&)) {
    for_last<Op>([&](const Op& op, Registration& r) {
      r.layout = layout;
      r.create_channels_last = [op, device = device_](const Node& node, const std::optional<Tail>&) {
        return std::make_unique<KernelOfOp>(op, node, device(), true);
      };
    });
  }

  // Declares that the com.graphopt operators added last treat all axes alike.
  template <class Op>
  void treat_axes_alike() {
    for_last<Op>([](const Op&, Registration& r) { r.layout = [](const Node&) { return Layout::kAny; }; });
  }

  // Returns the registrations whose `where` is in `wanted`.
  Table take(std::initializer_list<Where> wanted) &&;

 private:
  // Calls `visit` for each Op of the com.graphopt operators added last, with its registration.
  template <class Op, class Visit>
  void for_last(const Visit& visit) {
    const std::vector<Op> ops = Op::all();
    for (size_t i = 0; i < ops.size(); ++i) visit(ops[i], table_[table_.size() - ops.size() + i]);
  }

  Registration& add();

  // Adds a registration and sets the fields that are the same on all devices.
  template <class Op>
  Registration& describe(const Op& op, Where where, Reuse reuse) {
    Registration& r = add();
    r.name = op.name();
    r.domain = kDomain;
    r.where = where;
    r.types = {ElementType::kFloat, ElementType::kHalf};
    r.inputs = op.inputs();
    r.outputs = op.outputs();
    r.output_types = op.output_types();
    if (r.outputs == 1) r.reuse = reuse;
    r.infer = [op](const ShapeInference& node) { op.infer(node); };
    return r;
  }

  std::function<gpu::Device&()> device_;
  Table table_;
};

}  // namespace graphopt
