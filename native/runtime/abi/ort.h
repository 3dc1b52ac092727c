// Declares the part of the ONNX Runtime C ABI, interface revision 18, that this library uses. No header of ONNX Runtime
// is needed, and one binary runs on every runtime from 1.18 on. Kernels do not see these declarations: only files in
// this folder and custom_ops/custom_op.h include this header.
//
// The API is a table of function pointers; new revisions only append to it. A Slot is the function at an index of the
// table. Revision 18 has 280 slots; the static_assert prevents a call through an index beyond the table of a runtime.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operators/tensor.h"

namespace graphopt::abi {

using graphopt::ElementType;

constexpr uint32_t kApiRevision = 18;
constexpr size_t kApiSlots = 280;

struct OrtApi {
  void (*slots[kApiSlots])();
};
struct OrtApiBase {
  const OrtApi* (*get_api)(uint32_t revision);
  const char* (*get_version_string)();
};

struct OrtAllocator;
struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtMemoryInfo;
struct OrtSessionOptions;
struct OrtShapeInferContext;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtTypeInfo;
struct OrtValue;
struct OrtCustomOp;

enum class ErrorCode : int32_t {
  kFail = 1,
  kInvalidArgument = 2,
  kRuntimeException = 6,
  kNotImplemented = 9
};
enum class IoKind : int32_t { kRequired = 0, kOptional = 1 };
enum class MemoryType : int32_t { kCpuInput = -2, kCpuOutput = -1, kDefault = 0 };
enum class AllocatorType : int32_t { kDevice = 0, kArena = 1 };

template <size_t kIndex, class Signature>
struct Slot;
template <size_t kIndex, class Result, class... Args>
struct Slot<kIndex, Result(Args...)> {
  static_assert(kIndex < kApiSlots, "not part of interface revision 18");
  using Api = OrtApi;
  Result operator()(const OrtApi* api, Args... args) const {
    return reinterpret_cast<Result (*)(Args...)>(api->slots[kIndex])(args...);
  }
};

// A function that returns OrtStatus* returns null on success, else a status that the caller releases.
inline constexpr Slot<0, OrtStatus*(ErrorCode, const char*)> CreateStatus;
inline constexpr Slot<1, ErrorCode(const OrtStatus*)> GetErrorCode;
inline constexpr Slot<2, const char*(const OrtStatus*)> GetErrorMessage;
inline constexpr Slot<93, void(OrtStatus*)> ReleaseStatus;
inline constexpr Slot<96, void(OrtValue*)> ReleaseValue;

inline constexpr Slot<26, OrtStatus*(const char*, OrtCustomOpDomain**)> CreateCustomOpDomain;
inline constexpr Slot<27, OrtStatus*(OrtCustomOpDomain*, const OrtCustomOp*)> CustomOpDomain_Add;
inline constexpr Slot<28, OrtStatus*(OrtSessionOptions*, OrtCustomOpDomain*)> AddCustomOpDomain;
inline constexpr Slot<237, OrtStatus*(const OrtSessionOptions*, const char*, int*)> HasSessionConfigEntry;
// The size counts the final NUL; with a null string only the size is set.
inline constexpr Slot<238, OrtStatus*(const OrtSessionOptions*, const char*, char*, size_t*)>
    GetSessionConfigEntry;

inline constexpr Slot<51, OrtStatus*(OrtValue*, void**)> GetTensorMutableData;
inline constexpr Slot<55, OrtStatus*(const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**)>
    CastTypeInfoToTensorInfo;
inline constexpr Slot<57, OrtStatus*(OrtTensorTypeAndShapeInfo**)> CreateTensorTypeAndShapeInfo;
inline constexpr Slot<58, OrtStatus*(OrtTensorTypeAndShapeInfo*, ElementType)> SetTensorElementType;
inline constexpr Slot<59, OrtStatus*(OrtTensorTypeAndShapeInfo*, const int64_t*, size_t)> SetDimensions;
inline constexpr Slot<60, OrtStatus*(const OrtTensorTypeAndShapeInfo*, ElementType*)> GetTensorElementType;
inline constexpr Slot<61, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t*)> GetDimensionsCount;
inline constexpr Slot<62, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t)> GetDimensions;
// The names are owned by the info.
inline constexpr Slot<63, OrtStatus*(const OrtTensorTypeAndShapeInfo*, const char**, size_t)>
    GetSymbolicDimensions;
// The result is owned by the caller.
inline constexpr Slot<65, OrtStatus*(const OrtValue*, OrtTensorTypeAndShapeInfo**)> GetTensorTypeAndShape;
inline constexpr Slot<271, OrtStatus*(OrtTensorTypeAndShapeInfo*, const char**, size_t)>
    SetSymbolicDimensions;
inline constexpr Slot<98, void(OrtTypeInfo*)> ReleaseTypeInfo;
inline constexpr Slot<99, void(OrtTensorTypeAndShapeInfo*)> ReleaseTensorTypeAndShapeInfo;

