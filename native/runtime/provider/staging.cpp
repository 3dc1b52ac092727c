#include "runtime/provider/staging.h"

#include <cstring>
#include <map>
#include <memory>

#include "runtime/provider/pool.h"

namespace graphopt::provider {
namespace {

// Bytes. Copies of more than kMaxBytes are not staged: the caller would wait mostly for the transfer, and staging would
// replace that wait by a CPU copy of the same bytes. kMaxTotal limits all blocks together; a block has at least
// kMinBytes.
constexpr size_t kMaxBytes = size_t{16} << 20, kMaxTotal = size_t{64} << 20, kMinBytes = 4096;

}  // namespace

bool Staging::Block::is_free() {
  const auto of = context.lock();
  if (of != nullptr && !of->is_done(event)) return false;
  context.reset();
  return true;
}

Staging::Block* Staging::take(size_t bytes) {
  const size_t size = size_class(bytes, kMinBytes, 1);
  for (Block& block : blocks_) {
    if (block.bytes < size || block.bytes / 4 > size) continue;
    if (block.is_free()) return &block;
  }
  if (total_ + size > kMaxTotal) return nullptr;
  blocks_.reserve(blocks_.size() + 1);
  Block block;
  block.bytes = size;
  block.event = device_.create_event();
  try {
    block.memory = device_.allocate_pinned(size);
  } catch (...) {
    device_.destroy_event(block.event);
    throw;
  }
  total_ += size;
  return &blocks_.emplace_back(block);
}

void Staging::upload(void* to, const void* from, size_t bytes, void* stream) {
  // The host backend copies during the call.
  if (bytes <= kMaxBytes && device_.backend() != gpu::Backend::kHost) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Block* block = nullptr;
    try {
      block = take(bytes);
    } catch (const gpu::OutOfMemory&) {  // no memory can be pinned
    }
    if (block != nullptr) {
      std::memcpy(block->memory, from, bytes);
      block->context = gpu::StreamContext::of(device_, stream);
      try {
        device_.copy(to, block->memory, bytes, stream);
        device_.record(block->event, stream);
      } catch (...) {
        // The device may still read the memory, and no event shows when it has. `take` skips blocks of size 0.
        block->bytes = 0;
        throw;
      }
      return;
    }
  }
  device_.copy(to, from, bytes, stream);
}

Staging& staging(gpu::Device& device) {
  static std::mutex mutex;
  static auto& all = *new std::map<const gpu::Device*, std::unique_ptr<Staging>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& slot = all[&device];
  if (slot == nullptr) slot = std::make_unique<Staging>(device);
  return *slot;
}

}  // namespace graphopt::provider
