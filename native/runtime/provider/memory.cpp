#include "runtime/provider/memory.h"

#include <optional>

#include "device/devices.h"
#include "device/stream_context.h"
#include "runtime/abi/error.h"
#include "runtime/provider/guarded.h"
#include "runtime/provider/staging.h"

namespace graphopt::provider {
namespace {

using abi::OrtApi24;
using abi::OrtStatus;

thread_local std::string failure;

// A stream of the device, with the session memory that its work uses.
struct Stream final : abi::OrtSyncStreamImpl {
  const OrtApi24* api;
  std::shared_ptr<SessionMemory> memory;
  gpu::Device& device;
  std::shared_ptr<gpu::StreamContext> context;
  void* handle;

  Stream(const OrtApi24* a, std::shared_ptr<SessionMemory> m);
  void flush() const {
    const gpu::OnDevice on(device);
    context->synchronize();
    memory->retire(handle);
  }
};

struct Notification final : abi::OrtSyncNotificationImpl {
  // Copied from the producer, which may be destroyed first.
  const OrtApi24* api;
  gpu::Device& device;
  void* stream;
  void* event;

  explicit Notification(const Stream& producer)
      : OrtSyncNotificationImpl{}, api(producer.api), device(producer.device), stream(producer.handle) {
    const gpu::OnDevice on(device);
    event = device.create_event();
    version = abi::kEpApiRevision;
    Release = [](OrtSyncNotificationImpl* p) {
      Notification& n = self(p);
      try {
        const gpu::OnDevice on(n.device);
        n.device.destroy_event(n.event);
      } catch (const std::exception&) {  // a broken device
      }
      delete &n;
    };
    Activate = [](OrtSyncNotificationImpl* p) {
      Notification& n = self(p);
      return guarded(n.api, {"graphopt: signal"}, [&] {
        const gpu::OnDevice on(n.device);
        n.device.record(n.event, n.stream);
      });
    };
    WaitOnDevice = [](OrtSyncNotificationImpl* p, abi::OrtSyncStream* consumer) {
      Notification& n = self(p);
      return guarded(n.api, {"graphopt: wait"}, [&] {
        const gpu::OnDevice on(n.device);
        n.device.wait(stream_handle(n.api, consumer), n.event);
      });
    };
    WaitOnHost = [](OrtSyncNotificationImpl* p) {
      Notification& n = self(p);
      return guarded(n.api, {"graphopt: wait"}, [&] {
        const gpu::OnDevice on(n.device);
        n.device.wait(n.event);
      });
    };
  }
  static Notification& self(OrtSyncNotificationImpl* p) { return *static_cast<Notification*>(p); }
};

Stream::Stream(const OrtApi24* a, std::shared_ptr<SessionMemory> m)
    : OrtSyncStreamImpl{}, api(a), memory(std::move(m)), device(memory->pool().device()) {
  const gpu::OnDevice on(device);
  context = gpu::StreamContext::create(device);
  handle = context->stream();
  version = abi::kEpApiRevision;
  Release = [](OrtSyncStreamImpl* s) {
    Stream& stream = *static_cast<Stream*>(s);
    try {
      stream.flush();
    } catch (const std::exception&) {  // a broken device
    }
    try {
      stream.context->close();
      stream.memory->forget(stream.handle);
    } catch (const std::exception&) {
    }
    delete &stream;
  };
  GetHandle = [](OrtSyncStreamImpl* s) { return static_cast<Stream*>(s)->handle; };
  CreateNotification = [](OrtSyncStreamImpl* s, abi::OrtSyncNotificationImpl** out) {
    const Stream& stream = *static_cast<Stream*>(s);
    return guarded(stream.api, {"graphopt: notification"}, [&] { *out = new Notification(stream); });
  };
  Flush = [](OrtSyncStreamImpl* s) {
    const Stream& stream = *static_cast<Stream*>(s);
    return guarded(stream.api, {"graphopt: wait for the device"}, [&] { stream.flush(); });
  };
  OnSessionRunEnd = [](OrtSyncStreamImpl*) -> OrtStatus* { return nullptr; };
}

std::string text_of(int number) {
  const gpu::DeviceFacts* facts = gpu::usable_device(number);
  return "device " + std::to_string(number) + (facts != nullptr ? " (" + facts->name + ")" : "");
}

struct DataTransfer final : abi::OrtDataTransferImpl {
  const OrtApi24* api;

