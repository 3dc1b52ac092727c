// A region: nodes that run as one node of the runtime, without the runtime's cost for each node.
//
// Float16 convolutions run in channels-last layout (operators/layout.h) where it is known to be faster. The
// nodes after them also use this layout as far as possible, so that only few steps have to change the layout.
//
// Values computed from shapes alone (sizes, axes, scales, positions) are computed on the host during planning, because
// a plan depends only on shapes. Kernels plan with these values; values that are read on the device are
// uploaded once for each plan. Some inputs are read by such computations only. An example is an attention mask that is
// used only for its length. If only the shapes of such inputs change, the plan and its graph may still be valid
// (Registration::keeps_plan).
//
// For a new set of shapes the nodes are planned in order, and their tensors are laid out in one arena. The
// first run enqueues node by node. When the same shapes occur again, the work is captured in a graph of the
// driver, which later runs replay. A graph contains addresses. It is captured with the caller's addresses if they
// equal one of the two most recent sets of addresses. Otherwise it is captured with copies of inputs and outputs in
// the arena. Work that cannot be captured is enqueued node by node.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/abi/graph.h"
#include "runtime/provider/profile.h"
#include "runtime/provider/region_cache.h"
#include "runtime/provider/registry.h"
#include "runtime/provider/steps.h"

namespace graphopt::provider {

// Events counted since the process began, for tests and measurements.
enum class RegionEvent {
  kCompiled,
  kFused,  // a group of nodes compiled as one step
  kPlanned,
  kLaunched,  // a run enqueued node by node
  kCaptured,
  kReplayed,   // a run of a graph with the caller's addresses
  kCopied,     // a run of a graph with copies of inputs and outputs
  kRefused,    // a graph that could not be captured or verified
  kDropped,    // an evicted plan
  kConverted,  // a change of layout that copies
  // Copy nodes that the runtime inserted between providers: to the device, and to the host.
  kCopyIn,
  kCopyOut,
};
void count_region(RegionEvent event);
// Disables graphs for all regions. Returns true on the first call.
bool disable_graphs();
// Returns JSON: the event counts by lower-case name, and the host's planning time including calls to vendor libraries.
std::string describe_regions();

struct RegionOptions {
  bool capture = true;
  size_t graph_nodes = 0;             // maximum nodes of one graph; 0: no limit
  bool verify_graphs = false;         // compare each graph with launches before it is used
  int implementation = -1;            // Call::only: index of the only allowed implementation; -1: any
  std::optional<bool> channels_last;  // for float16; unset: only where known to be faster
  std::shared_ptr<const gpu::LibraryChoices> libraries;  // Call::libraries
  std::shared_ptr<gpu::Measured> measured;               // Call::measured
};

class NamedValues;
struct StepSource;

class Region final : public abi::OrtNodeComputeInfo {
 public:
  // Compiles the nodes of `graph`, which the runtime replaces by the node `fused`, and copies constants.
  // `computed_on_host`: names of values that are computed on the host during planning. Throws Error for an invalid
  // node.
  Region(const Registry& registry, const abi::OrtGraph* graph, const abi::OrtNode* fused,
         const std::set<std::string>& computed_on_host, std::shared_ptr<SessionMemory> memory,
         std::shared_ptr<RegionCache> cache, std::shared_ptr<Profile> profile, RegionOptions options);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  struct Groups;
  // Values of host-computed steps by index, in `memory`.
  struct HostValues {
    std::map<size_t, Tensor> values;
    std::vector<std::unique_ptr<unsigned char[]>> memory;
  };

  // region_compile.cpp
  void compile(const abi::OrtGraph* graph, const abi::OrtNode* fused,
               const std::set<std::string>& computed_on_host);
  bool wants_channels_last(const std::vector<abi::GraphNode>& nodes, const Groups& groups) const;
  Groups group(const std::vector<abi::GraphNode>& nodes, const std::vector<std::string>& outputs) const;
  StepSource source_of(const std::vector<abi::GraphNode>& nodes, const Groups& groups, size_t i) const;
  bool is_computed_on_host(const NodeInGraph& node, const NamedValues& known,
                           const std::set<std::string>& computed_on_host) const;
  Step step_of(const StepSource& source, NamedValues& known, std::vector<StepSource>& sources);
  void find_lifetimes();
  void find_uploads();
  void find_in_place();
  void find_shape_only_inputs();
  void add_constants(const std::vector<StepSource>& sources);
  void create_kernels(const std::vector<StepSource>& sources);

