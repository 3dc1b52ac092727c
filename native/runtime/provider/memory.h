// Memory, copies and streams of the provider, as the runtime calls them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "runtime/abi/ort_ep.h"
#include "runtime/provider/pool.h"

namespace graphopt::provider {

// Which memory is ours, among the runtime's memory devices: a GPU of this vendor.
uint32_t vendor_id(gpu::Backend backend);

// What one session has of the device's memory: of the pool that it shares with others, or with a limit (not 0) of one
// of its own. Thread-safe.
class SessionMemory {
 public:
  SessionMemory(Pool& shared, size_t limit)
      : own_(limit > 0 ? std::make_unique<Pool>(shared.number(), limit) : nullptr),
        shared_(shared),
        pool_(own_ != nullptr ? *own_ : shared) {}

  Pool& pool() const { return pool_; }
  // As Pool::allocate.
  void* allocate(size_t bytes, const void* stream, gpu::Holder holder = gpu::Holder::kTensors);
  void free(void* memory) noexcept;
  // Called before an allocation fails, as long as it says that it has given something back.
  void on_shortage(std::function<bool()> give_back);
  // As Pool's, of a stream on which the memory of both pools may have been used.
  void retire(const void* stream);
  void forget(const void* stream);

 private:
  std::unique_ptr<Pool> own_;
  Pool& shared_;
  Pool& pool_;
  std::mutex mutex_;
  std::function<bool()> give_back_;
};

// Memory of the host that is pinned: the device copies from and to it while the caller goes on. One for each
// device. What is freed is kept for the next request, for good, since a driver waits for the whole device to
// unpin. Thread-safe.
class PinnedMemory {
 public:
  // The memory of gpu::device(number), which is opened when it is first needed.
  explicit PinnedMemory(int number) : number_(number) {}

  // Throws gpu::OutOfMemory.
  void* allocate(size_t bytes);
  // Waits for the device, which may still copy from it.
  void free(void* memory) noexcept;

 private:
  int number_;
  std::mutex mutex_;
  std::unordered_map<void*, size_t> used_;
  std::multimap<size_t, void*> free_;
};
PinnedMemory& pinned_memory(int number);

// Hands out a session's memory, or pinned memory. A request that can't be served gives null, and the reason
// is in last_failure() of the calling thread.
class Allocator final : public abi::OrtAllocatorImpl {
 public:
  Allocator(const abi::OrtApi24* api, std::shared_ptr<SessionMemory> memory, const abi::OrtMemoryInfo* info);
  Allocator(const abi::OrtApi24* api, PinnedMemory& memory, const abi::OrtMemoryInfo* info);

 private:
  Allocator(const abi::OrtApi24* api, const abi::OrtMemoryInfo* info);
  void* allocate(size_t bytes, const void* stream) noexcept;
  void release(void* memory) noexcept;
  static Allocator& self(const abi::OrtAllocatorImpl* p);

  const abi::OrtApi24* api_;
  std::shared_ptr<SessionMemory> memory_;  // one of the two
  PinnedMemory* pinned_ = nullptr;
  const abi::OrtMemoryInfo* info_;  // owned by whoever asked for the allocator
};

// Why an allocation of this thread failed; empty when none has since the last call.
std::string last_failure();

// A stream for work on the device of `memory`, with its gpu::StreamContext.
abi::OrtSyncStreamImpl* create_stream(const abi::OrtApi24* api, std::shared_ptr<SessionMemory> memory);
// The device's, of a stream of create_stream; null for null and for streams of the runtime's own.
void* stream_handle(const abi::OrtApi24* api, const abi::OrtSyncStream* stream);

abi::OrtDataTransferImpl* create_data_transfer(const abi::OrtApi24* api);

}  // namespace graphopt::provider
