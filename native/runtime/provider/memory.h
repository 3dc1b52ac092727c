// The provider's memory, copies and streams, as callbacks of the runtime.
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

// Returns the vendor ID of the memory devices of a backend: the PCI ID of the GPU's vendor.
uint32_t vendor_id(gpu::Backend backend);

// The device memory of one session. Without a limit (0) it comes from the pool shared by all sessions, otherwise from a
// pool of this session. Thread-safe.
class SessionMemory {
 public:
  SessionMemory(Pool& shared, size_t limit)
      : own_(limit > 0 ? std::make_unique<Pool>(shared.number(), limit) : nullptr),
        shared_(shared),
        pool_(own_ != nullptr ? *own_ : shared) {}

  Pool& pool() const { return pool_; }
  // Like Pool::allocate.
  void* allocate(size_t bytes, const void* stream, gpu::MemoryUse memory_use = gpu::MemoryUse::kTensors);
  void free(void* memory) noexcept;
  // Sets a function that releases idle memory and returns whether it has released any. If there is too little memory,
  // the function is called and the allocation is tried again, until the allocation succeeds or the function returns
  // false.
  void on_out_of_memory(std::function<bool()> release_idle);
  // Like the functions of Pool, for a stream that may have used memory of this session and of the shared pools.
  void retire(const void* stream);
  void forget(const void* stream);

 private:
  std::unique_ptr<Pool> own_;
  Pool& shared_;
  Pool& pool_;
  std::mutex mutex_;
  std::function<bool()> release_idle_;
};

// Allocates from a session's memory. A failed request returns null; last_failure() of the calling
// thread then has the reason.
class Allocator final : public abi::OrtAllocatorImpl {
 public:
  Allocator(const abi::OrtApi24* api, std::shared_ptr<SessionMemory> memory, const abi::OrtMemoryInfo* info);

 private:
  void* allocate(size_t bytes, const void* stream) noexcept;
  void release(void* memory) noexcept;
  static Allocator& self(const abi::OrtAllocatorImpl* p);

  const abi::OrtApi24* api_;
  std::shared_ptr<SessionMemory> memory_;
  const abi::OrtMemoryInfo* info_;  // owned by the creator of the allocator
};

// Returns why an allocation of this thread failed, and clears the reason; empty if none has failed since the last call.
std::string last_failure();

// Returns whether the memory is pinned host memory of a device (OrtDeviceMemoryType_HOST_ACCESSIBLE).
bool is_host_accessible(const abi::OrtApi24* api, const abi::OrtMemoryDevice* device);

// Creates a stream for work on the device of `memory`, with its gpu::StreamContext.
abi::OrtSyncStreamImpl* create_stream(const abi::OrtApi24* api, std::shared_ptr<SessionMemory> memory);
// Returns the device's handle of a stream from create_stream; null for null and for streams of the runtime.
void* stream_handle(const abi::OrtApi24* api, const abi::OrtSyncStream* stream);

abi::OrtDataTransferImpl* create_data_transfer(const abi::OrtApi24* api);

}  // namespace graphopt::provider
