#include "runtime/provider/partition.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

namespace graphopt::provider {
namespace {

// Each node gets a level. A path to the node has edges that leave regions: from a node that may be in a region to one
// that may not. The level is the largest number of such edges on any path. The nodes of one level that may be in a
// region form one region. Levels never decrease along a path, so a path that leaves a region can only enter a region of
// a higher level. A host-computed node gets the level of the nodes that read it, which may be higher than its own.
class Partition {
 public:
  Partition(const std::vector<PartitionNode>& nodes, const std::vector<std::string>& outputs)
      : nodes_(nodes),
        inside_(nodes.size()),
        computed_on_host_(nodes.size()),
        is_output_(nodes.size()),
        sources_(nodes.size()),
        readers_(nodes.size()),
        on_host_(nodes.size()),
        lengths_(nodes.size()) {
    std::unordered_map<std::string, size_t> producer;
    const std::set<std::string> graph_outputs(outputs.begin(), outputs.end());
    const auto source = [&](const std::string& name) {
      const auto found = name.empty() ? producer.end() : producer.find(name);
      return found != producer.end() ? found->second : kNoProducer;
    };
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const std::string& name : nodes[i].inputs) {
        const size_t from = source(name);
        if (from == kNoProducer) continue;
        sources_[i].push_back(from);
        readers_[from].push_back(i);
      }
      for (const std::string& name : nodes[i].on_host) on_host_[i].push_back(source(name));
      for (const std::string& name : nodes[i].outputs) {
        if (name.empty()) continue;
        producer[name] = i;
        is_output_[i] = is_output_[i] || graph_outputs.count(name) > 0;
      }
      for (const std::string& name : nodes[i].lengths) lengths_[i].insert(source(name));
      computed_on_host_[i] = nodes[i].computed_on_host;
      inside_[i] = nodes[i].member || nodes[i].computed_on_host;
    }
  }

  std::vector<std::vector<size_t>> regions() {
    find_lengths();
    do {
      set_levels();
    } while (drop_host_computed() || drop_members());
    std::map<size_t, std::vector<size_t>> by_level;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (inside_[i]) by_level[level_[i]].push_back(i);
    }
    std::vector<std::vector<size_t>> found;
    for (auto& [level, region] : by_level) {
      const bool any =
          std::any_of(region.begin(), region.end(), [this](size_t i) { return nodes_[i].member; });
      if (region.size() > 1 && any) found.push_back(std::move(region));
    }
    return found;
  }

 private:
  static constexpr size_t kNoProducer = static_cast<size_t>(-1);

  // Finds the members that compute only sequence lengths (Registration::length_inputs) from inputs of the graph.
  void find_lengths() {
    computes_lengths_.assign(nodes_.size(), false);
    for (size_t i = nodes_.size(); i-- > 0;) {
      const auto reads_length = [&](size_t reader) {
        return computes_lengths_[reader] || lengths_[reader].count(i) > 0;
      };
      computes_lengths_[i] = nodes_[i].member && !is_output_[i] && on_host_[i].empty() &&
                             !readers_[i].empty() &&
                             std::all_of(readers_[i].begin(), readers_[i].end(), reads_length);
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      computes_lengths_[i] =
          computes_lengths_[i] && std::all_of(sources_[i].begin(), sources_[i].end(),
                                              [this](size_t from) { return computes_lengths_[from]; });
      has_lengths_ = has_lengths_ || (computes_lengths_[i] && nodes_[i].reduces);
    }
  }

  void set_levels() {
    level_.assign(nodes_.size(), 0);
    for (size_t i = 0; i < nodes_.size() && has_lengths_; ++i) level_[i] = computes_lengths_[i] ? 0 : 1;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const size_t from : sources_[i]) {
        level_[i] = std::max(level_[i], level_[from] + (inside_[from] && !inside_[i] ? 1 : 0));
      }
    }
    // Host-computed nodes that no needed node reads get the highest level of their inputs.
    std::vector<bool> idle(nodes_.size());
    for (size_t i = nodes_.size(); i-- > 0;) {
      if (!computed_on_host_[i]) continue;
      size_t lowest = kNoProducer;
      for (const size_t reader : readers_[i]) {
        if (!idle[reader]) lowest = std::min(lowest, level_[reader]);
      }
      idle[i] = lowest == kNoProducer;
      if (!idle[i]) level_[i] = lowest;
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const size_t from : sources_[i]) {
        if (idle[i]) level_[i] = std::max(level_[i], level_[from]);
      }
    }
  }

  // Drops host-computed nodes that are read outside their region or have unknown inputs.
  bool drop_host_computed() {
    return drop([this](size_t i) {
      if (!computed_on_host_[i]) return false;
      const auto elsewhere = [&](size_t reader) { return !inside_[reader] || level_[reader] != level_[i]; };
      return is_output_[i] || lacks_values(i) ||
             std::any_of(readers_[i].begin(), readers_[i].end(), elsewhere);
    });
  }

  bool drop_members() {
    return drop([this](size_t i) { return inside_[i] && !computed_on_host_[i] && lacks_values(i); });
  }

  bool lacks_values(size_t i) const {
    return std::any_of(on_host_[i].begin(), on_host_[i].end(),
                       [this](size_t from) { return from == kNoProducer || !computed_on_host_[from]; });
  }

  template <class Which>
  bool drop(const Which& which) {
    std::vector<size_t> dropped;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (which(i)) dropped.push_back(i);
    }
    for (const size_t i : dropped) inside_[i] = computed_on_host_[i] = false;
    return !dropped.empty();
  }

  const std::vector<PartitionNode>& nodes_;
  std::vector<bool> inside_, computed_on_host_, is_output_, computes_lengths_;
  std::vector<std::vector<size_t>> sources_, readers_, on_host_;
  std::vector<std::set<size_t>> lengths_;  // producers of lengths
  bool has_lengths_ = false;               // nodes reduce a mask to lengths
  std::vector<size_t> level_;
};

