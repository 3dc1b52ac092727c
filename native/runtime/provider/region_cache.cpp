#include "runtime/provider/region_cache.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/provider/region.h"

namespace graphopt::provider {
namespace {

thread_local RegionCache::Held* innermost = nullptr;

// Rounds up, so a somewhat larger shape can reuse the block.
size_t roomy(size_t bytes) { return few_sizes(bytes, size_t{1} << 16, 8); }

}  // namespace

std::shared_ptr<RegionCache> RegionCache::create(std::shared_ptr<SessionMemory> memory) {
  auto cache = std::make_shared<RegionCache>(std::move(memory));
  const auto call = [weak = std::weak_ptr<RegionCache>(cache)](bool (RegionCache::*give_back)() noexcept) {
    const auto self = weak.lock();
    return self != nullptr && (self.get()->*give_back)();
  };
  on_shortage(cache, [call] { return call(&RegionCache::reclaim_idle); });
  cache->memory_->on_shortage([call] { return call(&RegionCache::reclaim); });
  return cache;
}

RegionCache::Held::Held(RegionCache& cache, void* stream) : cache_(cache), outer_(innermost) {
  {
    const std::lock_guard<std::mutex> lock(cache.mutex_);
    auto& slot = cache.lanes_[stream];
    if (slot == nullptr) {
      auto lane = std::make_shared<Lane>();
      lane->stream = stream;
      gpu::StreamContext::of(cache.memory_->pool().device(), stream)->attach(cache.weak_from_this());
      slot = std::move(lane);
    }
    lane_ = slot;
  }
  lock_ = std::unique_lock<std::mutex>(lane_->mutex);
  innermost = this;
}

RegionCache::Held::~Held() { innermost = outer_; }

RegionPlan* RegionCache::Held::find(const Region& region, const std::vector<Shape>& shapes,
                                    size_t alignment) {
  auto& plans = lane_->plans;
  for (auto at = plans.begin(); at != plans.end(); ++at) {
    if (at->region != &region || at->alignment != alignment || at->shapes != shapes) continue;
    plans.splice(plans.begin(), plans, at);
    at->used = ++cache_.clock_;
    return in_use_ = &*at;
  }
  return nullptr;
}

RegionPlan& RegionCache::Held::add(RegionPlan plan) {
  limit(*plan.region, 2 * kMostPlans - 1);
  plan.used = ++cache_.clock_;
  in_use_ = &lane_->plans.emplace_front(std::move(plan));
  return *in_use_;
}

void RegionCache::Held::limit(const Region& region, size_t most) {
  auto& plans = lane_->plans;
  size_t count = 0;
  for (auto at = plans.begin(); at != plans.end();) {
    const auto plan = at++;
    if (plan->region == &region && ++count > most) cache_.evict(*lane_, plan);
  }
}

void RegionCache::Held::drop(const RegionPlan& plan) {
  auto& plans = lane_->plans;
  if (in_use_ == &plan) in_use_ = nullptr;
  const auto at = std::find_if(plans.begin(), plans.end(), [&](const RegionPlan& p) { return &p == &plan; });
  if (at != plans.end()) cache_.destroy(*lane_, at);
}

bool RegionCache::Held::give_back() noexcept {
  if (!gives_back_) return false;
  auto& plans = lane_->plans;
  const auto last =
      std::find_if(plans.rbegin(), plans.rend(), [this](const RegionPlan& p) { return &p != in_use_; });
  if (last != plans.rend()) {
    cache_.evict(*lane_, std::prev(last.base()));
    return true;
  }
  const bool recorded =
      in_use_ != nullptr && (!in_use_->captured.empty() || in_use_->staged.graph != nullptr);
  if (!recorded && lane_->arena == nullptr) return false;
  if (recorded) cache_.forget_recordings(*lane_, *in_use_);
  lane_->arena.reset();
  return true;
}

const std::shared_ptr<Block>& RegionCache::Held::arena(size_t bytes) {
  std::shared_ptr<Block>& arena = lane_->arena;
  if (bytes == 0 || (arena != nullptr && arena->bytes() >= bytes)) return arena;
  arena.reset();
  const auto allocate = [&](size_t wanted) {
    arena = std::make_shared<Block>(cache_.memory_, wanted, lane_->stream, gpu::Holder::kArenas);
  };
  gives_back_ = false;  // the stream cache is worth more than spare bytes
  try {
    allocate(roomy(bytes));
    gives_back_ = true;
  } catch (const gpu::OutOfMemory&) {
    gives_back_ = true;
    allocate(bytes);
  }
  cache_.limit_arenas(*lane_, in_use_);
  return arena;
}

void RegionCache::limit_arenas(Lane& lane, const RegionPlan* in_use) {
  std::set<const Block*> arenas;
  size_t bytes = 0;
  const auto count = [&](const Captured& captured) {
    const Block* arena = captured.arena.get();
    if (arena != nullptr && arenas.insert(arena).second) bytes += arena->bytes();
  };
  for (RegionPlan& plan : lane.plans) {  // most recently used first
    if (&plan == in_use) continue;
    for (const Captured& captured : plan.captured) count(captured);
    count(plan.staged);
    if (bytes <= lane.arena->bytes()) continue;
    plan.own -= static_cast<int>(plan.captured.size());
    forget_recordings(lane, plan);
  }
}

void RegionCache::forget_recordings(const Lane& lane, RegionPlan& plan) noexcept {
  // Clear the plan's graphs even if the device fails: the caller repeats this until nothing is left to free.
  std::vector<Captured> captured;
  captured.swap(plan.captured);
  Captured staged;
  std::swap(staged, plan.staged);
  if (captured.empty() && staged.graph == nullptr) return;
  try {
    gpu::Device& device = memory_->pool().device();
    const gpu::OnDevice on(device);
    device.synchronize(lane.stream);  // some drivers cannot destroy a graph while it runs
    captured.clear();
    staged = {};
  } catch (const std::exception&) {  // a broken device
  }
}

void RegionCache::destroy(Lane& lane, std::list<RegionPlan>::iterator plan) noexcept {
  forget_recordings(lane, *plan);
  lane.plans.erase(plan);
}

void RegionCache::evict(Lane& lane, std::list<RegionPlan>::iterator plan) noexcept {
  destroy(lane, plan);
  count_region(RegionEvent::kDropped);
}

bool RegionCache::reclaim() noexcept {
  if (reclaim_idle()) return true;
  for (Held* held = innermost; held != nullptr; held = held->outer_) {
    if (&held->cache_ == this && held->give_back()) return true;
  }
  return false;
}

bool RegionCache::reclaim_idle() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_lock<std::mutex> held;
  Lane* found = nullptr;
  for (const auto& [stream, lane] : lanes_) {
    bool ours = false;
    for (const Held* h = innermost; h != nullptr; h = h->outer_) ours = ours || h->lane_ == lane;
    if (ours) continue;
    std::unique_lock<std::mutex> trial(lane->mutex, std::try_to_lock);
    if (!trial.owns_lock() || (lane->plans.empty() && lane->arena == nullptr)) continue;
    if (found != nullptr && !lane->plans.empty() &&
        (found->plans.empty() || found->plans.back().used <= lane->plans.back().used)) {
      continue;
    }
    found = lane.get();
    held = std::move(trial);
  }
  if (found == nullptr) return false;
  if (!found->plans.empty()) evict(*found, std::prev(found->plans.end()));
  if (found->plans.empty()) found->arena.reset();
  return true;
}

void RegionCache::release(void* stream) noexcept {
  std::shared_ptr<Lane> lane;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = lanes_.find(stream);
    if (found == lanes_.end()) return;
    lane = std::move(found->second);
    lanes_.erase(found);
  }
  const std::lock_guard<std::mutex> lock(lane->mutex);
  while (!lane->plans.empty()) destroy(*lane, lane->plans.begin());
  lane->arena.reset();
}

void RegionCache::forget(const Region& region) noexcept {
  std::vector<std::shared_ptr<Lane>> lanes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [stream, lane] : lanes_) lanes.push_back(lane);
  }
  for (const auto& lane : lanes) {
    const std::lock_guard<std::mutex> lock(lane->mutex);
    for (auto at = lane->plans.begin(); at != lane->plans.end();) {
      const auto plan = at++;
      if (plan->region == &region) destroy(*lane, plan);
    }
    if (lane->plans.empty()) lane->arena.reset();
  }
}

}  // namespace graphopt::provider
