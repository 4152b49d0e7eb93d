// The part of HIP's binary interface that the simulated runtime implements: numbers and layouts as HIP's own headers give them.
#pragma once
#include <cstddef>
#include <cstdint>

#define HIP_ERRORS(X) \
    X(0, hipSuccess, "no error") \
    X(1, hipErrorInvalidValue, "invalid argument") \
    X(2, hipErrorOutOfMemory, "out of memory") \
    X(9, hipErrorInvalidConfiguration, "invalid configuration argument") \
    X(17, hipErrorInvalidDevicePointer, "invalid device pointer") \
    X(21, hipErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") \
    X(98, hipErrorInvalidDeviceFunction, "invalid device function") \
    X(100, hipErrorNoDevice, "no ROCm-capable device is detected") \
    X(101, hipErrorInvalidDevice, "invalid device ordinal") \
    X(200, hipErrorInvalidImage, "device kernel image is invalid") \
    X(209, hipErrorNoBinaryForGpu, "no kernel image is available for execution on the device") \
    X(400, hipErrorInvalidHandle, "invalid resource handle") \
    X(500, hipErrorNotFound, "named symbol not found") \
    X(600, hipErrorNotReady, "device not ready") \
    X(700, hipErrorIllegalAddress, "an illegal memory access was encountered") \
    X(701, hipErrorLaunchOutOfResources, "too many resources requested for launch") \
    X(702, hipErrorLaunchTimeOut, "the launch timed out and was terminated") \
    X(719, hipErrorLaunchFailure, "unspecified launch failure") \
    X(801, hipErrorNotSupported, "operation not supported") \
    X(900, hipErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing") \
    X(901, hipErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture") \
    X(903, hipErrorStreamCaptureUnmatched, "capture was not initiated in this stream") \
    X(906, hipErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream") \
    X(999, hipErrorUnknown, "unknown error")

enum hipError_t : int {
#define X(number, name, text) name = number,
    HIP_ERRORS(X)
#undef X
};

enum hipMemcpyKind : int { hipMemcpyHostToHost, hipMemcpyHostToDevice, hipMemcpyDeviceToHost, hipMemcpyDeviceToDevice, hipMemcpyDefault };
enum hipStreamCaptureMode : int { hipStreamCaptureModeGlobal, hipStreamCaptureModeThreadLocal, hipStreamCaptureModeRelaxed };
enum hipStreamCaptureStatus : int { hipStreamCaptureStatusNone, hipStreamCaptureStatusActive, hipStreamCaptureStatusInvalidated };
enum hipGraphNodeType : int { hipGraphNodeTypeKernel, hipGraphNodeTypeMemcpy, hipGraphNodeTypeMemset, hipGraphNodeTypeHost, hipGraphNodeTypeGraph,
                              hipGraphNodeTypeEmpty, hipGraphNodeTypeWaitEvent, hipGraphNodeTypeEventRecord };
enum hipMemoryType : int { hipMemoryTypeUnregistered, hipMemoryTypeHost, hipMemoryTypeDevice };
enum hipFunctionAttribute : int { hipFuncMaxThreadsPerBlock, hipFuncSharedSizeBytes };
enum : unsigned { hipStreamNonBlocking = 1 };

struct dim3 { uint32_t x, y, z; };

struct hipKernelNodeParams {
    dim3 blockDim;
    void **extra;
    void *func;
    dim3 gridDim;
    void **kernelParams;
    unsigned sharedMemBytes;
};

struct hipPointerAttribute_t {
    hipMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
    int isManaged;
    unsigned allocationFlags;
};

// hipDeviceProp_tR0600 up to what is filled; `rest` pads it to HIP's size.
struct hipDeviceProp_t {
    char name[256];
    char uuid[16], luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
    int deviceOverlap, multiProcessorCount;
    char limits[616 - 392];  // of textures and surfaces, bus, clocks
    int l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported;
    int globalL1CacheSupported, localL1CacheSupported;
    size_t sharedMemPerMultiprocessor;
    char more[1160 - 648];
    char gcnArchName[256];
    char rest[1472 - 1416];
};
static_assert(offsetof(hipDeviceProp_t, multiProcessorCount) == 388 && offsetof(hipDeviceProp_t, maxThreadsPerMultiProcessor) == 624 &&
              offsetof(hipDeviceProp_t, gcnArchName) == 1160 && sizeof(hipDeviceProp_t) == 1472, "as HIP 6 and 7 have it");

// How hipModuleLaunchKernel's `extra` names a packed buffer of arguments.
enum : uintptr_t { HIP_LAUNCH_PARAM_BUFFER_POINTER = 1, HIP_LAUNCH_PARAM_BUFFER_SIZE = 2, HIP_LAUNCH_PARAM_END = 3 };
