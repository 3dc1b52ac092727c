#include "device/stream_context.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <iterator>
#include <utility>

namespace graphopt::gpu {
namespace {

// Never freed: sessions may outlive static objects.
struct Contexts {
  std::mutex mutex;
  std::map<std::pair<const Device*, void*>, std::shared_ptr<StreamContext>> all;
  std::vector<std::unique_ptr<StreamContext>> idle;

  std::unique_ptr<StreamContext> take_idle(const Device& device) {
    const auto found = std::find_if(idle.rbegin(), idle.rend(),
                                    [&](const auto& context) { return &context->device() == &device; });
    if (found == idle.rend()) return nullptr;
    std::unique_ptr<StreamContext> taken = std::move(*found);
    idle.erase(std::prev(found.base()));
    return taken;
  }
};
Contexts& contexts() {
  static auto& instance = *new Contexts;
  return instance;
}

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int captures = 0, blockers = 0;  // open captures; NoCaptures objects
};
Gate& gate() {
  static auto& instance = *new Gate;
  return instance;
}

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

NoCaptures::NoCaptures() {
  std::unique_lock<std::mutex> lock(gate().mutex);
  ++gate().blockers;
  gate().changed.wait(lock, [] { return gate().captures == 0; });
}

NoCaptures::~NoCaptures() {
  const std::lock_guard<std::mutex> lock(gate().mutex);
  --gate().blockers;
}

StreamContext::StreamContext(Device& device, void* stream, bool owns)
    : device_(device), stream_(stream), owns_(owns), number_(next_number()) {}

std::shared_ptr<StreamContext> StreamContext::create(Device& device) {
  std::unique_ptr<StreamContext> next;
  {
    const std::lock_guard<std::mutex> lock(contexts().mutex);
    next = contexts().take_idle(device);
  }
  if (next == nullptr) {
    next.reset(new StreamContext(device, device.create_stream(), true));
  } else {
    next->number_ = next_number();
  }
  const std::shared_ptr<StreamContext> made(next.release(), recycle);
  // A destroyed stream of another library may have had this address.
  std::shared_ptr<StreamContext> other = made;
  {
    const std::lock_guard<std::mutex> lock(contexts().mutex);
    contexts().all[{&device, made->stream_}].swap(other);
  }
  if (other != nullptr) other->close();
  return made;
}

void StreamContext::recycle(StreamContext* context) noexcept {
  std::unique_ptr<StreamContext> owned(context);
  for (auto at = owned->handles_.begin(); at != owned->handles_.end();) {
    const auto slot = at++;
    if (slot->second.handle != nullptr) {
      slot->second.handle->clear_problems();
    } else {
      owned->handles_.erase(slot);  // the next session tries again
    }
  }
  const std::lock_guard<std::mutex> lock(contexts().mutex);
  contexts().idle.push_back(std::move(owned));
}

bool StreamContext::destroy_idle(const Device& device) noexcept {
  bool any = false;
  for (;;) {
    std::unique_ptr<StreamContext> taken;
    {
      const std::lock_guard<std::mutex> lock(contexts().mutex);
      taken = contexts().take_idle(device);
    }
    if (taken == nullptr) return any;
    const NoCaptures none;
    taken.reset();
    any = true;
  }
}

std::shared_ptr<StreamContext> StreamContext::of(Device& device, void* stream) {
  const std::lock_guard<std::mutex> lock(contexts().mutex);
  auto& slot = contexts().all[{&device, stream}];
  if (slot == nullptr) slot.reset(new StreamContext(device, stream, false));
  return slot;
}

std::vector<std::shared_ptr<StreamContext>> StreamContext::all() {
  std::vector<std::shared_ptr<StreamContext>> found;
  const std::lock_guard<std::mutex> lock(contexts().mutex);
  for (const auto& [key, context] : contexts().all) found.push_back(context);
  return found;
}

void StreamContext::synchronize_all(Device& device) {
  for (const auto& context : all()) {
    if (&context->device_ == &device && context->owns_) context->synchronize();
  }
}

StreamContext::~StreamContext() {
  try {
    const OnDevice on(device_);
    handles_.clear();
    if (owns_) device_.destroy_stream(stream_);
  } catch (const std::exception&) {  // the device has failed
  }
}

void StreamContext::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return captured_ != Captured::kPending; });
  if (captured_ == Captured::kYes) return;
  ++waiting_;
  lock.unlock();
  const auto leave = [&] {
    lock.lock();
    if (--waiting_ == 0) changed_.notify_all();
  };
  try {
    device_.synchronize(stream_);
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

bool StreamContext::is_done(void* event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return captured_ == Captured::kYes || device_.is_done(event);
}

void StreamContext::close() {
  std::shared_ptr<StreamContext> self;
  {
    const std::lock_guard<std::mutex> lock(contexts().mutex);
    const auto found = contexts().all.find({&device_, stream_});
    if (found != contexts().all.end() && found->second.get() == this) {
      self = std::move(found->second);
      contexts().all.erase(found);
    }
  }
  std::vector<std::weak_ptr<GraphOwner>> graphs;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    graphs.swap(graphs_);
  }
  for (const auto& weak : graphs) {
    if (const auto owner = weak.lock()) owner->release(stream_);
  }
}