inline constexpr Slot<69, OrtStatus*(AllocatorType, MemoryType, OrtMemoryInfo**)> CreateCpuMemoryInfo;
inline constexpr Slot<94, void(OrtMemoryInfo*)> ReleaseMemoryInfo;
inline constexpr Slot<75, OrtStatus*(OrtAllocator*, size_t, void**)> AllocatorAlloc;
inline constexpr Slot<76, OrtStatus*(OrtAllocator*, void*)> AllocatorFree;
inline constexpr Slot<132, void(OrtAllocator*)> ReleaseAllocator;

// The runtime owns the allocator.
inline constexpr Slot<78, OrtStatus*(OrtAllocator**)> GetAllocatorWithDefaultOptions;
// The value is owned by the caller.
inline constexpr Slot<236, OrtStatus*(const OrtKernelInfo*, const char*, OrtAllocator*, OrtValue**)>
    KernelInfoGetAttribute_tensor;
inline constexpr Slot<85, OrtStatus*(const OrtKernelInfo*, const char*, float*)> KernelInfoGetAttribute_float;
inline constexpr Slot<86, OrtStatus*(const OrtKernelInfo*, const char*, int64_t*)>
    KernelInfoGetAttribute_int64;
// The size counts the final NUL; with a null string only the size is set.
inline constexpr Slot<87, OrtStatus*(const OrtKernelInfo*, const char*, char*, size_t*)>
    KernelInfoGetAttribute_string;
// With a null array only the count is set.
inline constexpr Slot<163, OrtStatus*(const OrtKernelInfo*, const char*, int64_t*, size_t*)>
    KernelInfoGetAttributeArray_int64;
inline constexpr Slot<230, OrtStatus*(const OrtKernelInfo*, size_t*)> KernelInfo_GetInputCount;
inline constexpr Slot<231, OrtStatus*(const OrtKernelInfo*, size_t*)> KernelInfo_GetOutputCount;
// The result is owned by the caller.
inline constexpr Slot<234, OrtStatus*(const OrtKernelInfo*, size_t, OrtTypeInfo**)>
    KernelInfo_GetInputTypeInfo;
// The size counts the final NUL; with a null string only the size is set.
inline constexpr Slot<244, OrtStatus*(const OrtKernelInfo*, char*, size_t*)> KernelInfo_GetNodeName;
// The value is owned by the session.
inline constexpr Slot<249, OrtStatus*(const OrtKernelInfo*, size_t, int*, const OrtValue**)>
    KernelInfoGetConstantInput_tensor;

inline constexpr Slot<88, OrtStatus*(const OrtKernelContext*, size_t*)> KernelContext_GetInputCount;
inline constexpr Slot<90, OrtStatus*(const OrtKernelContext*, size_t, const OrtValue**)>
    KernelContext_GetInput;
inline constexpr Slot<91, OrtStatus*(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**)>
    KernelContext_GetOutput;
inline constexpr Slot<193, OrtStatus*(const OrtKernelContext*, void**)> KernelContext_GetGPUComputeStream;
// The info is owned by the value.
inline constexpr Slot<194, OrtStatus*(const OrtValue*, const OrtMemoryInfo**)> GetTensorMemoryInfo;
// Crashes in CPU kernels before 1.23. The caller frees the memory with the allocator from KernelContext_GetAllocator.
inline constexpr Slot<277, OrtStatus*(const OrtKernelContext*, const OrtMemoryInfo*, size_t, void**)>
    KernelContext_GetScratchBuffer;
// The result is owned by the caller.
inline constexpr Slot<253, OrtStatus*(const OrtKernelContext*, const OrtMemoryInfo*, OrtAllocator**)>
    KernelContext_GetAllocator;
// Returns after all tasks. With num_batch 0 each index in [0, total) is one task.
inline constexpr Slot<274, OrtStatus*(const OrtKernelContext*, void (*)(void*, size_t), size_t total,
                                      size_t num_batch, void* user)>
    KernelContext_ParallelFor;

// The result is owned by the context. An input of unknown rank arrives as rank 0.
inline constexpr Slot<268, OrtStatus*(const OrtShapeInferContext*, size_t, OrtTensorTypeAndShapeInfo**)>
    ShapeInferContext_GetInputTypeShape;
struct OrtOpAttr;
inline constexpr Slot<269, OrtStatus*(const OrtShapeInferContext*, const char*, const OrtOpAttr**)>
    ShapeInferContext_GetAttribute;
enum class AttributeKind : int32_t { kInt = 1, kInts = 2, kFloat = 3, kString = 5, kStrings = 6 };
// `bytes` is the buffer's size, `out` the required size.
inline constexpr Slot<272, OrtStatus*(const OrtOpAttr*, AttributeKind, void*, size_t bytes, size_t* out)>
    ReadOpAttr;
inline constexpr Slot<270, OrtStatus*(const OrtShapeInferContext*, size_t, const OrtTensorTypeAndShapeInfo*)>
    ShapeInferContext_SetOutputTypeShape;

// The operator's callbacks. Every member except the version is a function pointer. The ABI fixes the order.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ElementType (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ElementType (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  IoKind (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  IoKind (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  MemoryType (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShape)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  // The last four callbacks receive no OrtCustomOp, so they do not know which operator is meant.
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};
static_assert(sizeof(OrtCustomOp) == 26 * sizeof(void*));

}  // namespace graphopt::abi
