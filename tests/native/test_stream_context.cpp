// The objects of a stream, the order of their destruction, and the exclusion of captures.
#include <atomic>
#include <chrono>
#include <thread>

#include "device/stream_context.h"
#include "testing.h"

namespace graphopt::test {
namespace {

using gpu::Capture;
using gpu::StreamContext;

// Deletes a device after its idle contexts.
struct CloseDevice {
  void operator()(gpu::Device* device) const {
    StreamContext::destroy_idle(*device);
    delete device;
  }
};

std::unique_ptr<gpu::Device, CloseDevice> open_device() {
  return std::unique_ptr<gpu::Device, CloseDevice>(gpu::open_host(GRAPHOPT_KERNELS_FOR_TESTS).release());
}

class Handle final : public gpu::VendorHandle {
 public:
  Handle(std::vector<std::string>& ended, std::string name) : ended_(ended), name_(std::move(name)) {}
  ~Handle() override { ended_.push_back(name_); }
  bool can_be_captured() const override { return name_ != "never captured"; }

 private:
  std::vector<std::string>& ended_;
  std::string name_;
};

class Graphs final : public gpu::GraphOwner {
 public:
  explicit Graphs(std::vector<std::string>& ended) : ended_(ended) {}
  void release(void* stream) noexcept override {
    ended_.push_back("graphs");
    stream_ = stream;
  }
  void* stream_ = nullptr;

