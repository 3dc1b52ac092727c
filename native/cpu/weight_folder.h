// Stores packed weights in files that the processes of a machine map read-only: n processes keep one copy in memory.
//
// A file contains the original weights, the packed weights, and a text that names the library, the instruction
// set and the layout. It is used only if the text and all bytes of the original weights are equal. A
// checksum covers the packed weights. Files appear atomically: they are written under another name, synced,
// and then linked. If two processes write the same file, the file of the first one is kept. When the folder
// would exceed its limit, the least recently used files are removed; processes that have mapped them keep the
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace graphopt::cpu {

// FNV-1a over 8-byte words (G. Fowler, L. C. Noll, K.-P. Vo), of a text and then of bytes.
uint64_t hash_of(const std::string& text, const void* data, size_t bytes);

// Allocates memory that begins at a cache line. Requests large pages for the part that fills whole large pages; the
// system may ignore the request. Throws std::bad_alloc.
using Memory = std::unique_ptr<void, void (*)(void*)>;
Memory allocate_lines(size_t bytes);

// Both are null, or both point into one mapping that lives as long as `prepared`.
struct MappedWeights {
  std::shared_ptr<const void> prepared;
  const void* original = nullptr;
};

class WeightFolder {
 public:
  // Returns the folder of the environment variable GRAPHOPT_WEIGHTS, which is created if missing; null if the variable
  // is not set or "off". GRAPHOPT_WEIGHTS_LIMIT sets the limit in MiB (default 16,384). If other users can write to the
  // folder, or the limit is invalid, returns null and writes one line to stderr.
  static const WeightFolder* of_process();

  // Throws std::runtime_error with the reason if the folder cannot be used.
  WeightFolder(std::string path, uint64_t max_bytes);

  // Returns the prepared weights from a file, or creates the file with prepare(). Returns null pointers if there is no
  // valid file and none can be created. `layout`: as in WeightCache::get; `key`: a hash of layout and weights.
  MappedWeights get(uint64_t key, const std::string& layout, const void* weights, size_t bytes,
                    size_t prepared_bytes, const std::function<void(void* prepared)>& prepare) const;

 private:
  struct Content;

  MappedWeights find(const std::string& file, const Content& content) const;
  bool write(const std::string& file, const Content& content, const void* prepared) const;
  void make_room(uint64_t bytes) const;

  std::string path_;
  uint64_t max_bytes_;
};

}  // namespace graphopt::cpu
