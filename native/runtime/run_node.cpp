#include "runtime/run_node.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <vector>

#include "device/libraries/libraries.h"
#include "device/node_scope.h"
#include "device/program.h"
#include "device/stream_context.h"

namespace graphopt::runtime {
namespace {

using abi::Context;

void read_inputs(const BoundKernel& bound, const Context& context, Place place, Tensors& inputs) {
  inputs.resize(bound.inputs);
  for (size_t i = 0; i < bound.inputs; ++i) {
    const abi::OrtValue* value = context.input(i);
    if (value == nullptr) continue;
    context.read(value, inputs[i]);
    inputs[i].place = place;
  }
  for (const size_t i : bound.host_inputs) {
    if (i < bound.inputs) inputs[i].place = Place::kHost;
  }
}

// Returns the contents of the host inputs, on which plans of device kernels depend. CPU kernels have none.
std::vector<unsigned char> host_values(const std::vector<size_t>& host_inputs, const Tensors& inputs) {
  std::vector<unsigned char> values;
  for (const size_t i : host_inputs) {
    if (i >= inputs.size() || !inputs[i].present()) continue;
    const auto* bytes = inputs[i].as<const unsigned char>();
    values.insert(values.end(), bytes, bytes + inputs[i].bytes());
  }
  return values;
}

bool same_types_and_shapes(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return x.type == y.type && x.shape == y.shape; });
}

// Returns the common alignment of the tensors on the device, in bytes.
size_t alignment_of(const Tensors& tensors) {
  uintptr_t bitwise_or = 0;
  for (const Tensor& t : tensors) {
    if (t.place == Place::kDevice) bitwise_or |= reinterpret_cast<uintptr_t>(t.data);
  }
  return gpu::alignment_of(bitwise_or);
}

void make_outputs(const Context& context, bool on_gpu, Call& call) {
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    Tensor& y = call.outputs[i];
    y.data = context.output(i, y.shape, on_gpu && y.place == Place::kDevice);
  }
}

// Allocates the workspace and runs the call. `host`: the kernel runs on the CPU, or on a device that uses host
// memory. Returns false if the call must be planned again, with another implementation.
bool run_in_workspace(const BoundKernel& bound, const Context& context, const abi::HostMemory& memory,
                      bool host, Call& call) {
  std::optional<abi::DeviceScratch> on_device;
  std::optional<abi::HostScratch> on_host;
  if (call.workspace_bytes > 0) {
    if (host) {
      call.workspace = on_host.emplace(context, memory, call.workspace_bytes).data();
    } else {
      try {
        call.workspace = on_device.emplace(context, call.workspace_bytes).data();
      } catch (const std::exception&) {
        const auto* kernel = dynamic_cast<const gpu::DeviceKernel*>(bound.kernel.get());
        if (kernel == nullptr || !kernel->avoid_workspace(call)) throw;
        return false;
      }
    }
  }
  return bound.kernel->run(call);
}

// Runs a kernel's counter (Kernel::counter) and owns its results, which the kernel reads.
class Counted {
 public:
  // Runs the counter, waits for the counts and appends its outputs to `inputs`.
  Counted(const Kernel& counter, const Context& context, void* stream, size_t alignment, Tensors& inputs) {
    gpu::Device& device = *counter.device();
    Call call;
    call.inputs.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) call.inputs[i] = inputs[i];
    call.outputs.resize(kOutputs);
    call.alignment = alignment;
    call.stream = stream;
    counter.plan(call);
    size_t bytes = gpu_bytes(call.workspace_bytes);
    for (const Tensor& t : call.outputs) bytes += gpu_bytes(t.bytes());
    scratch_.emplace(context, bytes);
    auto* next = static_cast<char*>(scratch_->data());
    for (Tensor& t : call.outputs) {
      t.data = next;
      next += gpu_bytes(t.bytes());
    }
    call.workspace = next;
    if (!counter.run(call)) throw Error("counting has failed");
    Tensor& counts = call.outputs[0];
    host_.resize(static_cast<size_t>(counts.shape.elements()));
    device.copy(host_.data(), counts.data, counts.bytes(), stream);
    device.synchronize(stream);
    counts.data = host_.data();
    counts.place = Place::kHost;
    const size_t first = inputs.size();
    inputs.resize(first + kOutputs);
    for (size_t i = 0; i < kOutputs; ++i) inputs[first + i] = call.outputs[i];
  }

 private:
  static constexpr size_t kOutputs = 2;
  static size_t gpu_bytes(size_t bytes) {
    return (bytes + gpu::kMaxAlignment - 1) / gpu::kMaxAlignment * gpu::kMaxAlignment;
  }

  std::vector<int64_t> host_;
  std::optional<abi::DeviceScratch> scratch_;
};

}  // namespace

