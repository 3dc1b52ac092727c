// The times of a session's nodes on the device, for the runtime's profile.
//
// While a profile is recorded, regions run launch by launch, because a captured graph has no times for its nodes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "runtime/abi/ort_ep.h"

namespace graphopt::provider {

// Thread-safe. The device must be current (gpu::OnDevice).
class Profile {
 public:
  Profile(const abi::OrtApi24* api, gpu::Device& device) : api_(api), device_(device) {}
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // `start`: the current time in nanoseconds since the start of the runtime's profile.
  void start(int64_t start);
  // Waits for the device and adds one event for each node to the runtime's profile.
  void end(abi::OrtProfilingEventsContainer* events);
  bool is_active() const { return active_; }

 private:
  friend class NodeTimer;
  struct TimedNode {
    std::string name, op, parent;
    void *begin, *end;  // events of the device
  };
  struct Time {
    std::string name, op, parent;
    int64_t timestamp,
        duration;  // microseconds; the timestamp counts from the start of the runtime's profile
  };

  void* take_event();
  void add(TimedNode node);
  void resolve_locked();

  const abi::OrtApi24* api_;
  gpu::Device& device_;
  std::atomic<bool> active_{false};
  std::mutex mutex_;
  void* base_ = nullptr;           // device event from which times are measured
  int64_t base_microseconds_ = 0;  // when it was recorded, since the start of the runtime's profile
  std::vector<void*> free_;        // events
  std::vector<TimedNode> pending_;
  std::vector<Time> times_;
};

// Measures the time of the work that is enqueued between its creation and `finish`, if a profile is recorded.
class NodeTimer {
 public:
  // `parent`: the node of the runtime that the work belongs to.
  NodeTimer(Profile& profile, const std::string& name, const std::string& op, const std::string& parent,
            void* stream);
  ~NodeTimer();
  NodeTimer(const NodeTimer&) = delete;
  NodeTimer& operator=(const NodeTimer&) = delete;

  void finish();

 private:
  Profile* profile_;  // null if no profile is recorded, and after `finish`
  void* stream_;
  Profile::TimedNode node_;
};

// The part of the session's provider that kernels of single nodes access.
struct ProfiledEp : abi::OrtEp {
  std::shared_ptr<Profile> profile;
};

// Creates the object through which the runtime starts and ends the profile.
abi::OrtEpProfilerImpl* create_profiler(const abi::OrtApi24* api, gpu::Device& device,
                                        std::shared_ptr<Profile> profile);

}  // namespace graphopt::provider
