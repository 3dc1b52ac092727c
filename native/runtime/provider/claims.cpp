// Selects the nodes that the provider claims. choose() first decides for each node alone. Its passes then
// change decisions where nodes depend on one another; each pass is named after its decision. In this example,
// ids, boxes, lengths and scale are graph inputs (tests/native/test_claims.cpp):
//
//   node                       decision and the pass that makes it
//   e = Gather(table, ids)     claimed
//   s = Shape(ids)             claimed by claim_shape_queries: e reads ids on the device
//   d = Cast(s, float)         claimed by claim_data_computed_from_shapes: several floats, not read on the host
//   q = Div(boxes, d)          claimed
//   l = Gather(s, 1)           refused by refuse_shape_computations
//   t = Concat(l, 64)          refused by refuse_shape_computations
//   y = Reshape(e, t)          claimed; it reads t on the host
//   k = ReduceMax(lengths)     refused by refuse_integers_read_on_host: Slice reads k on the host
//   z = Slice(y, 0, k)         claimed
//   r = Sqrt(scale)            refused by refuse_groups_faster_on_cpu
//   g = Equal(ids, ids)        claimed by claim_nodes_without_copies: ids is on the device anyway
//
// Regions then compute l and t on the host while they are planned (partition.h).
#include "runtime/provider/claims.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "operators/kernels.h"
#include "runtime/name_patterns.h"

namespace graphopt::provider {
namespace {

using Nodes = std::vector<const NodeInGraph*>;

bool contains(const std::vector<size_t>& indices, size_t i) {
  return std::find(indices.begin(), indices.end(), i) != indices.end();
}

bool is_disabled(const NodeInGraph& node, const std::vector<std::string>& patterns) {
  return node.domain() == kDomain &&
         std::any_of(patterns.begin(), patterns.end(), [&](const auto& p) { return matches(p, node.op); });
}

// Returns true if the node has device inputs, and all of them are values computed from shapes.
bool computes_shapes(const Claims& claims, const NodeInGraph& node, const std::set<std::string>& on_host) {
  bool any = false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.has_input(i) || node.is_constant(i) || claims.host_input(node, i)) continue;
    if (on_host.count(node.input_names()[i]) == 0) return false;
    any = true;
  }
  return any;
}

// Refuses nodes that only compute on shapes. Returns for each node whether it was refused.
std::vector<bool> refuse_shape_computations(const Claims& claims, const Nodes& nodes,
                                            std::vector<std::string>& refusals) {
  std::vector<bool> computed(nodes.size());
  std::set<std::string> on_host;  // values computed from shapes
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeInGraph& node = *nodes[i];
    computed[i] = refusals[i].empty() && computes_shapes(claims, node, on_host);
    if (computed[i]) refusals[i] = "it computes a shape";
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const bool host =
          refusals[i].empty() ? claims.host_output(node, k) : computes_shapes(claims, node, on_host);
      if (host) on_host.insert(node.output_names()[k]);
    }
  }
  return computed;
}

