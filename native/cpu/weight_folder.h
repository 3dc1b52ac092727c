// Packed weights in files that the processes of a machine map, read-only: n workers hold them once.
//
// A file holds the original weights and what was made of them, so that it is taken only where all bytes of
// the weights are equal; a checksum is over what was made, and a text names the library, the instruction set
// and the layout. It appears whole or not at all: written under another name, synced, then linked. The
// process that comes second takes the file of the first. Files that were not used for the longest time are
// removed when the folder would grow beyond its limit; who has mapped one keeps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace graphopt::cpu {

// FNV-1a over 8-byte words (G. Fowler, L. C. Noll, K.-P. Vo), of a text and then of bytes.
uint64_t hash_of(const std::string& text, const void* data, size_t bytes);

// Begins at a cache line, and lies in large pages where it fills any and the system has them. Throws std::bad_alloc.
using Memory = std::unique_ptr<void, void (*)(void*)>;
Memory allocate_lines(size_t bytes);

// Both are null, or both lie in one mapping that lives as long as `prepared`.
struct MappedWeights {
  std::shared_ptr<const void> prepared;
  const void* original = nullptr;
};

class WeightFolder {
 public:
  // That of the environment variables GRAPHOPT_WEIGHTS (a folder, made where it is missing; or "off") and
  // GRAPHOPT_WEIGHTS_LIMIT (MiB, by default 16,384); null without the first. A folder that somebody else
  // could write to, or whose limit is no number, is not used, which one line on stderr says.
  static const WeightFolder* of_process();

  // Throws std::runtime_error with the reason why a folder can't be used.
  WeightFolder(std::string path, uint64_t most_bytes);

  // What prepare() writes for these weights, from the file or into it; nothing where no file can be written
  // or read. `layout`: as for WeightCache::get; `key`: a hash of layout and weights.
  MappedWeights get(uint64_t key, const std::string& layout, const void* weights, size_t bytes,
                    size_t prepared_bytes, const std::function<void(void* prepared)>& prepare) const;

 private:
  struct Content;

  MappedWeights find(const std::string& file, const Content& content) const;
  bool write(const std::string& file, const Content& content, const void* prepared) const;
  void make_room(uint64_t bytes) const;

  std::string path_;
  uint64_t most_bytes_;
};

}  // namespace graphopt::cpu
