#include "runtime/provider/region_cache.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/provider/region.h"

namespace graphopt::provider {
namespace {

thread_local RegionCache::Lease* innermost = nullptr;

// Rounds up, so a somewhat larger shape can reuse the block.
size_t arena_capacity(size_t bytes) { return size_class(bytes, size_t{1} << 16, 8); }

}  // namespace

std::shared_ptr<RegionCache> RegionCache::create(std::shared_ptr<SessionMemory> memory) {
  auto cache = std::make_shared<RegionCache>(std::move(memory));
  const auto call = [weak = std::weak_ptr<RegionCache>(cache)](bool (RegionCache::*evict)() noexcept) {
    const auto self = weak.lock();
    return self != nullptr && (self.get()->*evict)();
  };
  on_out_of_memory(cache, [call] { return call(&RegionCache::reclaim_idle); });
  cache->memory_->on_out_of_memory([call] { return call(&RegionCache::reclaim); });
  return cache;
}

RegionCache::Lease::Lease(RegionCache& cache, void* stream) : cache_(cache), outer_(innermost) {
  {
    const std::lock_guard<std::mutex> lock(cache.mutex_);
    auto& slot = cache.stream_caches_[stream];
    if (slot == nullptr) {
      auto stream_cache = std::make_shared<StreamCache>();
      stream_cache->stream = stream;
      gpu::StreamContext::of(cache.memory_->pool().device(), stream)->attach(cache.weak_from_this());
      slot = std::move(stream_cache);
    }
    stream_cache_ = slot;
  }
  lock_ = std::unique_lock<std::mutex>(stream_cache_->mutex);
  innermost = this;
}

RegionCache::Lease::~Lease() { innermost = outer_; }

RegionPlan* RegionCache::Lease::find(const Region& region, const std::function<bool(RegionPlan&)>& fits) {
  auto& plans = stream_cache_->plans;
  for (auto at = plans.begin(); at != plans.end(); ++at) {
    if (at->region != &region || !fits(*at)) continue;
    plans.splice(plans.begin(), plans, at);
    at->used = ++cache_.clock_;
    return active_ = &*at;
  }
  return nullptr;
}

RegionPlan& RegionCache::Lease::add(RegionPlan plan) {
  limit(*plan.region, 2 * kMaxPlans - 1);
  plan.used = ++cache_.clock_;
  active_ = &stream_cache_->plans.emplace_front(std::move(plan));
  return *active_;
}

void RegionCache::Lease::limit(const Region& region, size_t max_plans) {
  auto& plans = stream_cache_->plans;
  size_t count = 0;
  for (auto at = plans.begin(); at != plans.end();) {
    const auto plan = at++;
    if (plan->region == &region && ++count > max_plans) cache_.evict(*stream_cache_, plan);
  }
}

void RegionCache::Lease::drop(const RegionPlan& plan) {
  auto& plans = stream_cache_->plans;
  if (active_ == &plan) active_ = nullptr;
  const auto at = std::find_if(plans.begin(), plans.end(), [&](const RegionPlan& p) { return &p == &plan; });
  if (at != plans.end()) cache_.destroy(*stream_cache_, at);
}

bool RegionCache::Lease::evict() noexcept {
  if (!may_evict_) return false;
  auto& plans = stream_cache_->plans;
  const auto found =
      std::find_if(plans.rbegin(), plans.rend(), [this](const RegionPlan& p) { return &p != active_; });
  if (found != plans.rend()) {
    cache_.evict(*stream_cache_, std::prev(found.base()));
    return true;
  }
  const bool has_graphs =
      active_ != nullptr && (!active_->captured.empty() || active_->staged.graph != nullptr);
  if (!has_graphs && stream_cache_->arena == nullptr) return false;
  if (has_graphs) cache_.discard_graphs(*stream_cache_, *active_);
  stream_cache_->arena.reset();
  return true;
}

const std::shared_ptr<Block>& RegionCache::Lease::arena(size_t bytes) {
  std::shared_ptr<Block>& arena = stream_cache_->arena;
  if (bytes == 0 || (arena != nullptr && arena->bytes() >= bytes)) return arena;
  arena.reset();
  const auto allocate = [&](size_t wanted) {
    arena = std::make_shared<Block>(cache_.memory_, wanted, stream_cache_->stream, gpu::MemoryUse::kArenas);
  };
  may_evict_ = false;  // no plan is evicted for the bytes that arena_capacity adds
  try {
    allocate(arena_capacity(bytes));
    may_evict_ = true;
  } catch (const gpu::OutOfMemory&) {
    may_evict_ = true;
    allocate(bytes);
  }
  cache_.limit_arenas(*stream_cache_, active_);
  return arena;
}

void RegionCache::limit_arenas(StreamCache& stream_cache, const RegionPlan* active) {
  std::set<const Block*> arenas;
  size_t bytes = 0;
  const auto count = [&](const Captured& captured) {
    const Block* arena = captured.arena.get();
    if (arena != nullptr && arenas.insert(arena).second) bytes += arena->bytes();
  };
  for (RegionPlan& plan : stream_cache.plans) {  // most recently used first
    if (&plan == active) continue;
    for (const Captured& captured : plan.captured) count(captured);
    count(plan.staged);
    if (bytes <= stream_cache.arena->bytes()) continue;
    plan.direct_captures -= static_cast<int>(plan.captured.size());
    discard_graphs(stream_cache, plan);
  }
}

void RegionCache::discard_graphs(const StreamCache& stream_cache, RegionPlan& plan) noexcept {
  // Clear the plan's graphs even if the device fails: the caller repeats this until nothing is left to free.
  std::vector<Captured> captured;
  captured.swap(plan.captured);
  Captured staged;
  std::swap(staged, plan.staged);
  if (captured.empty() && staged.graph == nullptr) return;
  try {
    gpu::Device& device = memory_->pool().device();
    const gpu::OnDevice on(device);
    device.synchronize(stream_cache.stream);  // some drivers cannot destroy a graph while it runs
    captured.clear();
    staged = {};
  } catch (const std::exception&) {  // a broken device
  }
}

void RegionCache::destroy(StreamCache& stream_cache, std::list<RegionPlan>::iterator plan) noexcept {
  discard_graphs(stream_cache, *plan);
  stream_cache.plans.erase(plan);
}

void RegionCache::evict(StreamCache& stream_cache, std::list<RegionPlan>::iterator plan) noexcept {
  destroy(stream_cache, plan);
  count_region(RegionEvent::kDropped);
}

bool RegionCache::reclaim() noexcept {
  if (reclaim_idle()) return true;
  for (Lease* lease = innermost; lease != nullptr; lease = lease->outer_) {
    if (&lease->cache_ == this && lease->evict()) return true;
  }
  return false;
}

bool RegionCache::reclaim_idle() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_lock<std::mutex> acquired;
  StreamCache* found = nullptr;
  for (const auto& [stream, stream_cache] : stream_caches_) {
    bool held_by_this_thread = false;
    for (const Lease* h = innermost; h != nullptr; h = h->outer_)
      held_by_this_thread = held_by_this_thread || h->stream_cache_ == stream_cache;
    if (held_by_this_thread) continue;
    std::unique_lock<std::mutex> trial(stream_cache->mutex, std::try_to_lock);
    if (!trial.owns_lock() || (stream_cache->plans.empty() && stream_cache->arena == nullptr)) continue;
    if (found != nullptr && !stream_cache->plans.empty() &&
        (found->plans.empty() || found->plans.back().used <= stream_cache->plans.back().used)) {
      continue;
    }
    found = stream_cache.get();
    acquired = std::move(trial);
  }
  if (found == nullptr) return false;
  if (!found->plans.empty()) evict(*found, std::prev(found->plans.end()));
  if (found->plans.empty()) found->arena.reset();
  return true;
}

void RegionCache::release(void* stream) noexcept {
  std::shared_ptr<StreamCache> stream_cache;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = stream_caches_.find(stream);
    if (found == stream_caches_.end()) return;
    stream_cache = std::move(found->second);
    stream_caches_.erase(found);
  }
  const std::lock_guard<std::mutex> lock(stream_cache->mutex);
  while (!stream_cache->plans.empty()) destroy(*stream_cache, stream_cache->plans.begin());
  stream_cache->arena.reset();
}

void RegionCache::forget(const Region& region) noexcept {
  std::vector<std::shared_ptr<StreamCache>> stream_caches;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [stream, stream_cache] : stream_caches_) stream_caches.push_back(stream_cache);
  }
  for (const auto& stream_cache : stream_caches) {
    const std::lock_guard<std::mutex> lock(stream_cache->mutex);
    for (auto at = stream_cache->plans.begin(); at != stream_cache->plans.end();) {
      const auto plan = at++;
      if (plan->region == &region) destroy(*stream_cache, plan);
    }
    if (stream_cache->plans.empty()) stream_cache->arena.reset();
  }
}

}  // namespace graphopt::provider
