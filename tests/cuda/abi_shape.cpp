// SPDX-License-Identifier: Apache-2.0
// Compares cuda/abi.hpp with the toolkit's headers at compile time; without the toolkit this file is empty.
#include "cuda/abi.hpp"

#if __has_include(<cuda.h>) && __has_include(<cudaTypedefs.h>)
#include <cuda.h>
#include <cudaTypedefs.h>

#include "tests/gpu/same_call.hpp"

#if CUDA_VERSION < 12050  // the only function that the oldest driver of ours has not
using PFN_cuCtxRecordEvent_v12050 = CUresult (*)(CUcontext, CUevent);
#endif

namespace shmb::cuda {
namespace {

using facts::same_call;

// cudaTypedefs.h has a type for each version of each function: the one that we ask for must be there under its number.
#define SHMB_CUDA_COMPARE(member, symbol, version, exported, parameters) \
  static_assert(same_call(static_cast<Code(*) parameters>(nullptr), static_cast<PFN_##symbol##_v##version>(nullptr)));
SHMB_CUDA_REQUIRED(SHMB_CUDA_COMPARE)
SHMB_CUDA_OPTIONAL(SHMB_CUDA_COMPARE)
SHMB_CUDA_FOR_TESTS(SHMB_CUDA_COMPARE)
#undef SHMB_CUDA_COMPARE

static_assert(sizeof(AllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProp, requested_handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProp, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle) && sizeof(IpcHandle) == sizeof(CUipcEventHandle));
static_assert(sizeof(Uuid) == sizeof(CUuuid));

template <class A, class B>
consteval bool same(A ours, B theirs) {
  return static_cast<long long>(ours) == static_cast<long long>(theirs);
}
static_assert(same(kPinnedAllocation, CU_MEM_ALLOCATION_TYPE_PINNED));
static_assert(same(kDeviceLocation, CU_MEM_LOCATION_TYPE_DEVICE));
static_assert(same(kPosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
static_assert(same(kReadAccess, CU_MEM_ACCESS_FLAGS_PROT_READ));
static_assert(same(kReadWriteAccess, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
static_assert(same(kMinimumGranularity, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
static_assert(same(kHostPortable, CU_MEMHOSTREGISTER_PORTABLE));
static_assert(same(kHostDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP));
static_assert(same(kHostReadOnly, CU_MEMHOSTREGISTER_READ_ONLY));
static_assert(same(kNonBlocking, CU_STREAM_NON_BLOCKING) && same(kLazyPeer, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
static_assert(same(kDisableTiming, CU_EVENT_DISABLE_TIMING) && same(kInterprocess, CU_EVENT_INTERPROCESS));
static_assert(same(kWaitGeq, CU_STREAM_WAIT_VALUE_GEQ) && same(kWriteDefault, CU_STREAM_WRITE_VALUE_DEFAULT));
static_assert(same(kHostMemory, CU_MEMORYTYPE_HOST) && same(kDeviceMemory, CU_MEMORYTYPE_DEVICE));

static_assert(same(DeviceAttribute::pageable_access, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS));
static_assert(same(DeviceAttribute::vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
static_assert(same(DeviceAttribute::posix_fd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
static_assert(same(DeviceAttribute::rdma_with_vmm, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
static_assert(same(DeviceAttribute::read_only_register, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED));
static_assert(same(DeviceAttribute::mem_ops_64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
static_assert(same(DeviceAttribute::dma_buf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED));
static_assert(same(DeviceAttribute::fabric, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED));

static_assert(same(PointerAttribute::context, CU_POINTER_ATTRIBUTE_CONTEXT));
static_assert(same(PointerAttribute::memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE));
static_assert(same(PointerAttribute::device_pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER));
static_assert(same(PointerAttribute::host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER));
static_assert(same(PointerAttribute::buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID));
static_assert(same(PointerAttribute::device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
static_assert(same(PointerAttribute::legacy_ipc_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE));
static_assert(same(PointerAttribute::range_start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR));
static_assert(same(PointerAttribute::range_size, CU_POINTER_ATTRIBUTE_RANGE_SIZE));
static_assert(same(PointerAttribute::mapped, CU_POINTER_ATTRIBUTE_MAPPED));
static_assert(same(PointerAttribute::allowed_handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES));
static_assert(same(PointerAttribute::mempool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE));

static_assert(same(kSuccess, CUDA_SUCCESS) && same(kInvalidValue, CUDA_ERROR_INVALID_VALUE));
static_assert(same(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY) && same(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(same(kStubLibrary, CUDA_ERROR_STUB_LIBRARY) && same(kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE));
static_assert(same(kNoDevice, CUDA_ERROR_NO_DEVICE) && same(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE));
static_assert(same(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT) && same(kNotFound, CUDA_ERROR_NOT_FOUND));
static_assert(same(kMapFailed, CUDA_ERROR_MAP_FAILED));
static_assert(same(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE));
static_assert(same(kPeerUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
static_assert(same(kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE));
static_assert(same(kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM) && same(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE));
static_assert(same(kTooManyPeers, CUDA_ERROR_TOO_MANY_PEERS));
static_assert(same(kNotReady, CUDA_ERROR_NOT_READY) && same(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS));
static_assert(same(kContextDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED) && same(kAssert, CUDA_ERROR_ASSERT));
static_assert(same(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT) && same(kInvalidPc, CUDA_ERROR_INVALID_PC));
static_assert(same(kHardwareStack, CUDA_ERROR_HARDWARE_STACK_ERROR));
static_assert(same(kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION));
static_assert(same(kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS));
static_assert(same(kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE));
#if CUDA_VERSION >= 13000  // later than 12.6; the headers in between were not at hand
static_assert(same(kContained, CUDA_ERROR_CONTAINED));
#endif
#if CUDA_VERSION >= 12080
static_assert(same(kTensorMemoryLeak, CUDA_ERROR_TENSOR_MEMORY_LEAK));
#endif
static_assert(same(kAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
static_assert(same(kNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
static_assert(same(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED) && same(kNotPermitted, CUDA_ERROR_NOT_PERMITTED));
static_assert(same(kNotSupported, CUDA_ERROR_NOT_SUPPORTED) && same(kSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY));
static_assert(same(kDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) && same(kUnknown, CUDA_ERROR_UNKNOWN));
static_assert(same(kIllegalState, CUDA_ERROR_ILLEGAL_STATE));
static_assert(same(kCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
static_assert(same(kCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
static_assert(same(kCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
static_assert(same(kCapturedEvent, CUDA_ERROR_CAPTURED_EVENT));
static_assert(same(kCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
static_assert(same(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED));
static_assert(same(kCompatNotSupported, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE));
static_assert(same(kMpsFirst, CUDA_ERROR_MPS_CONNECTION_FAILED) && same(kMpsLast, CUDA_ERROR_MPS_CLIENT_TERMINATED));

}  // namespace
}  // namespace shmb::cuda
#endif
