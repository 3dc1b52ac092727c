// A session's cache for its regions, one part for each stream: the most recent plans, their captured graphs, and one
// arena for intermediate values.
//
// The work of a stream runs in order. All regions on the stream therefore share one arena. The holder of the stream's
// cache may enqueue work on the arena while earlier work still runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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
  Block(std::shared_ptr<SessionMemory> memory, size_t bytes, const void* stream, gpu::MemoryUse memory_use)
      : memory_(std::move(memory)), data_(memory_->allocate(bytes, stream, memory_use)), bytes_(bytes) {}
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

// An address that is resolved when a region runs.
struct Address {
  enum class Base : uint8_t { kNone, kArena, kInput, kOutput };
  Base base = Base::kNone;
  uint32_t index = 0;  // index of the region's input or output
  size_t offset = 0;
};

// A captured graph of all work of a region, with these addresses of its inputs and outputs.
struct Captured {
  std::vector<void*> addresses;
  std::shared_ptr<Block> arena;  // memory that the graph reads and writes
  std::unique_ptr<gpu::Graph> graph;
  uint64_t used = 0;  // RegionPlan::runs at its last use
};

// The plan of a region on one stream: its kernel calls and its arena layout. It is valid for the input shapes in
// `shapes`. If other input shapes need the same work, Region::fits stores them in `shapes`.
struct RegionPlan {
  const Region* region = nullptr;
  std::vector<Shape> shapes;                     // shapes of the inputs; with the alignment, the cache key
  size_t alignment = 0;                          // alignment of the inputs
  size_t output_alignment = gpu::kMaxAlignment;  // of the outputs; the lowest so far
  uint64_t generation = 0;                       // gpu::library_generation() at planning

  std::unique_ptr<Call[]> calls;
  // Values computed during planning: on the host, and the device copies of values that are read on the
  // device.
  std::vector<std::unique_ptr<unsigned char[]>> host_values;
  std::unique_ptr<Block> uploads;
  // A pointer in `calls` that each run sets to this address.
  struct Slot {
    void** pointer;
    Address address;
  };
  std::vector<Slot> slots;
  std::vector<Shape> output_shapes;
  size_t arena_bytes = 0;  // without copies of inputs and outputs
  // For the inputs, then the outputs: their bytes, and the arena offsets of their copies.
  std::vector<size_t> bytes, copies;
  size_t arena_bytes_with_copies = 0;
  size_t peak_step = 0;  // the step that needs the most memory

  uint64_t runs = 0, used = 0;     // number of runs; clock of the cache at the last use
  int refusals = 0;                // refused captures, by a driver or a library
  int direct_captures = 0;         // graphs captured with caller addresses so far
  std::vector<ElementType> types;  // of the inputs
  bool verified = false;           // its graph and its launches gave the same results
  // The last two sets of addresses of inputs and outputs, latest first. A caller may alternate between two sets of
  // buffers. A value that one region passes to another may alternate between two blocks of memory.
  std::vector<void*> recent_addresses[2];
  std::vector<Captured> captured;  // graphs with caller addresses
  Captured staged;                 // the graph with copies of inputs and outputs in the arena
};

// One for each session. Thread-safe. The cache of a stream is destroyed with the stream (gpu::StreamContext).
class RegionCache final : public gpu::GraphOwner, public std::enable_shared_from_this<RegionCache> {
 public:
  // Creates a cache that evicts plans when the session's memory is exhausted.
  static std::shared_ptr<RegionCache> create(std::shared_ptr<SessionMemory> memory);
  explicit RegionCache(std::shared_ptr<SessionMemory> memory) : memory_(std::move(memory)) {}

  struct StreamCache {
    std::mutex mutex;
    void* stream = nullptr;
    std::shared_ptr<Block> arena;
    std::list<RegionPlan> plans;  // most recently used first
  };

  // Exclusive access to the cache of one stream. Allocations from the session's memory by this thread, direct or
  // through the runtime, may evict every cached plan of the stream except the active one: the last plan found or added.
  class Lease {
   public:
    Lease(RegionCache& cache, void* stream);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    // Returns the region's most recently used plan for which `fits` returns true, and marks it as most recently used;
    // null if there is none.
    RegionPlan* find(const Region& region, const std::function<bool(RegionPlan&)>& fits);
    // Adds a plan and makes it the active one.
    RegionPlan& add(RegionPlan plan);
    // Evicts the least recently used plans of a region beyond kMaxPlans. Called after each capture of a graph.
    void trim(const Region& region) { limit(region, kMaxPlans); }
    void drop(const RegionPlan& plan);
    // Returns the stream's arena with at least `bytes` bytes. Throws gpu::OutOfMemory.
    const std::shared_ptr<Block>& arena(size_t bytes);

   private:
    void limit(const Region& region, size_t max_plans);
    // Evicts the least recently used plan that is not active. If there is none, frees the graphs of the active plan
    // and the arena. Returns false if there is nothing to free.
    bool evict() noexcept;

    friend class RegionCache;
    RegionCache& cache_;
    std::shared_ptr<StreamCache> stream_cache_;
    std::unique_lock<std::mutex> lock_;
    Lease* outer_;
    RegionPlan* active_ = nullptr;
    bool may_evict_ = true;
  };

  void release(void* stream) noexcept override;
  void forget(const Region& region) noexcept;

 private:
  // The maximum number of a region's plans on a stream after a capture (trim). Between captures, add() allows twice as
  // many, because the first run of a shape does not capture.
  static constexpr size_t kMaxPlans = 32;

  // Frees the least recently used plan of all idle stream caches (reclaim_idle). If there is none, frees memory of the
  // caches that this thread holds. Returns false if there is nothing to free.
  bool reclaim() noexcept;
  bool reclaim_idle() noexcept;
  // Limits the bytes of all other arenas together to the bytes of the current arena. A graph keeps its arena alive, so
  // graphs of the least recently used plans are destroyed.
  void limit_arenas(StreamCache& stream_cache, const RegionPlan* active);
  void discard_graphs(const StreamCache& stream_cache, RegionPlan& plan) noexcept;
  // Both accept a plan with unfinished work. `evict` also counts the plan as dropped, because it could have
  // been used again.
  void destroy(StreamCache& stream_cache, std::list<RegionPlan>::iterator plan) noexcept;
  void evict(StreamCache& stream_cache, std::list<RegionPlan>::iterator plan) noexcept;

  std::shared_ptr<SessionMemory> memory_;
  std::mutex mutex_;
  std::map<void*, std::shared_ptr<StreamCache>> stream_caches_;
  std::atomic<uint64_t> clock_{0};
};

}  // namespace graphopt::provider
