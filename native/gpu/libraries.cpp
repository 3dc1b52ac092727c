#include "gpu/libraries.h"

#include <cstdio>
#include <map>
#include <mutex>

namespace graphopt::gpu {
namespace {

template <class Library>
struct Opened {
  std::mutex mutex;
  std::map<const Device*, std::unique_ptr<Library>> libraries;  // null: there is none

  template <class Open>
  Library* get(const Device& device, Open&& open) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = libraries.find(&device);
    if (found != libraries.end()) return found->second.get();
    auto& slot = libraries[&device];
    try {
      slot = open();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "graphopt: slower kernels of our own take its place: %s\n", e.what());
    }
    return slot.get();
  }

  void forget(const Device& device, void* stream) noexcept {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = libraries.find(&device);
    if (found != libraries.end() && found->second != nullptr) found->second->forget(stream);
  }
};

// Never freed: sessions may outlive static objects.
Opened<Blas>& opened_blas() {
  static auto& all = *new Opened<Blas>;
  return all;
}
Opened<Dnn>& opened_dnn() {
  static auto& all = *new Opened<Dnn>;
  return all;
}

Opened<BlasLt>& opened_blas_lt() {
  static auto& all = *new Opened<BlasLt>;
  return all;
}

}  // namespace

Blas* blas(const Device& device) {
  if (device.backend() == Backend::kHost) return nullptr;
  return opened_blas().get(
      device, [&] { return device.backend() == Backend::kHip ? open_rocblas() : open_cublas(); });
}

Dnn* dnn(const Device& device) {
  if (device.backend() == Backend::kHost) return nullptr;
  return opened_dnn().get(device,
                          [&] { return device.backend() == Backend::kHip ? open_miopen() : open_cudnn(); });
}

BlasLt* blas_lt(Device& device) {
  if (device.backend() == Backend::kHost) return nullptr;
  return opened_blas_lt().get(device, [&]() -> std::unique_ptr<BlasLt> {
    try {
      return device.backend() == Backend::kHip ? open_hipblaslt(device) : open_cublaslt(device);
    } catch (const NoRuntime&) {
      return nullptr;
    }
  });
}

void forget_stream(const Device& device, void* stream) noexcept {
  opened_blas().forget(device, stream);
  opened_dnn().forget(device, stream);
}

}  // namespace graphopt::gpu