// Refuses integer computations (sizes, axes, positions) on two conditions: the host reads the results, and the
// inputs are graph inputs or computed on the CPU. On the device, the result would have to be copied back, and each such
// copy waits for all enqueued work. In a subgraph, outputs that are not floats count as read on the host: one
// may be the condition of a Loop, and others may be sizes that If or Loop returns to the outer graph. Float
// inputs of a subgraph are on the device.
void refuse_integers_read_on_host(const Claims& claims, const Nodes& nodes, const Body& body,
                                  std::vector<std::string>& refusals) {
  std::map<std::string, size_t> producer;
  std::vector<bool> possible(nodes.size());  // whether the node can run on the CPU without copies to the host
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeInGraph& node = *nodes[i];
    possible[i] = !node.has_claimed_subgraph_nodes() &&
                  std::all_of(node.outputs.begin(), node.outputs.end(), [](const Value& y) {
                    return !y.present || (bytes_of(y.type) > 0 && !is_float(y.type));
                  });
    for (size_t k = 0; k < node.inputs.size() && possible[i]; ++k) {
      if (!node.has_input(k) || node.is_constant(k)) continue;
      const auto from = producer.find(node.input_names()[k]);
      possible[i] = from == producer.end() ? body.parent.empty() || !is_float(node.inputs[k].type)
                                           : possible[from->second] || !refusals[from->second].empty();
    }
    for (const std::string& name : node.output_names()) producer[name] = i;
  }
  std::set<std::string> wanted;
  if (!body.parent.empty()) wanted.insert(body.outputs.begin(), body.outputs.end());
  for (size_t i = nodes.size(); i-- > 0;) {
    const NodeInGraph& node = *nodes[i];
    const std::vector<std::string>& outputs = node.output_names();
    bool on_device = false, read = false;
    for (size_t k = 0; k < outputs.size(); ++k) {
      on_device = on_device || !claims.host_output(node, k);
      read = read || wanted.count(outputs[k]) > 0;
    }
    if (refusals[i].empty() && possible[i] && on_device && read)
      refusals[i] = "its output is read on the host";
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (!node.has_input(k) || node.is_constant(k)) continue;
      if (!refusals[i].empty() || claims.host_input(node, k)) wanted.insert(node.input_names()[k]);
    }
  }
}

// Returns true if the value is known to have exactly one element.
bool is_one_number(const Value& value) { return value.shape && value.shape->elements() == 1; }

// Claims nodes that compute data, such as masks and positions, from shapes alone (`computed`). If the host reads
// the results (sizes, axes, scales, inputs of other CPU nodes), the node is kept on the CPU. Any other such node
// is claimed if it writes floats that are not known to be a single number, or reads a device value. Then only
// its small inputs are copied.
void claim_data_computed_from_shapes(const Claims& claims, const Nodes& nodes, const Body& body,
                                     const std::vector<bool>& computed, std::vector<std::string>& refusals) {
  std::vector<bool> needed(nodes.size());  // whether the node's result is read on the host
  std::set<std::string> wanted;
  if (!body.parent.empty()) wanted.insert(body.outputs.begin(), body.outputs.end());
  for (size_t i = nodes.size(); i-- > 0;) {
    const NodeInGraph& node = *nodes[i];
    for (const std::string& name : node.output_names()) needed[i] = needed[i] || wanted.count(name) > 0;
    const bool on_host = !refusals[i].empty() && (!computed[i] || needed[i]);
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (!node.has_input(k) || node.is_constant(k)) continue;
      if (on_host || claims.host_input(node, k)) wanted.insert(node.input_names()[k]);
    }
    wanted.insert(node.implicit_names().begin(), node.implicit_names().end());
  }
  std::set<std::string> on_device;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeInGraph& node = *nodes[i];
    if (computed[i] && !needed[i]) {
      bool claim = false;
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        claim = claim || (node.has_input(k) && !claims.host_input(node, k) &&
                          on_device.count(node.input_names()[k]) > 0);
      }
      for (const Value& y : node.outputs)
        claim = claim || (y.present && is_float(y.type) && !is_one_number(y));
      if (claim) refusals[i].clear();
    }
    if (!refusals[i].empty() || needed[i]) continue;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (!claims.host_output(node, k)) on_device.insert(node.output_names()[k]);
    }
  }
}

