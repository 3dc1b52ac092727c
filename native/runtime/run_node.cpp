#include "runtime/run_node.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "device/cpu/parallel.h"
#include "device/node_scope.h"

namespace graphopt::runtime {
namespace {

using abi::Context;

// The processors that this process may use, an upper bound on the session's intra-op threads, whose number
// the runtime does not tell.
size_t processor_count() {
  static const size_t count = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
      return std::max<size_t>(1, std::thread::hardware_concurrency());
    return static_cast<size_t>(CPU_COUNT(&set));
  }();
  return count;
}

class SessionParallel final : public cpu::Parallel {
 public:
  explicit SessionParallel(const Context& context) : context_(context) {}
  size_t lanes() const override { return processor_count(); }

 protected:
  void run_lanes(void (*fn)(void* user, size_t lane), void* user) override {
    // An exception must not leave a task: the pool is the runtime's.
    struct Call {
      void (*fn)(void*, size_t);
      void* user;
      std::mutex mutex;
      std::exception_ptr failure;
    } call{fn, user, {}, nullptr};
    context_.parallel_for(
        [](void* raw, size_t lane) {
          Call& c = *static_cast<Call*>(raw);
          try {
            c.fn(c.user, lane);
          } catch (...) {
            const std::lock_guard<std::mutex> lock(c.mutex);
            if (!c.failure) c.failure = std::current_exception();
          }
        },
        lanes(), &call);
    if (call.failure) std::rethrow_exception(call.failure);
  }

 private:
  const Context& context_;
};

void read_inputs(const BoundKernel& bound, const Context& context, Call& call, Place place) {
  call.inputs.resize(bound.inputs);
  for (size_t i = 0; i < bound.inputs; ++i) {
    const abi::OrtValue* value = context.input(i);
    if (value == nullptr) continue;
    context.read(value, call.inputs[i]);
    call.inputs[i].place = place;
  }
  for (const size_t i : bound.host_inputs) {
    if (i < bound.inputs) call.inputs[i].place = Place::kHost;
  }
}

// A power of two, at most 256.
size_t alignment_of(const Tensors& tensors) {
  uintptr_t bits = 256;
  for (const Tensor& t : tensors) {
    if (t.place == Place::kDevice) bits |= reinterpret_cast<uintptr_t>(t.data);
  }
  return bits & (~bits + 1);
}

void make_outputs(const Context& context, Call& call) {
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    call.outputs[i].data = context.output(i, call.outputs[i].shape);
  }
}

// `host`: the kernel computes on the CPU, or on a device whose memory is the host's.
bool run_in_workspace(const BoundKernel& bound, const Context& context, const abi::HostMemory& memory,
                      bool host, Call& call) {
  std::optional<abi::DeviceScratch> on_device;
  std::optional<abi::HostScratch> on_host;
  if (call.workspace_bytes > 0) {
    if (host) {
      call.workspace = on_host.emplace(context, memory, call.workspace_bytes).data();
    } else {
      call.workspace = on_device.emplace(context, call.workspace_bytes).data();
    }
  }
  return bound.kernel->run(call);
}

void run_on_device(const BoundKernel& bound, const Context& context, const abi::HostMemory& memory,
                   gpu::Device& device) {
  gpu::NodeScope scope(device, bound.node);
  Call call;
  read_inputs(bound, context, call, Place::kDevice);
  call.outputs.resize(bound.outputs);
  call.alignment = alignment_of(call.inputs);
  call.stream = context.gpu_stream();
  call.only = bound.only;
  call.libraries = bound.libraries.get();
  bound.kernel->plan(call);
  make_outputs(context, call);
  // Memory that a caller brings may be less aligned than what we thought.
  const size_t outputs = alignment_of(call.outputs);
  if (outputs < call.alignment) {
    call.alignment = outputs;
    bound.kernel->plan(call);
  }
  // On the CPU provider, where there are no streams, the runtime's scratch memory crashes old versions.
  const bool host = device.backend() == gpu::Backend::kHost && call.stream == nullptr;
  while (!run_in_workspace(bound, context, memory, host, call)) bound.kernel->plan(call);
  scope.finish(call.stream);
}

}  // namespace

void run_node(const BoundKernel& bound, const Context& context, const abi::HostMemory& memory) {
  if (gpu::Device* device = bound.kernel->device()) {
    run_on_device(bound, context, memory, *device);
    return;
  }
  Call call;
  read_inputs(bound, context, call, Place::kHost);
  call.outputs.resize(bound.outputs);
  SessionParallel parallel(context);
  call.parallel = &parallel;
  bound.kernel->plan(call);
  make_outputs(context, call);
  while (!run_in_workspace(bound, context, memory, true, call)) bound.kernel->plan(call);
}

std::string input_shapes(const Context& context) {
  std::string text;
  try {
    const size_t n = context.input_count();
    for (size_t i = 0; i < n; ++i) {
      const abi::OrtValue* value = context.input(i);
      Tensor t;
      if (value != nullptr) context.read(value, t);
      text += value == nullptr ? " -" : std::string(" ") + element_type_name(t.type) + t.shape.text();
    }
  } catch (const std::exception&) {
    text += " ?";  // the failure that is being reported matters more
  }
  return text;
}

}  // namespace graphopt::runtime
