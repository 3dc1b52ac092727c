"""Names that other libraries' headers give to the functions, constants and members that native/ declares itself.

scripts/abi_check.py compares each of them with the headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Interface:
    """A library that native/ calls through function pointers.

    Attributes:
        name: the name shown to users.
        header: the header as a program includes it.
        functions: a regular expression for the names of its functions.
        structs: the structs of native/ that hold its constants: our name of each constant, and the header's name (""
        for our own constants; "X unless Y" if only headers without Y have it).
        members: structs of the library that native/ declares: our name, the library's name, and each member.
        version: a macro of the header.
        only_c: whether the header must be included as C, because it overloads its functions in C++.
    """

    name: str
    header: str
    functions: str
    structs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    members: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    version: str = ""
    only_c: bool = False

    def owns(self, function: str) -> bool:
        return re.fullmatch(self.functions, function) is not None

    @property
    def inclusion(self) -> str:
        line = f"#include <{self.header}>"
        if not self.only_c:
            return line
        # The standard headers that it includes are included before, as C++.
        before = "".join(f"#include <c{name}>\n" for name in ("math", "stddef", "stdint", "stdio", "stdlib", "string"))
        hidden = '#pragma push_macro("__cplusplus")\n#undef __cplusplus'
        return f'{before}extern "C" {{\n{hidden}\n{line}\n#pragma pop_macro("__cplusplus")\n}}'


_LT_OF_HIP = "hipblasLtMatmulHeuristicResult_t"
_LT_OF_CUDA = "cublasLtMatmulHeuristicResult_t"

INTERFACES = (
    Interface(
        "HIP",
        "hip/hip_runtime_api.h",
        r"hip[A-Z](?!las)\w*",
        {
            "Hip": {
                "kOutOfMemory": "hipErrorOutOfMemory",
                "kDefault": "hipMemcpyDefault",
                "kClockRate": "hipDeviceAttributeClockRate",
                "kMemoryBusWidth": "hipDeviceAttributeMemoryBusWidth",
                "kMemoryClockRate": "hipDeviceAttributeMemoryClockRate",
                "kMultiprocessors": "hipDeviceAttributeMultiprocessorCount",
                "kIntegrated": "hipDeviceAttributeIntegrated",
                "kArchSinceSix": "offsetof(hipDeviceProp_tR0600, gcnArchName)",
                "kArchBefore": "offsetof(hipDeviceProp_t, gcnArchName) unless hipDeviceProp_tR0600",
            },
            "DriverDevice": {
                "kNonBlocking": "hipStreamNonBlocking",
                "kDisableTiming": "hipEventDisableTiming",
                "kThreadLocal": "hipStreamCaptureModeThreadLocal",
                "kInvalid": "hipStreamCaptureStatusInvalidated",
                "kPortable": "hipHostMallocPortable",
                "kNotReady": "hipErrorNotReady",
            },
        },
        version="HIP_VERSION",
    ),
    Interface(
        "CUDA driver",
        "cuda.h",
        r"cu[A-Z]\w*",
        {
            "Cuda": {
                "kOutOfMemory": "CUDA_ERROR_OUT_OF_MEMORY",
                "kClockRate": "CU_DEVICE_ATTRIBUTE_CLOCK_RATE",
                "kMultiprocessors": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
                "kMemoryClockRate": "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE",
                "kMemoryBusWidth": "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH",
                "kL2CacheSize": "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE",
                "kMajor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
                "kMinor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
                "kSharedSize": "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES",
                "kMaxDynamicShared": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
                "kIntegrated": "CU_DEVICE_ATTRIBUTE_INTEGRATED",
                "kMaxSharedPerBlockOptin": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            },
            "DriverDevice": {
                "kNonBlocking": "CU_STREAM_NON_BLOCKING",
                "kDisableTiming": "CU_EVENT_DISABLE_TIMING",
                "kThreadLocal": "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL",
                "kInvalid": "CU_STREAM_CAPTURE_STATUS_INVALIDATED",
                "kPortable": "CU_MEMHOSTALLOC_PORTABLE",
                "kNotReady": "CUDA_ERROR_NOT_READY",
            },
        },
        version="CUDA_VERSION",
    ),
    Interface(
        "cuBLAS",
        "cublas_v2.h",
        r"cublas(?!Lt)[A-Z]\w*",
        {
            "Cublas": {
                "kFloat": "CUDA_R_32F",
                "kHalf": "CUDA_R_16F",
                "kCompute32F": "CUBLAS_COMPUTE_32F",
                "kDefaultAlgorithm": "CUBLAS_GEMM_DEFAULT",
            }
        },
        version="CUBLAS_VER_MAJOR",
        only_c=True,
    ),
    Interface(
        "rocBLAS",
        "rocblas/rocblas.h",
        r"rocblas_\w+",
        {
            "Rocblas": {
                "kNone": "rocblas_operation_none",
                "kTranspose": "rocblas_operation_transpose",
                "kHalf": "rocblas_datatype_f16_r",
                "kFloat": "rocblas_datatype_f32_r",
                "kNotAllowed": "rocblas_atomics_not_allowed",
            }
        },
        version="ROCBLAS_VERSION_MAJOR",
    ),
    Interface(
        "cuBLASLt",
        "cublasLt.h",
        r"cublasLt\w+",
        {
            "CublasLt": {
                "kCompute32F": "CUBLAS_COMPUTE_32F",
                "kFloat": "CUDA_R_32F",
                "kHalf": "CUDA_R_16F",
                "kEpilogue": "CUBLASLT_MATMUL_DESC_EPILOGUE",
                "kBiasPointer": "CUBLASLT_MATMUL_DESC_BIAS_POINTER",
                "kBiasStep": "CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE",
                "kTransposeA": "CUBLASLT_MATMUL_DESC_TRANSA",
                "kTransposed": "CUBLAS_OP_T",
                "kBatchCount": "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT",
                "kBatchStep": "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET",
                "kBiasType": "",
                "kAlgorithmBytes": f"offsetof({_LT_OF_CUDA}, workspaceSize)",
                "kResultBytes": f"sizeof({_LT_OF_CUDA})",
            },
            "Epilogue": {
                "kBias": "CUBLASLT_EPILOGUE_BIAS",
                "kReluBias": "CUBLASLT_EPILOGUE_RELU_BIAS",
                "kGeluBias": "CUBLASLT_EPILOGUE_GELU_BIAS",
            },
            "": {"kMaxWorkspaceBytes": "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES"},
        },
        version="CUBLAS_VER_MAJOR",
    ),
    Interface(
        "hipBLASLt",
        "hipblaslt/hipblaslt.h",
        r"hipblasLt\w+",
        {
            "HipblasLt": {
                "kCompute32F": "HIPBLAS_COMPUTE_32F",
                "kFloat": "HIP_R_32F",
                "kHalf": "HIP_R_16F",
                "kEpilogue": "HIPBLASLT_MATMUL_DESC_EPILOGUE",
                "kBiasPointer": "HIPBLASLT_MATMUL_DESC_BIAS_POINTER",
                "kBiasStep": "",
                "kTransposeA": "HIPBLASLT_MATMUL_DESC_TRANSA",
                "kTransposed": "HIPBLAS_OP_T",
                "kBatchCount": "HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT",
                "kBatchStep": "HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET",
                "kBiasType": "HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE",
                "kAlgorithmBytes": f"offsetof({_LT_OF_HIP}, workspaceSize)",
                "kResultBytes": f"sizeof({_LT_OF_HIP})",
            },
            "Epilogue": {
                "kBias": "HIPBLASLT_EPILOGUE_BIAS",
                "kReluBias": "HIPBLASLT_EPILOGUE_RELU_BIAS",
                "kGeluBias": "HIPBLASLT_EPILOGUE_GELU_BIAS",
            },
            "": {"kMaxWorkspaceBytes": "HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES"},
        },
        version="HIPBLASLT_VERSION_MAJOR",
    ),
    Interface(
        "cuDNN",
        "cudnn.h",
        r"cudnn\w+",
        {
            "Cudnn": {
                "kNchw": "CUDNN_TENSOR_NCHW",
                "kNhwc": "CUDNN_TENSOR_NHWC",
                "kRelu": "CUDNN_ACTIVATION_RELU",
                "kPropagateNan": "CUDNN_PROPAGATE_NAN",
                "kFloat": "CUDNN_DATA_FLOAT",
                "kHalf": "CUDNN_DATA_HALF",
                "kCrossCorrelation": "CUDNN_CROSS_CORRELATION",
                "kTensorOps": "CUDNN_TENSOR_OP_MATH",
                "kFma": "CUDNN_FMA_MATH",
                "kMaxResults": "",
            }
        },
        {
            "Cudnn::Performance": (
                "cudnnConvolutionFwdAlgoPerf_t",
                {
                    "algorithm": "algo",
                    "status": "status",
                    "milliseconds": "time",
                    "workspace": "memory",
                    "deterministic": "determinism",
                    "math": "mathType",
                },
            )
        },
        version="CUDNN_MAJOR",
    ),
    Interface(
        "MIOpen",
        "miopen/miopen.h",
        r"miopen\w+",
        {
            "Miopen": {
                "kHalf": "miopenHalf",
                "kFloat": "miopenFloat",
                "kConvolution": "miopenConvolution",
                "kFp16AlternativeAttribute": "MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL",
                "kDeterministicAttribute": "MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC",
            }
        },
        {
            "Miopen::Solution": (
                "miopenConvSolution_t",
                {
                    "milliseconds": "time",
                    "workspace": "workspace_size",
                    "id": "solution_id",
                    "algorithm": "algorithm",
                },
            ),
            "Miopen::Performance": (
                "miopenConvAlgoPerf_t",
                {"algorithm": "fwd_algo", "milliseconds": "time", "workspace": "memory"},
            ),
        },
        version="MIOPEN_VERSION_MAJOR",
    ),
    Interface("ROCTX", "rocprofiler-sdk-roctx/roctx.h", r"roctx\w+", version="ROCTX_VERSION_MAJOR"),
)

# ONNX Runtime: our names that differ from the header's.
ORT_HEADER = "onnxruntime_c_api.h"
ORT_FOLDERS = ("", "core/session", "onnxruntime", "onnxruntime/core/session")
ORT_STRUCTS = {"OrtAllocatorImpl": "OrtAllocator"}
ORT_MEMBERS = {
    "OrtCustomOp": {"InferOutputShape": "InferOutputShapeFn"},
    "OrtAllocatorImpl": {},
    "": {"version": "ort_version_supported"},
}
ORT_ENUMS = {
    "ErrorCode": {
        "kFail": "ORT_FAIL",
        "kInvalidArgument": "ORT_INVALID_ARGUMENT",
        "kRuntimeException": "ORT_RUNTIME_EXCEPTION",
        "kNotImplemented": "ORT_NOT_IMPLEMENTED",
    },
    "ElementType": {
        "kUndefined": "ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED",
        "kFloat": "ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT",
        "kUint8": "ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8",
        "kInt8": "ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8",
        "kInt32": "ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32",
        "kInt64": "ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64",
        "kBool": "ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL",
        "kHalf": "ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16",
    },
    "IoKind": {"kRequired": "INPUT_OUTPUT_REQUIRED", "kOptional": "INPUT_OUTPUT_OPTIONAL"},
    "MemoryType": {
        "kCpuInput": "OrtMemTypeCPUInput",
        "kCpuOutput": "OrtMemTypeCPUOutput",
        "kDefault": "OrtMemTypeDefault",
    },
    "AllocatorType": {"kDevice": "OrtDeviceAllocator", "kArena": "OrtArenaAllocator"},
    "AttributeKind": {
        "kInt": "ORT_OP_ATTR_INT",
        "kInts": "ORT_OP_ATTR_INTS",
        "kFloat": "ORT_OP_ATTR_FLOAT",
        "kString": "ORT_OP_ATTR_STRING",
        "kStrings": "ORT_OP_ATTR_STRINGS",
    },
    "HardwareType": {"kCpu": "OrtHardwareDeviceType_CPU", "kGpu": "OrtHardwareDeviceType_GPU"},
    "MemoryDeviceType": {"kCpu": "OrtMemoryInfoDeviceType_CPU", "kGpu": "OrtMemoryInfoDeviceType_GPU"},
    "DeviceMemoryType": {
        "kDefault": "OrtDeviceMemoryType_DEFAULT",
        "kHostAccessible": "OrtDeviceMemoryType_HOST_ACCESSIBLE",
    },
    "ProfilingCategory": {"kKernel": "OrtProfilingEventCategory_KERNEL"},
    "LogSeverity": {
        "kVerbose": "ORT_LOGGING_LEVEL_VERBOSE",
        "kInfo": "ORT_LOGGING_LEVEL_INFO",
        "kWarning": "ORT_LOGGING_LEVEL_WARNING",
    },
}