 private:
  std::vector<std::string>& ended_;
};

TEST_CASE("graphs of a stream end before the handles that they use") {
  std::vector<std::string> ended;  // outlives the handles
  const auto device = open_device();
  const auto graphs = std::make_shared<Graphs>(ended);
  auto context = StreamContext::create(*device);
  void* stream = context->stream();
  int library = 0;
  const auto create = [&] { return std::make_unique<Handle>(ended, "handle"); };
  const auto made = context->handle(&library, create);
  CHECK(made.handle != nullptr);
  CHECK(context->handle(&library, create).handle == made.handle);
  CHECK((StreamContext::of(*device, stream) == context));
  context->attach(graphs);
  {
    const auto gone = std::make_shared<Graphs>(ended);
    context->attach(gone);
  }
  context->close();
  CHECK(graphs->stream_ == stream);
  CHECK(ended == std::vector<std::string>{"graphs"});
  context.reset();
  CHECK(StreamContext::destroy_idle(*device));
  CHECK((ended == std::vector<std::string>{"graphs", "handle"}));
  CHECK(!StreamContext::destroy_idle(*device));
}

TEST_CASE("the next session has the stream and the handles of one that has ended") {
  std::vector<std::string> ended;  // outlives the handles
  const auto device = open_device(), other = open_device();
  int library = 0, broken = 0, calls = 0;
  auto context = StreamContext::create(*device);
  void* const stream = context->stream();
  const auto made = context->handle(&library, [&] { return std::make_unique<Handle>(ended, "handle"); });
  const auto fails = [&]() -> std::unique_ptr<gpu::VendorHandle> {
    ++calls;
    throw std::runtime_error("no room");
  };
  context->handle(&broken, fails);
  context->close();
  const auto beside = StreamContext::create(*device);
  CHECK(beside->stream() != stream);
  context.reset();
  CHECK(StreamContext::create(*other)->stream() != stream);
  const auto again = StreamContext::create(*device);
  CHECK(again->stream() == stream);
  CHECK(again->handle(&library, fails).handle == made.handle);
  CHECK(calls == 1);
  CHECK(again->handle(&broken, fails).handle == nullptr);
  CHECK(calls == 2);
  CHECK(ended.empty());
  again->close();
  beside->close();
}

TEST_CASE("a stream has a new number in another session, and others keep theirs") {
  const auto device = open_device();
  auto first = StreamContext::create(*device);
  const auto other = StreamContext::create(*device);
  void* const stream = first->stream();
  const uint64_t number = first->number(), of_other = other->number();
  CHECK(number != of_other);
  CHECK(StreamContext::of(*device, stream)->number() == number);
  first->close();
  first.reset();
  CHECK(StreamContext::of(*device, other->stream())->number() == of_other);
  const auto again = StreamContext::create(*device);
  CHECK(again->stream() == stream);
  CHECK(again->number() != number);
  CHECK(again->number() != of_other);
  again->close();
  other->close();
}

TEST_CASE("each stream has its own handle") {
  std::vector<std::string> ended;  // outlives the handles
  const auto device = open_device();
  int library = 0;
  auto a = StreamContext::create(*device), b = StreamContext::create(*device);
  const auto named = [&](const char* name) {
    return [&ended, name] { return std::make_unique<Handle>(ended, name); };
  };
  CHECK(a->handle(&library, named("a")).handle != b->handle(&library, named("b")).handle);
  a->close();
  b->close();
}

TEST_CASE("a handle that could not be created stays away from its stream alone") {
  std::vector<std::string> ended;  // outlives the handles
  const auto device = open_device();
  int library = 0, calls = 0;
  const auto a = StreamContext::create(*device), b = StreamContext::create(*device);
  const auto fails = [&]() -> std::unique_ptr<gpu::VendorHandle> {
    ++calls;
    throw std::runtime_error("no room");
  };
  for (int i = 0; i < 2; ++i) {
    const auto none = a->handle(&library, fails);
    CHECK(none.handle == nullptr);
    CHECK(std::string(none.why) == "no room");
  }
  CHECK(calls == 1);
  CHECK(b->handle(&library, [&] { return std::make_unique<Handle>(ended, "b"); }).handle != nullptr);
  a->close();
  b->close();
}

TEST_CASE("no handle is created on a stream that is captured") {
  std::vector<std::string> ended;  // outlives the handles
  const auto device = open_device();
  int library = 0;
  const auto context = StreamContext::create(*device);
  const auto create = [&] { return std::make_unique<Handle>(ended, "handle"); };
  {
    Capture capture(*device, context->stream(), 0);
    CHECK(capture.why_not() == nullptr);
    CHECK(context->handle(&library, create).handle == nullptr);
    CHECK(context->is_done(nullptr));
    CHECK(capture.end() != nullptr);
  }
  CHECK(!device->is_capturing(context->stream()));
  CHECK(context->is_done(nullptr));
  CHECK(context->handle(&library, create).handle != nullptr);
  context->close();
}

TEST_CASE("a stream with a handle that can't be captured is not") {
  std::vector<std::string> ended;  // outlives the handles
  const auto device = open_device();
  int library = 0;
  const auto a = StreamContext::create(*device), b = StreamContext::create(*device);
  a->handle(&library, [&] { return std::make_unique<Handle>(ended, "never captured"); });
  CHECK(Capture(*device, a->stream(), 0).why_not() != nullptr);
  CHECK(Capture(*device, b->stream(), 0).why_not() == nullptr);
  a->close();
  b->close();
}

TEST_CASE("a capture that is not ended is abandoned") {
  const auto device = open_device();
  const auto context = StreamContext::create(*device);
  {
    const Capture capture(*device, context->stream(), 0);
  }
  CHECK(!device->is_capturing(context->stream()));
  context->close();
}

TEST_CASE("captures and what would end them exclude each other") {
  const auto device = open_device();
  const auto context = StreamContext::create(*device);
  {
    const gpu::NoCaptures none;
    CHECK(Capture(*device, context->stream(), 0).why_not() != nullptr);
  }
  std::atomic<bool> entered{false};
  std::thread other;
  {
    Capture capture(*device, context->stream(), 0);
    CHECK(capture.why_not() == nullptr);
    other = std::thread([&] {
      const gpu::NoCaptures none;
      entered = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(!entered);
    CHECK(capture.end() != nullptr);
  }
  other.join();
  CHECK(entered);
  CHECK(Capture(*device, context->stream(), 0).why_not() == nullptr);
  context->close();
}

TEST_CASE("a stream that is captured is not waited for") {
  const auto device = open_device();
  const auto context = StreamContext::create(*device);
  Capture capture(*device, context->stream(), 0);
  std::thread([&] { StreamContext::synchronize_all(*device); }).join();
  CHECK(capture.end() != nullptr);
  context->close();
}

}  // namespace
}  // namespace graphopt::test
