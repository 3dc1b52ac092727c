#include "runtime/provider/partition.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace graphopt::provider {

// Each node gets a level: how often a path that leads to it leaves the members and comes back to them. Levels
// only grow along a path, and a path that leaves a level's members comes back at a higher one.
std::vector<std::vector<size_t>> find_regions(const std::vector<PartitionNode>& nodes) {
  std::unordered_map<std::string, size_t> producer;
  std::vector<size_t> level(nodes.size());
  std::map<size_t, std::vector<size_t>> members;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const std::string& name : nodes[i].inputs) {
      const auto found = name.empty() ? producer.end() : producer.find(name);
      if (found == producer.end()) continue;
      const size_t from = found->second;
      level[i] = std::max(level[i], level[from] + (nodes[from].member && !nodes[i].member ? 1 : 0));
    }
    for (const std::string& name : nodes[i].outputs) {
      if (!name.empty()) producer[name] = i;
    }
    if (nodes[i].member) members[level[i]].push_back(i);
  }
  std::vector<std::vector<size_t>> regions;
  for (auto& [number, region] : members) {
    if (region.size() > 1) regions.push_back(std::move(region));
  }
  return regions;
}

}  // namespace graphopt::provider
