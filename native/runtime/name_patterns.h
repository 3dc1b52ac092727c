// Lists of operator names in text form: "FusedLayerNorm,ScaleShift*".
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace graphopt {

// Splits at commas; empty names are skipped.
inline std::vector<std::string> split_patterns(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Returns true if the name equals the pattern. A final * in the pattern matches any ending.
inline bool matches(const std::string& pattern, const std::string& name) {
  if (pattern.back() != '*') return pattern == name;
  return name.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0;
}

}  // namespace graphopt