// Claims Shape and Size if their tensor is on the device: the host knows their results without reading the
// tensor. A graph input is on the device if a claimed node reads it.
void claim_shape_queries(const Claims& claims, const Nodes& nodes, const std::vector<bool>& possible,
                         std::vector<std::string>& refusals) {
  std::map<std::string, bool> on_device;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeInGraph& node = *nodes[i];
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      on_device[node.output_names()[k]] = refusals[i].empty() && !claims.host_output(node, k);
    }
  }
  const auto is_host_query = [&](const NodeInGraph& node) {
    return node.inputs.size() == 1 && node.outputs.size() == 1 && claims.host_output(node, 0);
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeInGraph& node = *nodes[i];
    if (!refusals[i].empty() || is_host_query(node)) continue;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.has_input(k) && !claims.host_input(node, k)) on_device.emplace(node.input_names()[k], true);
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeInGraph& node = *nodes[i];
    if (!possible[i] || !is_host_query(node)) continue;
    const auto found = on_device.find(node.input_names()[0]);
    const bool is_on_device = found != on_device.end() && found->second;
    refusals[i] = is_on_device ? "" : "the tensor is not on the device";
  }
}

// Looks at nodes that were refused only because of their group (in `refusals`, but not in `before`). Claims a node if
// it reads only graph inputs that claimed nodes also read, and if only the caller reads its results. If such a node ran
// on the CPU, the runtime would keep the input in host memory: an input that the caller has on the device would be
// copied to the host and then back for the claimed nodes.
void claim_nodes_without_copies(const Claims& claims, const Nodes& nodes,
                                const std::vector<std::string>& before, std::vector<std::string>& refusals) {
  std::set<std::string> produced, device_inputs, read;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeInGraph& node = *nodes[i];
    produced.insert(node.output_names().begin(), node.output_names().end());
    read.insert(node.implicit_names().begin(), node.implicit_names().end());
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (!node.has_input(k) || node.is_constant(k)) continue;
      const std::string& name = node.input_names()[k];
      read.insert(name);
      if (refusals[i].empty() && !claims.host_input(node, k) && produced.count(name) == 0)
        device_inputs.insert(name);
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeInGraph& node = *nodes[i];
    if (refusals[i].empty() || !before[i].empty()) continue;
    bool any = false;
    bool all = std::none_of(node.output_names().begin(), node.output_names().end(),
                            [&read](const std::string& name) { return read.count(name) > 0; });
    for (size_t k = 0; k < node.inputs.size() && all; ++k) {
      if (!node.has_input(k) || node.is_constant(k)) continue;
      any = all = !claims.host_input(node, k) && device_inputs.count(node.input_names()[k]) > 0;
    }
    if (any && all) refusals[i].clear();
  }
}

// Returns the reason to refuse a group; empty if the group is claimed.
std::string refuse_group(const Group& group, size_t min_nodes) {
  const size_t size = group.nodes.size();
  if (group.fixed || (min_nodes > 0 ? size >= min_nodes : group.time.device < group.time.cpu)) return "";
  if (min_nodes > 0) return "fewer than " + std::to_string(min_nodes) + " adjacent nodes (min_nodes)";
  const std::string nodes = size == 1 ? "the node takes" : std::to_string(size) + " adjacent nodes take";
  return nodes + " an estimated " + time_text(group.time.device) + " on the device with copies, " +
         time_text(group.time.cpu) + " on the CPU";
}

// Refuses groups of connected nodes with fewer than min_nodes nodes. If min_nodes is 0, refuses the groups that are not
// faster on the device than on the CPU. The time on the device includes copies of inputs and outputs.
void refuse_groups_faster_on_cpu(const Claims& claims, const Nodes& nodes, const Body& body, size_t min_nodes,
                                 std::vector<std::string>& refusals) {
  const std::vector<std::string> before = refusals;
  for (const Group& group : groups_of(claims, nodes, body, before)) {
    const std::string why = refuse_group(group, min_nodes);
    for (const size_t i : group.nodes) {
      if (refusals[i].empty()) refusals[i] = why;
    }
  }
  claim_nodes_without_copies(claims, nodes, before, refusals);
}

