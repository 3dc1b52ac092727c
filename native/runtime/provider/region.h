// A region: nodes that run as one node of the runtime's, without its cost for each.
//
// In float16 convolutions run in channels last (operators/layout.h) where that is known to gain, and what
// follows them does, too, as far as it can: copies between the layouts are steps at the borders only.
//
// Values that are made of shapes alone (sizes, axes, scales, positions) are computed on the host with the plan, which
// depends on the shapes alone: kernels plan with them, and what is read on the device is copied there, once.
//
// For a new set of shapes its nodes are planned once, in order, and their tensors laid out in one arena. The
// first run enqueues node by node. When the shapes come again, the work is captured in a graph of the
// driver's, and from then on enqueued as one. A graph holds addresses: it is captured with those of a caller
// that brings the same ones twice in a row, else with copies in the arena, to and from which inputs and
// outputs are copied. What can't be captured goes on node by node.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/abi/graph.h"
#include "runtime/provider/region_cache.h"
#include "runtime/provider/registry.h"
#include "runtime/provider/steps.h"

namespace graphopt::provider {

// What happened since the process began, for tests and measurements.
enum class RegionEvent {
  kCompiled,
  kFused,
  kPlanned,
  kLaunched,
  kCaptured,
  kReplayed,
  kCopied,
  kRefused,
  kDropped,
  kRelaid,
  // Nodes of sessions that the runtime put between providers: copies to the device, and to the host.
  kCopyIn,
  kCopyOut,
};
void count_region(RegionEvent event);
// From now on no region uses graphs; whether that is new.
bool disable_graphs();
// JSON, by the names of the events in small letters, and how long the host has planned, what libraries of the vendor's
// were asked included.
std::string describe_regions();

struct RegionOptions {
  bool capture = true;
  size_t graph_nodes = 0;                                // of one graph at most; 0: any number
  bool verify_graphs = false;                            // against launches, before a graph is used
  int implementation = -1;                               // Call::only, of operators with several
  std::optional<bool> channels_last;                     // for float16; not given: where it is known to gain
  std::shared_ptr<const gpu::LibraryChoices> libraries;  // Call::libraries
  std::shared_ptr<gpu::Measured> measured;               // Call::measured
};

class NamedValues;
struct StepSource;

class Region final : public abi::OrtNodeComputeInfo {
 public:
  // Compiles the nodes of `graph`, which the runtime replaces by the node `fused`. Copies constants. `planned`: names of
  // values that are computed with the plan. Throws Error for what is wrong with a node.
  Region(const Registry& registry, const abi::OrtGraph* graph, const abi::OrtNode* fused,
         const std::set<std::string>& planned, std::shared_ptr<SessionMemory> memory,
         std::shared_ptr<RegionCache> cache, RegionOptions options);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  struct Groups;

  // region_compile.cpp
  void compile(const abi::OrtGraph* graph, const abi::OrtNode* fused, const std::set<std::string>& planned);
  bool wants_channels_last(const std::vector<abi::GraphNode>& nodes) const;
  Groups group(const std::vector<abi::GraphNode>& nodes, const std::vector<std::string>& outputs) const;
  StepSource source_of(const std::vector<abi::GraphNode>& nodes, const Groups& groups, size_t i) const;
  bool is_planned(const abi::GraphNode& node, const NamedValues& known,
                  const std::set<std::string>& planned) const;
  Step step_of(const StepSource& source, NamedValues& known, std::vector<StepSource>& sources);
  void find_lifetimes();
  void find_uploads();
  void add_constants(const std::vector<StepSource>& sources);
  void create_kernels(const std::vector<StepSource>& sources);

  // region.cpp
  abi::OrtStatus* compute(abi::OrtKernelContext* context) const noexcept;
  void run(const abi::Context& context) const;
  // `refused`: a plan of the same region that had to be given up, whose refusals hold on.
  RegionPlan plan(const Tensors& inputs, size_t alignment, size_t output_alignment, void* stream,
                  const RegionPlan* refused) const;
  void plan_step(size_t s, RegionPlan& plan) const;
  std::vector<void*> upload(RegionPlan& plan, const std::vector<const Tensor*>& written, void* stream) const;
  // This and the next: false when a library has refused, and the region is to be planned again.
  bool run_planned(RegionPlan& plan, RegionCache::Held& lane, const std::vector<void*>& addresses,
                   void* stream) const;
  bool enqueue(RegionPlan& plan, void* arena, const std::vector<void*>& addresses, void* stream,
               bool capturing) const;
  Captured* recorded(RegionPlan& plan, RegionCache::Held& lane, const std::vector<void*>& addresses,
                     bool apart, bool again, void* stream) const;
  bool try_capture(RegionPlan& plan, Captured& captured, void* stream) const;
  Captured* staged(RegionPlan& plan, RegionCache::Held& lane, const std::vector<void*>& addresses,
                   void* stream) const;
  // Whether graphs of the plan can be relied on: true where options say nothing else. May overwrite the arena, and the
  // outputs of `captured`.
  bool verify(RegionPlan& plan, const std::vector<void*>& addresses, void* stream) const;
  bool replays_as_launched(RegionPlan& plan, const Captured& captured, void* stream) const;
  bool trust(RegionPlan& plan, const std::function<bool()>& equal) const;
  std::vector<void*> copies_of(const RegionPlan& plan, const Block* arena,
                               const std::vector<void*>& addresses) const;
  void copy(const RegionPlan& plan, const std::vector<void*>& to, const std::vector<void*>& from,
            size_t begin, size_t end, void* stream) const;
  void refuse(RegionPlan& plan, const std::string& why) const;
  void say_refusal(const std::string& why) const;
  std::string describe(const Step& step, const Call& call) const;

  const abi::OrtApi24* api_;
  const Registry& registry_;
  gpu::Device& device_;
  std::shared_ptr<SessionMemory> memory_;
  std::shared_ptr<RegionCache> cache_;
  RegionOptions options_;
  std::string name_;
  Steps steps_;
  std::vector<std::unique_ptr<Block>> blocks_;                 // constants on the device
  std::vector<std::unique_ptr<unsigned char[]>> host_blocks_;  // and on the host
  mutable std::atomic<bool> captured_said_{false}, refused_said_{false};
  mutable std::atomic<int> refusals_{0};  // of drivers and libraries to record
};

}  // namespace graphopt::provider