void run_node(const BoundKernel& bound, const Context& context, const abi::HostMemory& memory) {
  const Kernel& kernel = *bound.kernel;
  gpu::Device* device = kernel.device();
  std::optional<gpu::NodeScope> scope;
  if (device != nullptr) scope.emplace(*device, bound.node);
  Tensors inputs;
  read_inputs(bound, context, device != nullptr ? Place::kDevice : Place::kHost, inputs);
  const size_t alignment = alignment_of(inputs);
  void* stream = device != nullptr ? context.gpu_stream() : nullptr;
  std::optional<Counted> counted;  // kept until the kernel that reads it is enqueued
  std::vector<size_t> host_inputs = bound.host_inputs;
  if (const Kernel* counter = kernel.counter()) {
    host_inputs.push_back(inputs.size());
    counted.emplace(*counter, context, stream, alignment, inputs);
  }
  const uint64_t generation = gpu::library_generation();
  const uint64_t stream_number = device != nullptr ? gpu::StreamContext::of(*device, stream)->number() : 0;
  std::vector<unsigned char> values = host_values(host_inputs, inputs);
  SessionParallel parallel(*bound.workers, [&](void (*task)(void*, size_t), size_t total, void* user) {
    context.parallel_for(task, total, user);
  });

  std::unique_ptr<PlannedCall> planned = bound.plans->take([&](const PlannedCall& known) {
    return known.alignment == alignment && known.generation == generation &&
           known.stream_number == stream_number && known.workers == parallel.workers() &&
           same_types_and_shapes(known.call.inputs, inputs) && known.host_values == values;
  });
  const bool is_new = planned == nullptr;
  if (is_new) planned = std::make_unique<PlannedCall>();
  Call& call = planned->call;
  call.inputs.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_new) {
      call.inputs[i] = inputs[i];
    } else {
      call.inputs[i].data = inputs[i].data;
    }
  }
  if (device == nullptr) call.parallel = &parallel;
  if (is_new) {
    planned->alignment = alignment;
    planned->generation = generation;
    planned->stream_number = stream_number;
    planned->workers = parallel.workers();
    planned->host_values = std::move(values);
    call.outputs.resize(bound.outputs);
    call.alignment = alignment;
    call.stream = stream;
    call.only = bound.only;
    call.libraries = bound.libraries.get();
    call.measured = bound.measured.get();
    kernel.plan(call);
  }
  make_outputs(context, device != nullptr && device->backend() != gpu::Backend::kHost, call);
  // Output memory of the caller may be less aligned than planned.
  const size_t outputs = alignment_of(call.outputs);
  if (outputs < call.alignment) {
    call.alignment = outputs;
    kernel.plan(call);
  }
  // ONNX Runtime's CPU provider has no streams, and its KernelContext_GetScratchBuffer crashes before 1.23.
  const bool host = device == nullptr || (device->backend() == gpu::Backend::kHost && stream == nullptr);
  while (!run_in_workspace(bound, context, memory, host, call)) kernel.plan(call);
  if (scope) scope->finish(stream);
  // A plan with a failed library may fail again and is therefore not cached.
  if (call.failed == 0) bound.plans->put(std::move(planned));
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
    text += " ?";  // do not hide the failure that is being reported
  }
  return text;
}

}  // namespace graphopt::runtime