// Refuses the nodes of a subgraph if they take longer on the device than on the CPU. Here the time on the CPU includes
// copies of inputs and outputs: the node that contains the subgraph is on the device if a node of the subgraph is, so
// execution on the device needs no copies. Each node is estimated once, because the number of iterations of a Loop is
// unknown.
void refuse_subgraph_faster_on_cpu(const Claims& claims, const Nodes& nodes, const Body& body,
                                   size_t min_nodes, std::vector<std::string>& refusals) {
  if (min_nodes > 0) return;
  double device = 0, cpu = 0;
  for (const Group& group : groups_of(claims, nodes, body, refusals)) {
    if (group.fixed) return;
    device += group.time.device - group.copies;
    cpu += group.time.cpu + group.copies;
  }
  if (device <= cpu) return;
  const std::string why = "the subgraph takes an estimated " + time_text(device) + " on the device, " +
                          time_text(cpu) + " on the CPU with copies";
  for (std::string& refusal : refusals) {
    if (refusal.empty()) refusal = why;
  }
}

}  // namespace

Claims::Claims(Table table) : table_(std::move(table)), planning_(planning_kernels()) {
  for (const Registration& op : planning_) host_kernels_.emplace(op.name, &op);
  for (const Registration& op : table_) {
    if (!by_name_.emplace(std::pair(op.domain, op.name), &op).second) {
      throw Error("two kernels for " + op.name);
    }
  }
}

const Registration* Claims::find(const NodeInGraph& node) const {
  const auto found = by_name_.find({node.domain(), node.op});
  return found != by_name_.end() ? found->second : nullptr;
}

const Registration* Claims::find_host_kernel(const NodeInGraph& node) const {
  if (node.outputs.size() != 1) return nullptr;
  if (host_output(node, 0)) return refuse(node).empty() ? find(node) : nullptr;
  const auto found = host_kernels_.find(node.op);
  if (!node.domain().empty() || found == host_kernels_.end()) return nullptr;
  const Registration& op = *found->second;
  const bool fits = node.version >= op.first && node.version <= op.last && op.refuse(node).empty();
  return fits ? &op : nullptr;
}

std::string Claims::refuse(const NodeInGraph& node) const {
  const Registration* found = find(node);
  if (found == nullptr) return "no kernel for this operator";
  const Registration& op = *found;
  if (node.version < op.first || node.version > op.last) {
    return "version " + std::to_string(node.version) + " of the operator is not known";
  }
  if (!op.types.empty() && std::find(op.types.begin(), op.types.end(), node.type()) == op.types.end()) {
    return std::string("no kernel for ") + element_type_name(node.type());
  }
  for (size_t i = 0; i < node.inputs.size() && !op.host_inputs.empty(); ++i) {
    for (const size_t host : op.host_inputs) {
      // If one value is both a host input and a device input of a node, the runtime makes no copy. It then passes
      // device memory to all readers of the value, including CPU nodes.
      if (host != i && node.has_input(i) && node.has_input(host) &&
          node.input_names()[host] == node.input_names()[i] && !contains(op.host_inputs, i)) {
        return "an input is read on the host and on the device";
      }
    }
  }
  if (op.create == nullptr && !node.has_claimed_subgraph_nodes())
    return "no node of its subgraphs runs on the device";
  if (!op.refuse) return "";
  for (const Value& value : node.inputs) {
    const bool supported = is_packed(value.type) ? op.packed_types
                           : value.type == ElementType::kFloat8E4M3Fn
                               ? op.float8
                               : bytes_of(value.type) != 0 && (op.all_numbers || !is_rare(value.type));
    if (!value.present || supported) continue;
    return value.type == ElementType::kUndefined ? "an input's type is not known"
                                                 : "no kernel for the type of an input";
  }
  return op.refuse(node);
}

bool Claims::host_input(const NodeInGraph& node, size_t i) const {
  const Registration* op = find(node);
  return op != nullptr && contains(op->host_inputs, i);
}

bool Claims::host_output(const NodeInGraph& node, size_t i) const {
  const Registration* op = find(node);
  return op != nullptr && contains(op->host_outputs, i);
}

std::vector<std::string> disabled_everywhere() {
  const char* list = std::getenv("GRAPHOPT_DISABLE");
  return split_patterns(list != nullptr ? list : "");
}

