// Declares the part of the ONNX Runtime C ABI that a plugin execution provider needs. Like ort.h it needs no header of
// ONNX Runtime. The runtime must be 1.24 or newer (interface revision 24). Newer members of OrtEp are used if the
// runtime has their revision.
#pragma once

#include <cstring>

#include "runtime/abi/ort.h"

namespace graphopt::abi {

constexpr uint32_t kEpApiRevision = 24;
// The revision of the newest member that this library sets: OrtEp::GetDefaultMemoryDevice.
constexpr uint32_t kNewestEpApiRevision = 27;

// The table of revision 24 begins with the table of revision 18.
struct OrtApi24 : OrtApi {
  void (*more_slots[415 - kApiSlots])();
};
static_assert(sizeof(OrtApi24) == 415 * sizeof(void*));

// Revision 24 has 50 slots, revision 25 has 73.
struct OrtEpApi {
  void (*slots[73])();
};

struct OrtDataType;
struct OrtEpDevice;
struct OrtEpGraphSupportInfo;
struct OrtGraph;
struct OrtHardwareDevice;
struct OrtKernelDef;
struct OrtKernelDefBuilder;
struct OrtKernelRegistry;
struct OrtKeyValuePairs;
struct OrtLogger;
struct OrtMemoryDevice;
struct OrtNode;
struct OrtNodeComputeContext;
struct OrtProfilingEvent;
struct OrtProfilingEventsContainer;
struct OrtRunOptions;
struct OrtSyncStream;
struct OrtValueInfo;

enum class HardwareType : int32_t { kCpu = 0, kGpu = 1 };
enum class MemoryDeviceType : int32_t { kCpu = 0, kGpu = 1 };
enum class DeviceMemoryType : int32_t { kDefault = 0, kHostAccessible = 5 };
enum class LogSeverity : int32_t { kVerbose = 0, kInfo = 1, kWarning = 2 };

template <class Table, size_t kIndex, class Signature>
struct TableSlot;
template <class Table, size_t kIndex, class Result, class... Args>
struct TableSlot<Table, kIndex, Result(Args...)> {
  static_assert(kIndex < sizeof(Table) / sizeof(void*), "not part of the table");
  using Api = Table;
  Result operator()(const Table* table, Args... args) const {
    void (*function)();
    std::memcpy(&function, reinterpret_cast<const char*>(table) + kIndex * sizeof function, sizeof function);
    return reinterpret_cast<Result (*)(Args...)>(function)(args...);
  }
};
template <size_t kIndex, class Signature>
using Slot24 = TableSlot<OrtApi24, kIndex, Signature>;
template <size_t kIndex, class Signature>
using EpSlot = TableSlot<OrtEpApi, kIndex, Signature>;

inline constexpr Slot24<317, const OrtEpApi*()> GetEpApi;

inline constexpr Slot24<247, OrtStatus*(const OrtLogger*, LogSeverity, const char*, const char* file,
                                        int line, const char* function)>
    Logger_LogMessage;

inline constexpr Slot24<295, void(OrtKeyValuePairs**)> CreateKeyValuePairs;
inline constexpr Slot24<296, void(OrtKeyValuePairs*, const char*, const char*)> AddKeyValuePair;
inline constexpr Slot24<297, const char*(const OrtKeyValuePairs*, const char*)> GetKeyValue;
inline constexpr Slot24<384, void*(OrtSyncStream*)> SyncStream_GetHandle;
// The session's configuration; the caller releases it.
inline constexpr Slot24<391, OrtStatus*(const OrtKernelInfo*, OrtKeyValuePairs**)>
    KernelInfo_GetConfigEntries;
inline constexpr Slot24<300, void(OrtKeyValuePairs*)> ReleaseKeyValuePairs;
inline constexpr Slot24<307, HardwareType(const OrtHardwareDevice*)> HardwareDevice_Type;
inline constexpr Slot24<308, uint32_t(const OrtHardwareDevice*)> HardwareDevice_VendorId;
// The hardware device owns the result.
inline constexpr Slot24<311, const OrtKeyValuePairs*(const OrtHardwareDevice*)> HardwareDevice_Metadata;
inline constexpr Slot24<320, OrtStatus*(const char* name, MemoryDeviceType, uint32_t vendor, int32_t device,
                                        DeviceMemoryType, size_t alignment, AllocatorType, OrtMemoryInfo**)>
    CreateMemoryInfo_V2;

inline constexpr Slot24<318, OrtStatus*(const OrtValue*, size_t*)> GetTensorSizeInBytes;
inline constexpr Slot24<394, OrtStatus*(const OrtKernelInfo*, int*)> KernelInfo_GetOperatorSinceVersion;
// The value owns the dims.
inline constexpr Slot24<414, OrtStatus*(const OrtValue*, ElementType*, const int64_t**, size_t*)>
    GetTensorElementTypeAndShapeDataReference;

// The graph owns all results of these functions.
inline constexpr Slot24<340, OrtStatus*(const OrtGraph*, size_t*)> Graph_GetNumOutputs;
inline constexpr Slot24<341, OrtStatus*(const OrtGraph*, const OrtValueInfo**, size_t)> Graph_GetOutputs;
inline constexpr Slot24<344, OrtStatus*(const OrtGraph*, size_t*)> Graph_GetNumNodes;
inline constexpr Slot24<345, OrtStatus*(const OrtGraph*, const OrtNode**, size_t)> Graph_GetNodes;
// Returns the node that has the graph as a subgraph; null for the main graph.
inline constexpr Slot24<346, OrtStatus*(const OrtGraph*, const OrtNode**)> Graph_GetParentNode;
inline constexpr Slot24<349, OrtStatus*(const OrtNode*, const char**)> Node_GetName;
inline constexpr Slot24<350, OrtStatus*(const OrtNode*, const char**)> Node_GetOperatorType;
inline constexpr Slot24<351, OrtStatus*(const OrtNode*, const char**)> Node_GetDomain;
inline constexpr Slot24<352, OrtStatus*(const OrtNode*, int*)> Node_GetSinceVersion;
inline constexpr Slot24<353, OrtStatus*(const OrtNode*, size_t*)> Node_GetNumInputs;
// Null for an omitted input or output.
inline constexpr Slot24<354, OrtStatus*(const OrtNode*, const OrtValueInfo**, size_t)> Node_GetInputs;
inline constexpr Slot24<355, OrtStatus*(const OrtNode*, size_t*)> Node_GetNumOutputs;
inline constexpr Slot24<356, OrtStatus*(const OrtNode*, const OrtValueInfo**, size_t)> Node_GetOutputs;
// Outer-scope values that the subgraphs of a node (If, Loop, Scan) read.
inline constexpr Slot24<357, OrtStatus*(const OrtNode*, size_t*)> Node_GetNumImplicitInputs;
inline constexpr Slot24<358, OrtStatus*(const OrtNode*, const OrtValueInfo**, size_t)> Node_GetImplicitInputs;
// Returns null, without an error, for a missing attribute.
inline constexpr Slot24<361, OrtStatus*(const OrtNode*, const char*, const OrtOpAttr**)>
    Node_GetAttributeByName;
// The value is owned by the caller.
inline constexpr Slot24<362, OrtStatus*(const OrtOpAttr*, OrtValue**)> OpAttr_GetTensorAttributeAsOrtValue;
// The subgraphs of If, Loop and Scan. The last argument receives attribute names and may be null.
inline constexpr Slot24<365, OrtStatus*(const OrtNode*, size_t*)> Node_GetNumSubgraphs;
inline constexpr Slot24<366, OrtStatus*(const OrtNode*, const OrtGraph**, size_t, const char**)>
    Node_GetSubgraphs;
// Null while the node is assigned to no provider.
inline constexpr Slot24<368, OrtStatus*(const OrtNode*, const char**)> Node_GetEpName;
inline constexpr Slot24<289, OrtStatus*(const OrtValueInfo*, const char**)> GetValueInfoName;
inline constexpr Slot24<290, OrtStatus*(const OrtValueInfo*, const OrtTypeInfo**)> GetValueInfoTypeInfo;
inline constexpr Slot24<326, OrtStatus*(const OrtValueInfo*, const OrtValue**)> ValueInfo_GetInitializerValue;
inline constexpr Slot24<331, OrtStatus*(const OrtValueInfo*, bool*)> ValueInfo_IsConstantInitializer;

// Structs of callbacks that the runtime calls. The ABI fixes the order. The first member is the revision that they
// implement.
struct OrtDataTransferImpl {
  uint32_t version;
  void (*Release)(OrtDataTransferImpl*);
  bool (*CanCopy)(const OrtDataTransferImpl*, const OrtMemoryDevice* from, const OrtMemoryDevice* to);
  // `streams` and each of its elements may be null.
  OrtStatus* (*CopyTensors)(OrtDataTransferImpl*, const OrtValue** from, OrtValue** to,
                            OrtSyncStream** streams, size_t count);
};

struct OrtSyncNotificationImpl {
  uint32_t version;
  void (*Release)(OrtSyncNotificationImpl*);
  OrtStatus* (*Activate)(OrtSyncNotificationImpl*);
  OrtStatus* (*WaitOnDevice)(OrtSyncNotificationImpl*, OrtSyncStream* consumer);
  OrtStatus* (*WaitOnHost)(OrtSyncNotificationImpl*);
};

struct OrtSyncStreamImpl {
  uint32_t version;
  void (*Release)(OrtSyncStreamImpl*);
  void* (*GetHandle)(OrtSyncStreamImpl*);
  OrtStatus* (*CreateNotification)(OrtSyncStreamImpl*, OrtSyncNotificationImpl**);
  OrtStatus* (*Flush)(OrtSyncStreamImpl*);  // waits for the work of the stream
  OrtStatus* (*OnSessionRunEnd)(OrtSyncStreamImpl*);
};

// Differs from OrtAllocator, which is opaque because allocators of the runtime may have more members.
struct OrtAllocatorImpl {
  uint32_t version;
  void* (*Alloc)(OrtAllocatorImpl*, size_t);
  void (*Free)(OrtAllocatorImpl*, void*);
  const OrtMemoryInfo* (*Info)(const OrtAllocatorImpl*);
  void* (*Reserve)(OrtAllocatorImpl*, size_t);
  OrtStatus* (*GetStats)(const OrtAllocatorImpl*, OrtKeyValuePairs**);
  void* (*AllocOnStream)(OrtAllocatorImpl*, size_t, OrtSyncStream*);
};

struct OrtKernelImpl {
  uint32_t version;
  uint32_t flags;
  OrtStatus* (*Compute)(OrtKernelImpl*, OrtKernelContext*);
  void (*Release)(OrtKernelImpl*);
  OrtStatus* (*PrePackWeight)();
  OrtStatus* (*SetSharedPrePackedWeight)();
};
static_assert(sizeof(OrtKernelImpl) == 40);

// Callback of the runtime's Loop kernel: concatenates the outputs of the iterations (`parts`) into `output`. All are on
// the device.
struct OrtLoopKernelHelper {
  uint32_t version;
  void (*Release)(OrtLoopKernelHelper*);
  OrtStatus* (*ConcatOutput)(OrtLoopKernelHelper*, void* stream, const OrtValue* const* parts, size_t count,
                             void* output, size_t bytes);
};

// Callback of the runtime's Scan kernel. Axis i of the output is axis permutation[i] of the input. `stream`
// may be null.
struct OrtScanKernelHelper {
  uint32_t version;
  void (*Release)(OrtScanKernelHelper*);
  OrtStatus* (*Transpose)(OrtScanKernelHelper*, const size_t* permutation, size_t rank, const OrtValue* input,
                          OrtSyncStream* stream, OrtValue* output);
};

// Computes a node that was fused from several. CreateState creates the state, once for each session.
struct OrtNodeComputeInfo {
  uint32_t version;
  OrtStatus* (*CreateState)(OrtNodeComputeInfo*, OrtNodeComputeContext*, void** state);
  OrtStatus* (*Compute)(OrtNodeComputeInfo*, void* state, OrtKernelContext*);
  void (*ReleaseState)(OrtNodeComputeInfo*, void* state);
};

struct OrtNodeFusionOptions {
  uint32_t version;
  bool drop_constant_initializers;  // constants are not inputs of the fused node; the provider copies them
};

// From revision 25 on: adds events of the provider to the runtime's profile. `start` is the time of the call in
// nanoseconds since the profile's start; timestamps of events count from the same start. StartEvent and StopEvent,
// which the runtime calls for each of its own events, are optional.
enum class ProfilingCategory : int32_t { kKernel = 2 };
struct OrtEpProfilerImpl {
  uint32_t version;
  void (*Release)(OrtEpProfilerImpl*);
  OrtStatus* (*StartProfiling)(OrtEpProfilerImpl*, int64_t start);
  void (*StartEvent)();
  void (*StopEvent)();
  OrtStatus* (*EndProfiling)(OrtEpProfilerImpl*, OrtProfilingEventsContainer*);
};

struct OrtEp {
  uint32_t version;
  const char* (*GetName)(const OrtEp*);
  OrtStatus* (*GetCapability)(OrtEp*, const OrtGraph*, OrtEpGraphSupportInfo*);
  // `graphs` has one graph for each node to compile and `nodes` the fused nodes. The provider returns `infos`.
  OrtStatus* (*Compile)(OrtEp*, const OrtGraph** graphs, const OrtNode** nodes, size_t count,
                        OrtNodeComputeInfo** infos, OrtNode** context_nodes);
  void (*ReleaseNodeComputeInfos)(OrtEp*, OrtNodeComputeInfo**, size_t count);
  void (*GetPreferredDataLayout)();
  void (*ShouldConvertDataLayoutForOp)();
  void (*SetDynamicOptions)();
  void (*OnRunStart)();
  void (*OnRunEnd)();
  OrtStatus* (*CreateAllocator)(OrtEp*, const OrtMemoryInfo*, OrtAllocatorImpl**);
  OrtStatus* (*CreateSyncStreamForDevice)(OrtEp*, const OrtMemoryDevice*, OrtSyncStreamImpl**);
  void (*GetCompiledModelCompatibilityInfo)();
  OrtStatus* (*GetKernelRegistry)(OrtEp*, const OrtKernelRegistry**);
  OrtStatus* (*IsConcurrentRunSupported)(OrtEp*, bool*);
  // From revision 25 on.
  void (*Sync)();
  OrtStatus* (*CreateProfiler)(OrtEp*, OrtEpProfilerImpl**);
  // From revision 26 on.
  void (*IsGraphCaptureEnabled)();
  void (*IsGraphCaptured)();
  void (*ReplayGraph)();
  void (*GetGraphCaptureNodeAssignmentPolicy)();
  void (*GetAvailableResource)();
  // From revision 27 on. If GetDefaultMemoryDevice is null or its result is null, the default is the memory of the type
  // DEFAULT.
  void (*OnSessionInitializationEnd)();
  OrtStatus* (*GetDefaultMemoryDevice)(const OrtEp*, const OrtMemoryDevice**);
  void (*ReleaseCapturedGraph)();
};

struct OrtEpFactory {
  uint32_t version;
  const char* (*GetName)(const OrtEpFactory*);
  const char* (*GetVendor)(const OrtEpFactory*);
  OrtStatus* (*GetSupportedDevices)(OrtEpFactory*, const OrtHardwareDevice* const* devices, size_t count,
                                    OrtEpDevice** supported, size_t max_count, size_t* supported_count);
  OrtStatus* (*CreateEp)(OrtEpFactory*, const OrtHardwareDevice* const* devices,
                         const OrtKeyValuePairs* const* metadata, size_t count, const OrtSessionOptions*,
                         const OrtLogger*, OrtEp**);
  void (*ReleaseEp)(OrtEpFactory*, OrtEp*);
  uint32_t (*GetVendorId)(const OrtEpFactory*);
  const char* (*GetVersion)(const OrtEpFactory*);
  void (*ValidateCompiledModelCompatibilityInfo)();
  OrtStatus* (*CreateAllocator)(OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs* options,
                                OrtAllocatorImpl**);
  void (*ReleaseAllocator)(OrtEpFactory*, OrtAllocatorImpl*);
  OrtStatus* (*CreateDataTransfer)(OrtEpFactory*, OrtDataTransferImpl**);
  bool (*IsStreamAware)(const OrtEpFactory*);
  OrtStatus* (*CreateSyncStreamForDevice)(OrtEpFactory*, const OrtMemoryDevice*,
                                          const OrtKeyValuePairs* options, OrtSyncStreamImpl**);
  void (*GetHardwareDeviceIncompatibilityDetails)();
  void (*CreateExternalResourceImporterForDevice)();
  void (*GetNumCustomOpDomains)();
  void (*GetCustomOpDomains)();
};

using OrtKernelCreate = OrtStatus*(void* state, const OrtKernelInfo*, OrtKernelImpl**);

// The runtime owns the device, which copies the metadata and the options.
inline constexpr EpSlot<0,
                        OrtStatus*(OrtEpFactory*, const OrtHardwareDevice*, const OrtKeyValuePairs* metadata,
                                   const OrtKeyValuePairs* options, OrtEpDevice**)>
    CreateEpDevice;
inline constexpr EpSlot<1, void(OrtEpDevice*)> ReleaseEpDevice;
// Fuses the nodes into one. No path between two of them may leave the set.
inline constexpr EpSlot<2, OrtStatus*(OrtEpGraphSupportInfo*, const OrtNode* const*, size_t,
                                      const OrtNodeFusionOptions*)>
    EpGraphSupportInfo_AddNodesToFuse;
inline constexpr EpSlot<3, OrtStatus*(OrtEpGraphSupportInfo*, const OrtNode*)>
    EpGraphSupportInfo_AddSingleNode;
inline constexpr EpSlot<5, OrtStatus*(OrtEpDevice*, const OrtMemoryInfo*)> EpDevice_AddAllocatorInfo;
inline constexpr EpSlot<6, const OrtMemoryDevice*(const OrtMemoryInfo*)> MemoryInfo_GetMemoryDevice;
inline constexpr EpSlot<7, const OrtMemoryDevice*(const OrtValue*)> Value_GetMemoryDevice;
inline constexpr EpSlot<9, MemoryDeviceType(const OrtMemoryDevice*)> MemoryDevice_GetDeviceType;
inline constexpr EpSlot<10, DeviceMemoryType(const OrtMemoryDevice*)> MemoryDevice_GetMemoryType;
inline constexpr EpSlot<11, uint32_t(const OrtMemoryDevice*)> MemoryDevice_GetVendorId;
inline constexpr EpSlot<12, uint32_t(const OrtMemoryDevice*)> MemoryDevice_GetDeviceId;

inline constexpr EpSlot<18, OrtStatus*(OrtKernelRegistry**)> CreateKernelRegistry;
inline constexpr EpSlot<19, void(OrtKernelRegistry*)> ReleaseKernelRegistry;
inline constexpr EpSlot<20,
                        OrtStatus*(OrtKernelRegistry*, const OrtKernelDef*, OrtKernelCreate*, void* state)>
    KernelRegistry_AddKernel;
inline constexpr EpSlot<21, OrtStatus*(OrtKernelDefBuilder**)> CreateKernelDefBuilder;
inline constexpr EpSlot<22, void(OrtKernelDefBuilder*)> ReleaseKernelDefBuilder;
inline constexpr EpSlot<23, OrtStatus*(OrtKernelDefBuilder*, const char*)> KernelDefBuilder_SetOperatorType;
inline constexpr EpSlot<24, OrtStatus*(OrtKernelDefBuilder*, const char*)> KernelDefBuilder_SetDomain;
// The range includes both ends.
inline constexpr EpSlot<25, OrtStatus*(OrtKernelDefBuilder*, int, int)> KernelDefBuilder_SetSinceVersion;
inline constexpr EpSlot<26, OrtStatus*(OrtKernelDefBuilder*, const char*)>
    KernelDefBuilder_SetExecutionProvider;
inline constexpr EpSlot<27, OrtStatus*(OrtKernelDefBuilder*, size_t, MemoryType)>
    KernelDefBuilder_SetInputMemType;
inline constexpr EpSlot<28, OrtStatus*(OrtKernelDefBuilder*, size_t, MemoryType)>
    KernelDefBuilder_SetOutputMemType;
inline constexpr EpSlot<30, OrtStatus*(OrtKernelDefBuilder*, const int*, const int*, size_t)>
    KernelDefBuilder_AddInputOutputAliases;
inline constexpr EpSlot<31, OrtStatus*(OrtKernelDefBuilder*, const int*, const int*, size_t)>
    KernelDefBuilder_AddInputOutputMutableAliases;
inline constexpr EpSlot<32, OrtStatus*(OrtKernelDefBuilder*, OrtKernelDef**)> KernelDefBuilder_Build;
inline constexpr EpSlot<33, void(OrtKernelDef*)> ReleaseKernelDef;

// The provider of the session that creates the kernel.
inline constexpr EpSlot<43, OrtStatus*(const OrtKernelInfo*, const OrtEp**)> KernelInfo_GetEp;

// The runtime's kernels that execute subgraphs. On success the kernel owns the helper.
inline constexpr EpSlot<45, OrtStatus*(const OrtKernelInfo*, OrtKernelImpl**)> CreateIfKernel;
inline constexpr EpSlot<46, OrtStatus*(const OrtKernelInfo*, OrtLoopKernelHelper*, OrtKernelImpl**)>
    CreateLoopKernel;
inline constexpr EpSlot<47, OrtStatus*(const OrtKernelInfo*, OrtScanKernelHelper*, OrtKernelImpl**)>
    CreateScanKernel;

// From revision 25 on. Times are in microseconds. The runtime copies the texts, and AddEvents copies the events.
inline constexpr EpSlot<65, OrtStatus*(ProfilingCategory, int32_t process, int32_t thread, const char* name,
                                       int64_t timestamp, int64_t duration, const char* const* keys,
                                       const char* const* values, size_t count, OrtProfilingEvent**)>
    CreateProfilingEvent;
inline constexpr EpSlot<66, void(OrtProfilingEvent*)> ReleaseProfilingEvent;
inline constexpr EpSlot<72, OrtStatus*(OrtProfilingEventsContainer*, const OrtProfilingEvent* const*, size_t)>
    ProfilingEventsContainer_AddEvents;

}  // namespace graphopt::abi
