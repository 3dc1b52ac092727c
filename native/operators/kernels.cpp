#include "operators/kernels.h"

#include <algorithm>

#include "device/devices.h"
#include "operators/kernel_bases.h"

// Declares add_all, which calls add_NAME of each folder with an op.cpp (CMakeLists.txt).
#include "operators.inc"

namespace graphopt {
namespace {

Kernels all_kernels(std::function<gpu::Device&()> device) {
  Kernels kernels(std::move(device));
  add_all(kernels);
  return kernels;
}

Table with_provider(Table table, const char* provider, const std::string& device) {
  for (Registration& r : table) {
    r.provider = provider;
    r.device = device;
  }
  return table;
}

}  // namespace

Registration& Kernels::add() { return table_.emplace_back(); }

Registration& Kernels::add_arithmetic(const char* name, int first, int last,
                                      decltype(Registration::create) create) {
  Registration& r = add();
  r.name = name;
  r.where = Where::kPlanning;
  r.first = first;
  r.last = last;
  r.create = std::move(create);
  return r;
}

Table Kernels::take(std::initializer_list<Where> wanted) && {
  const auto other = [&](const Registration& r) {
    return std::find(wanted.begin(), wanted.end(), r.where) == wanted.end();
  };
  table_.erase(std::remove_if(table_.begin(), table_.end(), other), table_.end());
  return std::move(table_);
}

Table cpu_kernels() { return all_kernels(nullptr).take({Where::kCpu}); }

Table provider_kernels(gpu::Device& device) {
  return all_kernels([&device]() -> gpu::Device& { return device; }).take({Where::kGpu, Where::kProvider});
}

Table provider_claims() { return all_kernels(nullptr).take({Where::kGpu, Where::kProvider}); }

Table planning_kernels() { return all_kernels(nullptr).take({Where::kPlanning}); }

Table rocm_kernels() {
  const gpu::DeviceFacts* current = gpu::usable_rocm_device();
  if (current == nullptr) return {};
  const char* provider = gpu::host_kernels() != nullptr ? nullptr : "ROCMExecutionProvider";
  return with_provider(all_kernels(gpu::rocm_device).take({Where::kGpu}), provider, current->arch);
}

}  // namespace graphopt