bool is_assigned(const Body& body, size_t i) { return i < body.assigned.size() && body.assigned[i]; }

// Returns true if a claimed node may be part of a region: its inputs and outputs are on the device, or known
// while the region is planned.
bool runs_in_region(const Claims& claims, const NodeInGraph& node) {
  const Registration* op = claims.find(node);
  if (op != nullptr && (op->has_counter || op->alone || op->create == nullptr)) return false;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (claims.host_output(node, i)) return false;
  }
  return true;
}

PartitionNode partition_node(const Claims& claims, const NodeInGraph& node, bool refused, bool assigned) {
  PartitionNode result;
  result.inputs = node.input_names();
  result.inputs.insert(result.inputs.end(), node.implicit_names().begin(), node.implicit_names().end());
  result.outputs = node.output_names();
  if (assigned || node.is_assigned_elsewhere()) return result;
  const Registration* host_kernel = claims.find_host_kernel(node);
  const bool is_shape_query =
      host_kernel != nullptr && host_kernel->where != Where::kPlanning;  // Shape and Size
  result.computed_on_host = host_kernel != nullptr && refused != is_shape_query;
  result.member = !result.computed_on_host && !refused && runs_in_region(claims, node);
  if (is_shape_query || (!result.computed_on_host && !result.member)) return result;
  const Registration* op = claims.find(node);
  for (size_t i = 0; result.member && i < op->length_inputs.size(); ++i) {
    if (node.has_input(op->length_inputs[i]))
      result.lengths.push_back(node.input_names()[op->length_inputs[i]]);
  }
  if (result.member && node.has_input(0) && node.inputs[0].shape && node.outputs[0].shape) {
    const Shape& x = *node.inputs[0].shape;
    const bool is_fixed = std::all_of(x.data(), x.data() + x.rank(), [](int64_t d) { return d >= 0; });
    result.reduces = !is_fixed && x.rank() > node.outputs[0].shape->rank();
  }
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.has_input(i) || node.is_constant(i)) continue;
    if (result.computed_on_host || claims.host_input(node, i))
      result.on_host.push_back(node.input_names()[i]);
  }
  return result;
}

}  // namespace

std::vector<std::vector<size_t>> find_regions(const std::vector<PartitionNode>& nodes,
                                              const std::vector<std::string>& outputs) {
  return Partition(nodes, outputs).regions();
}

Regions choose_regions(const Claims& claims, const std::vector<const NodeInGraph*>& nodes, const Body& body,
                       std::vector<std::string>& refusals) {
  std::vector<PartitionNode> partition;
  for (size_t i = 0; i < nodes.size(); ++i) {
    partition.push_back(partition_node(claims, *nodes[i], !refusals[i].empty(), is_assigned(body, i)));
  }
  Regions regions = {find_regions(partition, body.outputs), std::vector<bool>(nodes.size())};
  for (const std::vector<size_t>& members : regions.members) {
    for (const size_t i : members) {
      regions.computed_on_host[i] = partition[i].computed_on_host;
      refusals[i].clear();
    }
  }
  return regions;
}

}  // namespace graphopt::provider
