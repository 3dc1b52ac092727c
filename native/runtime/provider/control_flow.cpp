#include "runtime/provider/control_flow.h"

#include <vector>

#include "operators/movement/movement/op.h"
#include "runtime/abi/error.h"
#include "runtime/abi/kernel.h"
#include "runtime/provider/guarded.h"
#include "runtime/provider/memory.h"

namespace graphopt::provider {
namespace {

using abi::OrtApi24;
using abi::OrtStatus;
using abi::OrtValue;

// Concatenates the outputs of the iterations of a Loop.
struct LoopHelper final : abi::OrtLoopKernelHelper {
  const OrtApi24* api;
  gpu::Device& device;

  LoopHelper(const OrtApi24* a, gpu::Device& d) : OrtLoopKernelHelper{}, api(a), device(d) {
    version = abi::kEpApiRevision;
    Release = [](OrtLoopKernelHelper* p) { delete static_cast<LoopHelper*>(p); };
    ConcatOutput = [](OrtLoopKernelHelper* p, void* stream, const OrtValue* const* parts, size_t count,
                      void* output, size_t bytes) {
      const LoopHelper& self = *static_cast<LoopHelper*>(p);
      return guarded(self.api, {"outputs of Loop"},
                     [&] { self.concatenate(stream, parts, count, output, bytes); });
    };
  }

  void concatenate(void* stream, const OrtValue* const* parts, size_t count, void* output,
                   size_t bytes) const {
    const gpu::OnDevice on(device);
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      size_t size = 0;
      void* data = nullptr;
      abi::check(api, abi::GetTensorSizeInBytes(api, parts[i], &size));
      abi::check(api, abi::GetTensorMutableData(api, const_cast<OrtValue*>(parts[i]), &data));
      if (size > bytes - at) throw Error("the iterations' outputs have different sizes");
      if (size > 0) device.copy(static_cast<char*>(output) + at, data, size, stream);
      at += size;
    }
    if (at != bytes) throw Error("the iterations' outputs have different sizes");
  }
};

// Transposes Scan inputs and outputs with a scan axis other than 0.
struct ScanHelper final : abi::OrtScanKernelHelper {
  const OrtApi24* api;
  gpu::Device& device;

  ScanHelper(const OrtApi24* a, gpu::Device& d) : OrtScanKernelHelper{}, api(a), device(d) {
    version = abi::kEpApiRevision;
    Release = [](OrtScanKernelHelper* p) { delete static_cast<ScanHelper*>(p); };
    Transpose = [](OrtScanKernelHelper* p, const size_t* permutation, size_t rank, const OrtValue* input,
                   abi::OrtSyncStream* stream, OrtValue* output) {
      const ScanHelper& self = *static_cast<ScanHelper*>(p);
      return guarded(self.api, {"transposition for Scan"},
                     [&] { self.transpose(permutation, rank, input, stream, output); });
    };
  }

  void transpose(const size_t* permutation, size_t rank, const OrtValue* input,
                 const abi::OrtSyncStream* stream, OrtValue* output) const {
    Tensor x, y;
    abi::read_tensor(api, input, x);
    abi::read_tensor(api, output, y);
    gpu::StridedCopy copy;
    copy.bytes = bytes_of(x.type);
    copy.shape = y.shape;
    copy.y_strides = gpu::contiguous(y.shape);
    const std::vector<int64_t> strides = gpu::contiguous(x.shape);
    for (size_t d = 0; d < rank; ++d) copy.x_strides.push_back(strides.at(permutation[d]));
    const gpu::OnDevice on(device);
    const void* inputs[] = {x.data};
    void* outputs[] = {y.data};
    gpu::Memory memory;
    memory.inputs = inputs;
    memory.outputs = outputs;
    device.run(gpu::strided_copy_plan(copy, /*aligned=*/false), memory, stream_handle(api, stream));
  }
};

template <class Helper, class Create>
void create_with(std::unique_ptr<Helper> helper, const OrtApi24* api, const Create& create) {
  abi::check(api, create(helper.get()));
  static_cast<void>(helper.release());  // the kernel owns it
}

std::string refuse(const Node& node) {
  for (const Value& value : node.outputs) {
    if (value.present && bytes_of(value.type) == 0) return "no kernel for the type of an output";
  }
  return "";
}

}  // namespace

bool is_control_flow(const std::string& domain, const std::string& op) {
  return domain.empty() && (op == "If" || op == "Loop" || op == "Scan");
}

Table with_control_flow(Table table) {
  const auto add = [&table](const char* name, int first, std::vector<size_t> host_inputs) {
    Registration& op = table.emplace_back();
    op.name = name;
    op.where = Where::kProvider;
    op.first = first;
    op.last = 25;
    op.host_inputs = std::move(host_inputs);
    op.refuse = refuse;
    op.all_numbers = true;
  };
  add("If", 1, {0});
  add("Loop", 1, {0, 1});
  add("Scan", 9, {});  // earlier versions have a batch axis, and the runtime cannot create a kernel for them
  return table;
}

abi::OrtKernelImpl* create_control_flow(const OrtApi24* api, const abi::OrtKernelInfo* info,
                                        gpu::Device& device, const std::string& op) {
  const abi::OrtEpApi* ep = abi::GetEpApi(api);
  abi::OrtKernelImpl* kernel = nullptr;
  if (op == "If") {
    abi::check(api, abi::CreateIfKernel(ep, info, &kernel));
  } else if (op == "Loop") {
    create_with(std::make_unique<LoopHelper>(api, device), api,
                [&](LoopHelper* helper) { return abi::CreateLoopKernel(ep, info, helper, &kernel); });
  } else {
    create_with(std::make_unique<ScanHelper>(api, device), api,
                [&](ScanHelper* helper) { return abi::CreateScanKernel(ep, info, helper, &kernel); });
  }
  return kernel;
}

}  // namespace graphopt::provider