  // region.cpp
  abi::OrtStatus* compute(abi::OrtKernelContext* context) const noexcept;
  void run(const abi::Context& context) const;
  // `abandoned`: the plan that the new one replaces, or null. Implementations that refused its calls are skipped.
  RegionPlan plan(const Tensors& inputs, size_t alignment, size_t output_alignment, void* stream,
                  const RegionPlan* abandoned) const;
  void plan_step(size_t s, RegionPlan& plan) const;
  // Returns true if the plan is valid for these inputs. `values`: the outputs of Steps::shape_steps,
  // computed on demand.
  bool fits(RegionPlan& plan, const Tensors& inputs, const std::vector<Shape>& shapes,
            HostValues& values) const;
  HostValues values_of_shapes(const Tensors& inputs) const;
  std::vector<void*> upload(RegionPlan& plan, const std::vector<const Tensor*>& written, void* stream) const;
  // run_planned and enqueue return false if a library has refused a call. The region must then be planned
  // again.
  bool run_planned(RegionPlan& plan, RegionCache::Lease& lease, const std::vector<void*>& addresses,
                   void* stream) const;
  bool enqueue(RegionPlan& plan, void* arena, const std::vector<void*>& addresses, void* stream,
               bool capturing) const;
  // Returns for each input, then each output, whether it is bound in place: an input and an output of one step
  // (Steps::in_place) have the same memory.
  std::vector<bool> in_place(const RegionPlan& plan, const std::vector<void*>& addresses) const;
  // `needs_copies`: an output overlaps an input. `known_addresses`: the addresses are recent ones.
  Captured* captured_graph(RegionPlan& plan, RegionCache::Lease& lease, const std::vector<void*>& addresses,
                           bool needs_copies, bool known_addresses, void* stream) const;
  bool try_capture(RegionPlan& plan, Captured& captured, void* stream) const;
  // `kept`: inputs and outputs that are not copied.
  Captured* staged(RegionPlan& plan, RegionCache::Lease& lease, const std::vector<void*>& addresses,
                   const std::vector<bool>& kept, void* stream) const;
  // All three return true if a graph may be used. `verify` compares launches with the plan's graph that copies
  // inputs and outputs. `replays_as_launched` compares launches with the graph `captured`, and overwrites its
  // arena and outputs. `check_graph` calls `equal` for the comparison, and disables graphs if the results differ.
  bool verify(RegionPlan& plan, const std::vector<void*>& addresses, void* stream) const;
  bool replays_as_launched(RegionPlan& plan, const Captured& captured, void* stream) const;
  bool check_graph(RegionPlan& plan, const std::function<bool()>& equal) const;
  std::vector<void*> copies_of(const RegionPlan& plan, const Block* arena,
                               const std::vector<void*>& addresses, const std::vector<bool>& kept) const;
  void copy(const RegionPlan& plan, const std::vector<void*>& to, const std::vector<void*>& from,
            size_t begin, size_t end, void* stream) const;
  void refuse(RegionPlan& plan, const std::string& why) const;
  void log_refusal(const std::string& why) const;
  std::string describe(const Step& step, const Call& call) const;

  const abi::OrtApi24* api_;
  const Registry& registry_;
  gpu::Device& device_;
  std::shared_ptr<SessionMemory> memory_;
  std::shared_ptr<RegionCache> cache_;
  std::shared_ptr<Profile> profile_;
  RegionOptions options_;
  std::string name_;
  std::string fused_name_;  // name of the runtime's node
  Steps steps_;
  std::vector<std::unique_ptr<Block>> blocks_;                 // constants on the device
  std::vector<std::unique_ptr<unsigned char[]>> host_blocks_;  // constants on the host
  mutable std::atomic<bool> captured_logged_{false}, refusal_logged_{false};
  mutable std::atomic<int> refusals_{0};  // refused captures, by drivers and libraries
};

}  // namespace graphopt::provider