  explicit DataTransfer(const OrtApi24* a) : OrtDataTransferImpl{}, api(a) {
    version = abi::kEpApiRevision;
    Release = [](OrtDataTransferImpl* p) { delete static_cast<DataTransfer*>(p); };
    CanCopy = [](const OrtDataTransferImpl* p, const abi::OrtMemoryDevice* from,
                 const abi::OrtMemoryDevice* to) {
      const DataTransfer& self = *static_cast<const DataTransfer*>(p);
      const int source = self.number(from), target = self.number(to);
      if (source < 0 && target < 0) return false;
      if (source < 0) return self.on_host(from);
      if (target < 0) return self.on_host(to);
      return true;  // copy() refuses two different devices and names them
    };
    CopyTensors = [](OrtDataTransferImpl* p, const abi::OrtValue** from, abi::OrtValue** to,
                     abi::OrtSyncStream** streams, size_t count) {
      const DataTransfer& self = *static_cast<DataTransfer*>(p);
      return guarded(self.api, {"graphopt: copy"}, [&] {
        for (size_t i = 0; i < count; ++i) {
          self.copy(from[i], to[i], streams != nullptr ? streams[i] : nullptr);
        }
      });
    };
  }

  bool on_host(const abi::OrtMemoryDevice* d) const {
    return abi::MemoryDevice_GetDeviceType(abi::GetEpApi(api), d) == abi::MemoryDeviceType::kCpu;
  }

  // Returns the number of the memory's device; -1 if the memory does not belong to this library.
  int number(const abi::OrtMemoryDevice* d) const {
    const abi::OrtEpApi* ep = abi::GetEpApi(api);
    if (abi::MemoryDevice_GetDeviceType(ep, d) != abi::MemoryDeviceType::kGpu) return -1;
    const auto n = static_cast<int>(abi::MemoryDevice_GetDeviceId(ep, d));
    if (n < 0 || n >= gpu::device_count()) return -1;
    return abi::MemoryDevice_GetVendorId(ep, d) == vendor_id(gpu::backend(n)) ? n : -1;
  }

  void copy(const abi::OrtValue* from, abi::OrtValue* to, const abi::OrtSyncStream* stream) const {
    const abi::OrtEpApi* ep = abi::GetEpApi(api);
    const int source = number(abi::Value_GetMemoryDevice(ep, from));
    const int target = number(abi::Value_GetMemoryDevice(ep, to));
    // The runtime requests a copy between two devices if a caller has bound a tensor on the wrong device. The
    // stream is then one of the session's device. Every device can access pinned memory.
    const bool between_devices = source >= 0 && target >= 0 && source != target;
    const bool from_pinned = is_host_accessible(api, abi::Value_GetMemoryDevice(ep, from));
    if (between_devices && !from_pinned && !is_host_accessible(api, abi::Value_GetMemoryDevice(ep, to))) {
      throw Error("the tensor is in the memory of " + text_of(source) + ", but is needed in the memory of " +
                  text_of(target) + ": allocate it there, or copy it through host memory");
    }
    const auto bytes = abi::get<size_t>(api, abi::GetTensorSizeInBytes, from);
    if (bytes == 0) return;
    void *in = nullptr, *out = nullptr;
    abi::check(api, abi::GetTensorMutableData(api, const_cast<abi::OrtValue*>(from), &in));
    abi::check(api, abi::GetTensorMutableData(api, to, &out));
    if (in == nullptr || out == nullptr) {
      const std::string reason = last_failure();
      throw Error(reason.empty() ? "cannot allocate " + std::to_string(bytes) + " bytes" : reason);
    }
    gpu::Device& device = gpu::device(source < 0 || (between_devices && from_pinned) ? target : source);
    const gpu::OnDevice on(device);
    std::optional<gpu::WorkStream> own;
    void* handle = stream != nullptr ? stream_handle(api, stream) : own.emplace(device).get();
    // This library's streams do not synchronize with the default stream, so any of them may still write the
    // source.
    if (stream == nullptr && source >= 0) gpu::StreamContext::synchronize_all(device);
    if (source < 0 && stream != nullptr) {
      staging(device).upload(out, in, bytes, handle);
    } else {
      device.copy(out, in, bytes, handle);
    }
    if (stream == nullptr || target < 0) device.synchronize(handle);
  }
};

}  // namespace

uint32_t vendor_id(gpu::Backend backend) {
  switch (backend) {
    case gpu::Backend::kHip:
      return 0x1002;
    case gpu::Backend::kCuda:
      return 0x10de;
    case gpu::Backend::kHost:
      break;
  }
  return 0xffff;  // no vendor
}

bool is_host_accessible(const OrtApi24* api, const abi::OrtMemoryDevice* device) {
  return abi::MemoryDevice_GetMemoryType(abi::GetEpApi(api), device) ==
         abi::DeviceMemoryType::kHostAccessible;
}

std::string last_failure() {
  std::string text;
  text.swap(failure);
  return text;
}

Allocator& Allocator::self(const OrtAllocatorImpl* p) {
  return *const_cast<Allocator*>(static_cast<const Allocator*>(p));
}

void* SessionMemory::allocate(size_t bytes, const void* stream, gpu::MemoryUse memory_use) {
  for (;;) {
    try {
      return pool_.allocate(bytes, stream, memory_use);
    } catch (const gpu::OutOfMemory&) {
      std::function<bool()> release_idle;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        release_idle = release_idle_;
      }
      if (!release_idle || !release_idle()) throw;
    }
  }
}

