#include "runtime/provider/profile.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "device/stream_context.h"
#include "runtime/abi/error.h"
#include "runtime/provider/guarded.h"

namespace graphopt::provider {
namespace {

// When the device events of this many nodes are pending, their times are read and the events are used again.
constexpr size_t kMaxPending = 4096;

struct Profiler final : abi::OrtEpProfilerImpl {
  const abi::OrtApi24* api;
  gpu::Device& device;
  std::shared_ptr<Profile> profile;

  Profiler(const abi::OrtApi24* a, gpu::Device& d, std::shared_ptr<Profile> p)
      : OrtEpProfilerImpl{}, api(a), device(d), profile(std::move(p)) {
    version = abi::kNewestEpApiRevision;
    Release = [](OrtEpProfilerImpl* p) { delete static_cast<Profiler*>(p); };
    StartProfiling = [](OrtEpProfilerImpl* p, int64_t start) {
      auto* self = static_cast<Profiler*>(p);
      return guarded(self->api, {"graphopt: profile"}, [&] {
        const gpu::OnDevice on(self->device);
        self->profile->start(start);
      });
    };
    EndProfiling = [](OrtEpProfilerImpl* p, abi::OrtProfilingEventsContainer* events) {
      auto* self = static_cast<Profiler*>(p);
      return guarded(self->api, {"graphopt: profile"}, [&] {
        const gpu::OnDevice on(self->device);
        self->profile->end(events);
      });
    };
  }
};

}  // namespace

Profile::~Profile() {
  try {
    const gpu::OnDevice on(device_);
    for (const TimedNode& node : pending_) {
      device_.destroy_event(node.begin);
      device_.destroy_event(node.end);
    }
    for (void* event : free_) device_.destroy_event(event);
    if (base_ != nullptr) device_.destroy_event(base_);
  } catch (const std::exception&) {  // a broken device
  }
}

void Profile::start(int64_t start) {
  using Clock = std::chrono::steady_clock;
  const auto called = Clock::now();
  const gpu::WorkStream stream(device_);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (base_ == nullptr) base_ = device_.create_timing_event();
  device_.record(base_, stream.get());
  stream.synchronize();
  const std::chrono::nanoseconds since = Clock::now() - called;
  base_microseconds_ = (start + since.count()) / 1000;
  active_ = true;
}

void Profile::end(abi::OrtProfilingEventsContainer* events) {
  active_ = false;
  const std::lock_guard<std::mutex> lock(mutex_);
  resolve_locked();
  const abi::OrtEpApi* ep = abi::GetEpApi(api_);
  const char* const keys[] = {"op_name", "parent_name"};
  for (const Time& time : times_) {
    const std::string parent = time.parent + "_kernel_time";  // the name of the runtime's event
    const char* const values[] = {time.op.c_str(), parent.c_str()};
    abi::OrtProfilingEvent* raw = nullptr;
    abi::check(api_,
               abi::CreateProfilingEvent(ep, abi::ProfilingCategory::kKernel, getpid(), 0, time.name.c_str(),
                                         time.timestamp, time.duration, keys, values, std::size(keys), &raw));
    const auto event = abi::own<abi::ReleaseProfilingEvent>(ep, raw);
    abi::check(api_, abi::ProfilingEventsContainer_AddEvents(ep, events, &raw, 1));
  }
  times_.clear();
}

void* Profile::take_event() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      void* event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  return device_.create_timing_event();
}

void Profile::add(TimedNode node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.push_back(std::move(node));
  if (pending_.size() >= kMaxPending) resolve_locked();
}

// Waits for the device and reads the times of pending nodes.
void Profile::resolve_locked() {
  gpu::StreamContext::synchronize_all(device_);
  for (TimedNode& node : pending_) {
    const double begin = device_.microseconds(base_, node.begin);
    const double duration = device_.microseconds(node.begin, node.end);
    times_.push_back({std::move(node.name), std::move(node.op), std::move(node.parent),
                      base_microseconds_ + std::llround(begin), std::llround(duration)});
    free_.push_back(node.begin);
    free_.push_back(node.end);
  }
  pending_.clear();
}

NodeTimer::NodeTimer(Profile& profile, const std::string& name, const std::string& op,
                     const std::string& parent, void* stream)
    : profile_(profile.is_active() ? &profile : nullptr), stream_(stream) {
  if (profile_ == nullptr) return;
  node_ = {name, op, parent, profile.take_event(), profile.take_event()};
  profile.device_.record(node_.begin, stream);
}

NodeTimer::~NodeTimer() {
  if (profile_ == nullptr) return;
  profile_->device_.destroy_event(node_.begin);
  profile_->device_.destroy_event(node_.end);
}

void NodeTimer::finish() {
  if (profile_ == nullptr) return;
  profile_->device_.record(node_.end, stream_);
  std::exchange(profile_, nullptr)->add(std::move(node_));
}

abi::OrtEpProfilerImpl* create_profiler(const abi::OrtApi24* api, gpu::Device& device,
                                        std::shared_ptr<Profile> profile) {
  return new Profiler(api, device, std::move(profile));
}

}  // namespace graphopt::provider