void StreamContext::attach(std::weak_ptr<GraphOwner> owner) {
  const std::lock_guard<std::mutex> lock(mutex_);
  graphs_.erase(std::remove_if(graphs_.begin(), graphs_.end(), [](const auto& o) { return o.expired(); }),
                graphs_.end());
  graphs_.push_back(std::move(owner));
}

StreamContext::Handle StreamContext::handle(const void* library,
                                            const std::function<std::unique_ptr<VendorHandle>()>& create) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = handles_.find(library);
    if (known != handles_.end()) return {known->second.handle.get(), known->second.why.c_str()};
  }
  if (device_.is_capturing(stream_))
    return {nullptr, "its handle can't be created while the stream is captured"};
  Slot made;
  try {
    const NoCaptures none;
    made.handle = create();
  } catch (const std::exception& e) {
    made.why = e.what();
    std::fprintf(stderr, "graphopt: falling back to built-in kernels on one stream: %s\n", e.what());
  }
  device_.clear_errors();
  const std::lock_guard<std::mutex> lock(mutex_);
  const Slot& slot = handles_.try_emplace(library, std::move(made)).first->second;
  return {slot.handle.get(), slot.why.c_str()};
}

bool StreamContext::can_be_captured() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(handles_.begin(), handles_.end(), [](const auto& slot) {
    return slot.second.handle == nullptr || slot.second.handle->can_be_captured();
  });
}

size_t StreamContext::finish_loading() {
  std::vector<VendorHandle*> handles;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [library, slot] : handles_) {
      if (slot.handle != nullptr) handles.push_back(slot.handle.get());
    }
  }
  size_t count = 0;
  for (VendorHandle* handle : handles) count += handle->finish_loading();
  return count;
}

Capture::Capture(Device& device, void* stream, size_t nodes)
    : device_(device), context_(StreamContext::of(device, stream)) {
  if (!context_->can_be_captured()) {
    why_not_ = "a library that the stream uses can't be captured";
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(gate().mutex);
    if (gate().blockers > 0) {
      why_not_ = "a library is loading";
      return;
    }
    ++gate().captures;
  }
  {
    std::unique_lock<std::mutex> lock(context_->mutex_);
    context_->captured_ = StreamContext::Captured::kPending;
    context_->changed_.wait(lock, [this] { return context_->waiting_ == 0; });
  }
  try {
    device_.synchronize(stream);
    set_captured(StreamContext::Captured::kYes);
    device_.begin_capture(stream);
    if (nodes > 0) device_.limit_capture(nodes);
    open_ = true;
  } catch (...) {
    leave();
    throw;
  }
}

Capture::~Capture() {
  if (why_not_ != nullptr) return;
  if (open_) device_.abandon_capture(context_->stream());
  leave();
}

void Capture::set_captured(StreamContext::Captured captured) noexcept {
  {
    const std::lock_guard<std::mutex> lock(context_->mutex_);
    context_->captured_ = captured;
  }
  context_->changed_.notify_all();
}

void Capture::leave() noexcept {
  set_captured(StreamContext::Captured::kNo);
  const std::lock_guard<std::mutex> lock(gate().mutex);
  if (--gate().captures == 0) gate().changed.notify_all();
}

std::unique_ptr<Graph> Capture::end() {
  open_ = false;
  return device_.end_capture(context_->stream());
}

}  // namespace graphopt::gpu