void SessionMemory::free(void* memory) noexcept {
  try {
    pool_.free(memory);
  } catch (const std::exception&) {  // a broken device: the block is never reused
  }
}

void SessionMemory::on_out_of_memory(std::function<bool()> release_idle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  release_idle_ = std::move(release_idle);
}

void SessionMemory::retire(const void* stream) {
  for (Pool* pool : {&pool_, &shared_, &pinned_pool(pool_.number())}) pool->retire(stream);
}

void SessionMemory::forget(const void* stream) {
  for (Pool* pool : {&pool_, &shared_, &pinned_pool(pool_.number())}) pool->forget(stream);
}

Allocator::Allocator(const OrtApi24* api, std::shared_ptr<SessionMemory> memory,
                     const abi::OrtMemoryInfo* info)
    : OrtAllocatorImpl{}, api_(api), memory_(std::move(memory)), info_(info) {
  version = abi::kEpApiRevision;
  Alloc = [](OrtAllocatorImpl* p, size_t bytes) { return self(p).allocate(bytes, nullptr); };
  Reserve = Alloc;
  Free = [](OrtAllocatorImpl* p, void* memory) { self(p).release(memory); };
  Info = [](const OrtAllocatorImpl* p) { return self(p).info_; };
  AllocOnStream = [](OrtAllocatorImpl* p, size_t bytes, abi::OrtSyncStream* stream) {
    return self(p).allocate(bytes, stream_handle(self(p).api_, stream));
  };
  GetStats = [](const OrtAllocatorImpl* p, abi::OrtKeyValuePairs** out) {
    const OrtApi24* table = self(p).api_;
    return guarded(table, {"graphopt: statistics"}, [&] {
      const Pool::Statistics s = self(p).memory_->pool().statistics();
      abi::CreateKeyValuePairs(table, out);
      abi::AddKeyValuePair(table, *out, "InUse", std::to_string(s.in_use).c_str());
      abi::AddKeyValuePair(table, *out, "TotalAllocated", std::to_string(s.in_use + s.kept).c_str());
      abi::AddKeyValuePair(table, *out, "NumAllocs", std::to_string(s.device_allocations).c_str());
    });
  };
}

void* Allocator::allocate(size_t bytes, const void* stream) noexcept {
  if (bytes == 0) return nullptr;
  try {
    return memory_->allocate(bytes, stream);
  } catch (const std::exception& e) {
    try {
      failure = e.what();
    } catch (const std::exception&) {
    }
    return nullptr;
  }
}

void Allocator::release(void* memory) noexcept {
  if (memory != nullptr) memory_->free(memory);
}

abi::OrtSyncStreamImpl* create_stream(const OrtApi24* api, std::shared_ptr<SessionMemory> memory) {
  return new Stream(api, std::move(memory));
}

// Does not use SyncStream_GetImpl, because the stream may belong to the runtime. Such a stream has no handle and no
// implementation. Before 1.29 the runtime allocates the memory of a graph with an If or a Loop on such a stream.
void* stream_handle(const OrtApi24* api, const abi::OrtSyncStream* stream) {
  return stream != nullptr ? abi::SyncStream_GetHandle(api, const_cast<abi::OrtSyncStream*>(stream))
                           : nullptr;
}

abi::OrtDataTransferImpl* create_data_transfer(const OrtApi24* api) { return new DataTransfer(api); }

}  // namespace graphopt::provider
