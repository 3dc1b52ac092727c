// What a session keeps of its regions for each stream: the plans for the shapes that came last, their
// captured graphs, and one block of memory for what lies between the nodes.
//
// The work of a stream runs in order. So all regions on it share one block, and whoever has the lane of the
// stream may enqueue work on that block whatever is still running.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/stream_context.h"
#include "operators/kernel.h"
#include "runtime/provider/memory.h"

namespace graphopt::provider {

class Region;

// A block of the session's memory.
class Block {
 public:
  // Throws gpu::OutOfMemory.
  Block(std::shared_ptr<SessionMemory> memory, size_t bytes, const void* stream, gpu::Holder holder)
      : memory_(std::move(memory)), data_(memory_->allocate(bytes, stream, holder)), bytes_(bytes) {}
  ~Block() { memory_->free(data_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<SessionMemory> memory_;
  void* data_;
  size_t bytes_;
};

// An address that is known when a region runs.
struct Address {
  enum class Base : uint8_t { kNone, kArena, kInput, kOutput };
  Base base = Base::kNone;
  uint32_t index = 0;  // of the region's input or output
  size_t offset = 0;
};

// A recording of all work of a region, with these addresses of its inputs and outputs.
struct Captured {
  std::vector<void*> addresses;
  std::shared_ptr<Block> arena;  // which it reads and writes
  std::unique_ptr<gpu::Graph> graph;
  uint64_t used = 0;
};

// A region for one set of shapes on one stream. Its nodes' calls are planned; `slots` are what is left open
// in them.
struct RegionPlan {
  const Region* region = nullptr;
  std::vector<Shape> shapes;                      // of the inputs
  size_t alignment = 0;                           // of the inputs
  size_t output_alignment = gpu::kMostAlignment;  // of the outputs, as far as they have come
  uint64_t generation = 0;                        // gpu::library_generation() when it was planned

  std::unique_ptr<Call[]> calls;
  // What is computed with the plan: on the host, and copies of what is read on the device.
  std::vector<std::unique_ptr<unsigned char[]>> host_values;
  std::unique_ptr<Block> uploads;
  struct Slot {
    void** pointer;
    Address address;
  };
  std::vector<Slot> slots;
  std::vector<Shape> output_shapes;
  size_t arena_bytes = 0;  // of what lies between the nodes
  // For the inputs, then the outputs: their bytes, and where in the arena their copies lie.
  std::vector<size_t> bytes, copies;
  size_t arena_bytes_with_copies = 0;
  size_t fullest = 0;  // the node that needs the most memory

  uint64_t runs = 0, used = 0;
  int refusals = 0;                // of a driver or a library to record
  int own = 0;                     // recordings with addresses of callers, so far
  std::vector<ElementType> types;  // of the inputs
  bool verified = false;           // its graph and its launches gave the same results
  std::vector<void*> last;         // addresses of the run before
  std::vector<Captured> captured;  // for addresses of callers
  Captured staged;                 // for copies in the arena
};

// One for each session. Thread-safe. The end of a stream (gpu::StreamContext) ends its lane.
class RegionCache final : public gpu::GraphOwner, public std::enable_shared_from_this<RegionCache> {
 public:
  // Plans leave when the session's memory is short.
  static std::shared_ptr<RegionCache> create(std::shared_ptr<SessionMemory> memory);
  explicit RegionCache(std::shared_ptr<SessionMemory> memory) : memory_(std::move(memory)) {}

  struct Lane {
    std::mutex mutex;
    void* stream = nullptr;
    std::shared_ptr<Block> arena;
    std::list<RegionPlan> plans;  // the last used first
  };

  // The lane of a stream, which nobody else has while this lives. What its thread asks of the session's memory
  // meanwhile, itself or through the runtime, may cost the lane all that it keeps but the plan in use: the one that
  // was found or added last.
  class Held {
   public:
    Held(RegionCache& cache, void* stream);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    // The plan for these shapes, now the last used; null when there is none.
    RegionPlan* find(const Region& region, const std::vector<Shape>& shapes, size_t alignment);
    // Adds one.
    RegionPlan& add(RegionPlan plan);
    // Lets go of those of a region that have not been used for the longest time: not in the first run of a
    // shape, which has enough to do.
    void trim(const Region& region) { limit(region, kMostPlans); }
    void drop(const RegionPlan& plan);
    // The lane's memory, with at least so many bytes. Throws gpu::OutOfMemory.
    const std::shared_ptr<Block>& arena(size_t bytes);

   private:
    void limit(const Region& region, size_t most);
    // Gives back something that the plan in use can do without; false when there is nothing.
    bool give_back() noexcept;

    friend class RegionCache;
    RegionCache& cache_;
    std::shared_ptr<Lane> lane_;
    std::unique_lock<std::mutex> lock_;
    Held* outer_;
    RegionPlan* in_use_ = nullptr;
    bool gives_back_ = true;
  };

  void release(void* stream) noexcept override;
  void forget(const Region& region) noexcept;

 private:
  static constexpr size_t kMostPlans = 32;  // of a region on a stream; twice that before they are trimmed

  // Gives back what can be done without: the plan of all idle lanes that was not used for the longest time, then what
  // this thread's lanes have. False when there is nothing.
  bool reclaim() noexcept;
  bool reclaim_idle() noexcept;
  // A graph keeps its arena. Destroys graphs of the least recently used plans until arenas other than the lane's have no more
  // bytes together than that one.
  void limit_arenas(Lane& lane, const RegionPlan* in_use);
  void forget_recordings(const Lane& lane, RegionPlan& plan) noexcept;
  // Its work may not be done. `evict` is for a plan that could still be of use.
  void destroy(Lane& lane, std::list<RegionPlan>::iterator plan) noexcept;
  void evict(Lane& lane, std::list<RegionPlan>::iterator plan) noexcept;

  std::shared_ptr<SessionMemory> memory_;
  std::mutex mutex_;
  std::map<void*, std::shared_ptr<Lane>> lanes_;
  std::atomic<uint64_t> clock_{0};
};

}  // namespace graphopt::provider