std::vector<Group> groups_of(const Claims& claims, const Nodes& nodes, const Body& body,
                             const std::vector<std::string>& refusals) {
  const auto assigned = [&body](size_t i) { return i < body.assigned.size() && body.assigned[i]; };
  const auto on_device = [&](size_t i) { return refusals[i].empty() || assigned(i); };
  std::vector<size_t> parent(nodes.size());
  for (size_t i = 0; i < parent.size(); ++i) parent[i] = i;
  const auto root = [&parent](size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  std::map<std::string, size_t> producer;  // of values of nodes on the device
  std::set<std::string> read_on_host(body.outputs.begin(), body.outputs.end());
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const auto* names : {&nodes[i]->input_names(), &nodes[i]->implicit_names()}) {
      if (!on_device(i)) read_on_host.insert(names->begin(), names->end());
      for (const std::string& name : *names) {
        const auto found = producer.find(name);
        if (on_device(i) && found != producer.end()) parent[root(i)] = root(found->second);
      }
    }
    for (size_t k = 0; k < nodes[i]->inputs.size(); ++k) {
      if (claims.host_input(*nodes[i], k)) read_on_host.insert(nodes[i]->input_names()[k]);
    }
    for (const std::string& name : nodes[i]->output_names()) {
      if (on_device(i) && !name.empty()) producer[name] = i;
    }
  }
  std::vector<Group> groups;
  std::map<size_t, size_t> number;                  // of a group, by its root
  std::set<std::pair<size_t, std::string>> copied;  // inputs by group
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!on_device(i)) continue;
    const NodeInGraph& node = *nodes[i];
    const size_t n = number.emplace(root(i), groups.size()).first->second;
    if (n == groups.size()) groups.emplace_back();
    Group& group = groups[n];
    group.nodes.push_back(i);
    group.fixed = group.fixed || assigned(i) || node.has_claimed_subgraph_nodes();
    if (const Registration* op = claims.find(node)) {
      const Estimate time = estimate(node, *op);
      group.time.device += time.device;
      group.time.cpu += time.cpu;
    }
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (!node.has_input(k) || node.is_constant(k) || claims.host_input(node, k) || is_cache_input(node, k))
        continue;
      const std::string& name = node.input_names()[k];
      if (producer.count(name) == 0 && copied.emplace(n, name).second) {
        group.copies += copy_time(node.inputs[k]);
      }
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const bool read = read_on_host.count(node.output_names()[k]) > 0;
      if (!node.outputs[k].present || claims.host_output(node, k) || is_cache_output(node, k) || !read)
        continue;
      group.copies += copy_time(node.outputs[k]);
    }
  }
  for (Group& group : groups) group.time.device += group.copies;
  return groups;
}

std::vector<std::string> choose(const Claims& claims, const Nodes& nodes, const Body& body,
                                const ChoiceOptions& options) {
  std::vector<std::string> refusals(nodes.size());
  std::vector<bool> possible(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeInGraph& node = *nodes[i];
    refusals[i] = node.is_assigned_elsewhere()          ? "assigned to another provider"
                  : is_disabled(node, options.disabled) ? "it is disabled"
                                                        : claims.refuse(node);
    possible[i] = refusals[i].empty();
  }
  const std::vector<bool> computed = refuse_shape_computations(claims, nodes, refusals);
  claim_data_computed_from_shapes(claims, nodes, body, computed, refusals);
  refuse_integers_read_on_host(claims, nodes, body, refusals);
  if (!body.parent.empty()) {
    refuse_subgraph_faster_on_cpu(claims, nodes, body, options.min_nodes, refusals);
    return refusals;
  }
  refuse_groups_faster_on_cpu(claims, nodes, body, options.min_nodes, refusals);
  claim_shape_queries(claims, nodes, possible, refusals);
  return refusals;
}

}  // namespace graphopt::provider
