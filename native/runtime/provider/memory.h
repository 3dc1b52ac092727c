// Memory, copies and streams of the provider, as the runtime calls them.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/abi/ort_ep.h"
#include "runtime/provider/pool.h"

namespace graphopt::ep {

// Which memory is ours, among the runtime's memory devices: a GPU of this vendor.
uint32_t vendor_id(gpu::Backend backend);

// Hands out memory of a pool, at most `limit` bytes at a time (0: all that there is). A request that can't be
// served gives null, and the reason is in last_failure() of the calling thread.
class Allocator final : public abi::OrtAllocatorImpl {
 public:
  Allocator(const abi::OrtApi24* api, Pool& pool, const abi::OrtMemoryInfo* info, size_t limit);

 private:
  void* allocate(size_t bytes, const void* stream) noexcept;
  void release(void* memory) noexcept;
  static Allocator& self(const abi::OrtAllocatorImpl* p);

  const abi::OrtApi24* api_;
  Pool& pool_;
  const abi::OrtMemoryInfo* info_;  // owned by whoever asked for the allocator
  size_t limit_;
  std::atomic<size_t> in_use_{0};
};

// Why an allocation of this thread failed; empty when none has since the last call.
std::string last_failure();

abi::OrtSyncStreamImpl* create_stream(const abi::OrtApi24* api, Pool& pool);
abi::OrtDataTransferImpl* create_data_transfer(const abi::OrtApi24* api);

}  // namespace graphopt::ep
