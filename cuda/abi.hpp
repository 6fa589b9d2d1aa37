// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver API that the library uses, declared here. So the library builds on any machine, and users
// need no cuda.h. tests/cuda/abi_shape.cpp compares every line with the toolkit's headers where they are installed.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace shmb::cuda {

using Code = int;    // CUresult
using Device = int;  // CUdevice
using Address = unsigned long long;
using MemHandle = unsigned long long;
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Graph = struct CUgraph_st*;

struct Uuid {
  std::array<unsigned char, 16> bytes{};
  friend auto operator<=>(const Uuid&, const Uuid&) = default;
};
struct Location {
  int type = 0;
  int id = 0;
};
struct AllocationProp {
  int type = 0;
  int requested_handle_types = 0;
  Location location;
  void* win32 = nullptr;
  struct {
    unsigned char compression_type = 0;
    unsigned char gpu_direct_rdma_capable = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};
struct AccessDesc {
  Location location;
  int flags = 0;
};
struct IpcHandle {
  char reserved[64];
};

inline constexpr int kPinnedAllocation = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
inline constexpr int kDeviceLocation = 1;    // CU_MEM_LOCATION_TYPE_DEVICE
inline constexpr int kPosixFd = 1;           // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
inline constexpr int kNoAccess = 0;          // CU_MEM_ACCESS_FLAGS_PROT_*
inline constexpr int kReadAccess = 1;
inline constexpr int kReadWriteAccess = 3;
inline constexpr int kMinimumGranularity = 0;  // CU_MEM_ALLOC_GRANULARITY_MINIMUM
inline constexpr unsigned kHostPortable = 1;   // CU_MEMHOSTREGISTER_*
inline constexpr unsigned kHostDeviceMap = 2;
inline constexpr unsigned kHostReadOnly = 8;
inline constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kDisableTiming = 2;  // CU_EVENT_*
inline constexpr unsigned kInterprocess = 4;
inline constexpr unsigned kLazyPeer = 1;      // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr int kCaptureRelaxed = 2;     // CU_STREAM_CAPTURE_MODE_*
inline constexpr unsigned kWaitGeq = 0;       // CU_STREAM_WAIT_VALUE_GEQ: cyclic, (signed)(word - value) >= 0
inline constexpr unsigned kWriteDefault = 0;  // CU_STREAM_WRITE_VALUE_DEFAULT: a system-scope fence comes first

// CUdevice_attribute and CUpointer_attribute, as far as the library uses them.
enum class DeviceAttribute : int {
  pageable_access = 88,
  vmm = 102,
  posix_fd = 103,
  rdma_with_vmm = 110,
  read_only_register = 113,
  mem_ops_64 = 122,
  dma_buf = 124,
  fabric = 128,
};
enum class PointerAttribute : int {
  context = 1,
  memory_type = 2,
  device_pointer = 3,
  host_pointer = 4,
  buffer_id = 7,
  device_ordinal = 9,
  legacy_ipc_capable = 10,
  range_start = 11,
  range_size = 12,
  mapped = 13,
  allowed_handle_types = 14,
  mempool = 17,
};
inline constexpr int kHostMemory = 1, kDeviceMemory = 2;  // CU_MEMORYTYPE_*

// CUresult, as far as the library distinguishes its values.
inline constexpr Code kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kStubLibrary = 34,
                      kDeviceUnavailable = 46, kNoDevice = 100, kInvalidDevice = 101, kInvalidContext = 201,
                      kMapFailed = 205, kEccUncorrectable = 214, kPeerUnsupported = 217, kNvlinkUncorrectable = 220,
                      kContained = 226, kOperatingSystem = 304, kInvalidHandle = 400, kIllegalState = 401,
                      kNotFound = 500, kNotReady = 600, kIllegalAddress = 700, kLaunchTimeout = 702,
                      kContextDestroyed = 709, kAssert = 710, kTooManyPeers = 711, kAlreadyRegistered = 712,
                      kNotRegistered = 713, kHardwareStack = 714, kIllegalInstruction = 715, kMisalignedAddress = 716,
                      kInvalidAddressSpace = 717, kInvalidPc = 718, kLaunchFailed = 719, kTensorMemoryLeak = 721,
                      kNotPermitted = 800, kNotSupported = 801, kSystemNotReady = 802, kDriverMismatch = 803,
                      kCompatNotSupported = 804, kMpsFirst = 805, kMpsLast = 810, kCaptureUnsupported = 900,
                      kCaptureInvalidated = 901, kCaptureImplicit = 906, kCapturedEvent = 907,
                      kCaptureWrongThread = 908, kUnknown = 999;

// X(member, symbol, version asked of cuGetProcAddress, name in the library's symbol table, parameters). The version is
// the one whose ABI is declared here: the newest may have another signature under the same name.
#define SHMB_CUDA_REQUIRED(X)                                                                                          \
  X(init, cuInit, 2000, cuInit, (unsigned))                                                                            \
  X(error_name, cuGetErrorName, 6000, cuGetErrorName, (Code, const char**))                                            \
  X(device_count, cuDeviceGetCount, 2000, cuDeviceGetCount, (int*))                                                    \
  X(device_get, cuDeviceGet, 2000, cuDeviceGet, (Device*, int))                                                        \
  X(device_uuid, cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2, (Uuid*, Device))                                          \
  X(device_name, cuDeviceGetName, 2000, cuDeviceGetName, (char*, int, Device))                                         \
  X(device_bus_id, cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId, (char*, int, Device))                               \
  X(device_attribute, cuDeviceGetAttribute, 2000, cuDeviceGetAttribute, (int*, DeviceAttribute, Device))               \
  X(device_total, cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2, (std::size_t*, Device))                                 \
  X(device_can_access_peer, cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer, (int*, Device, Device))                \
  X(primary_retain, cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain, (Context*, Device))                      \
  X(primary_release, cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2, (Device))                         \
  X(primary_state, cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState, (Device, unsigned*, int*))            \
  X(context_get, cuCtxGetCurrent, 4000, cuCtxGetCurrent, (Context*))                                                   \
  X(context_push, cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2, (Context))                                              \
  X(context_pop, cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2, (Context*))                                                \
  X(context_device, cuCtxGetDevice, 2000, cuCtxGetDevice, (Device*))                                                   \
  X(context_synchronize, cuCtxSynchronize, 2000, cuCtxSynchronize, ())                                                 \
  X(mem_info, cuMemGetInfo, 3020, cuMemGetInfo_v2, (std::size_t*, std::size_t*))                                       \
  X(granularity, cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity,                                  \
    (std::size_t*, const AllocationProp*, int))                                                                        \
  X(mem_create, cuMemCreate, 10020, cuMemCreate, (MemHandle*, std::size_t, const AllocationProp*, unsigned long long)) \
  X(mem_release, cuMemRelease, 10020, cuMemRelease, (MemHandle))                                                       \
  X(mem_export, cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle,                                     \
    (void*, MemHandle, int, unsigned long long))                                                                       \
  X(mem_import, cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle, (MemHandle*, void*, int))       \
  X(mem_properties, cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle,             \
    (AllocationProp*, MemHandle))                                                                                      \
  X(address_reserve, cuMemAddressReserve, 10020, cuMemAddressReserve,                                                  \
    (Address*, std::size_t, std::size_t, Address, unsigned long long))                                                 \
  X(address_free, cuMemAddressFree, 10020, cuMemAddressFree, (Address, std::size_t))                                   \
  X(mem_map, cuMemMap, 10020, cuMemMap, (Address, std::size_t, std::size_t, MemHandle, unsigned long long))            \
  X(mem_unmap, cuMemUnmap, 10020, cuMemUnmap, (Address, std::size_t))                                                  \
  X(mem_set_access, cuMemSetAccess, 10020, cuMemSetAccess, (Address, std::size_t, const AccessDesc*, std::size_t))     \
  X(mem_retain, cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle, (MemHandle*, void*))                  \
  X(address_range, cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2, (Address*, std::size_t*, Address))             \
  X(pointer_attributes, cuPointerGetAttributes, 7000, cuPointerGetAttributes,                                          \
    (unsigned, PointerAttribute*, void**, Address))                                                                    \
  X(stream_context, cuStreamGetCtx, 9020, cuStreamGetCtx, (Stream, Context*))                                          \
  X(stream_capturing, cuStreamIsCapturing, 10000, cuStreamIsCapturing, (Stream, int*))                                 \
  X(stream_id, cuStreamGetId, 12000, cuStreamGetId, (Stream, unsigned long long*))                                     \
  X(capture_mode, cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode, (int*))                 \
  X(stream_create, cuStreamCreate, 2000, cuStreamCreate, (Stream*, unsigned))                                          \
  X(stream_destroy, cuStreamDestroy, 4000, cuStreamDestroy_v2, (Stream))                                               \
  X(copy_on_device_async, cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2, (Address, Address, std::size_t, Stream))      \
  X(event_create, cuEventCreate, 2000, cuEventCreate, (Event*, unsigned))                                              \
  X(event_destroy, cuEventDestroy, 4000, cuEventDestroy_v2, (Event))                                                   \
  X(event_record, cuEventRecord, 2000, cuEventRecord, (Event, Stream))                                                 \
  X(event_query, cuEventQuery, 2000, cuEventQuery, (Event))                                                            \
  X(memset8_async, cuMemsetD8Async, 3020, cuMemsetD8Async, (Address, unsigned char, std::size_t, Stream))

// Groups that a driver may lack. Only the feature that needs a missing group is refused, by its name.
#define SHMB_CUDA_LEASE(X)                                                                              \
  X(ipc_get_memory, cuIpcGetMemHandle, 4010, cuIpcGetMemHandle, (IpcHandle*, Address))                  \
  X(ipc_open_memory, cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2, (Address*, IpcHandle, unsigned)) \
  X(ipc_close_memory, cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle, (Address))
#define SHMB_CUDA_TIMELINE(X)                                                                                         \
  X(stream_write64, cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2, (Stream, Address, std::uint64_t, unsigned)) \
  X(stream_wait64, cuStreamWaitValue64, 11070, cuStreamWaitValue64_v2, (Stream, Address, std::uint64_t, unsigned))    \
  X(host_register, cuMemHostRegister, 6050, cuMemHostRegister_v2, (void*, std::size_t, unsigned))                     \
  X(host_unregister, cuMemHostUnregister, 4000, cuMemHostUnregister, (void*))                                         \
  X(host_address, cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2, (Address*, void*, unsigned))
#define SHMB_CUDA_WAITS(X) X(context_record, cuCtxRecordEvent, 12050, cuCtxRecordEvent, (Context, Event))
#define SHMB_CUDA_RDMA(X)                                                              \
  X(range_handle, cuMemGetHandleForAddressRange, 11070, cuMemGetHandleForAddressRange, \
    (void*, Address, std::size_t, int, unsigned long long))

#define SHMB_CUDA_OPTIONAL(X) SHMB_CUDA_LEASE(X) SHMB_CUDA_TIMELINE(X) SHMB_CUDA_WAITS(X) SHMB_CUDA_RDMA(X)

// Functions that tests call and the library never does.
#define SHMB_CUDA_FOR_TESTS(X)                                                                              \
  X(context_id, cuCtxGetId, 12000, cuCtxGetId, (Context, unsigned long long*))                              \
  X(context_set, cuCtxSetCurrent, 4000, cuCtxSetCurrent, (Context))                                         \
  X(context_create, cuCtxCreate, 3020, cuCtxCreate_v2, (Context*, unsigned, Device))                        \
  X(context_destroy, cuCtxDestroy, 4000, cuCtxDestroy_v2, (Context))                                        \
  X(mem_get_access, cuMemGetAccess, 10020, cuMemGetAccess, (unsigned long long*, const Location*, Address)) \
  X(mem_alloc, cuMemAlloc, 3020, cuMemAlloc_v2, (Address*, std::size_t))                                    \
  X(mem_free, cuMemFree, 3020, cuMemFree_v2, (Address))                                                     \
  X(copy_to_device, cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, (Address, const void*, std::size_t))               \
  X(copy_to_host, cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, (void*, Address, std::size_t))                       \
  X(stream_synchronize, cuStreamSynchronize, 2000, cuStreamSynchronize, (Stream))                           \
  X(stream_query, cuStreamQuery, 2000, cuStreamQuery, (Stream))                                             \
  X(stream_wait_event, cuStreamWaitEvent, 3020, cuStreamWaitEvent, (Stream, Event, unsigned))               \
  X(ipc_get_event, cuIpcGetEventHandle, 4010, cuIpcGetEventHandle, (IpcHandle*, Event))                     \
  X(ipc_open_event, cuIpcOpenEventHandle, 4010, cuIpcOpenEventHandle, (Event*, IpcHandle))                  \
  X(begin_capture, cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, (Stream, int))                     \
  X(end_capture, cuStreamEndCapture, 10000, cuStreamEndCapture, (Stream, Graph*))                           \
  X(graph_destroy, cuGraphDestroy, 10000, cuGraphDestroy, (Graph))                                          \
  X(launch_host, cuLaunchHostFunc, 10000, cuLaunchHostFunc, (Stream, void (*)(void*), void*))

struct Calls {
#define SHMB_CUDA_MEMBER(member, symbol, version, exported, parameters) Code(*member) parameters = nullptr;
  SHMB_CUDA_REQUIRED(SHMB_CUDA_MEMBER)
  SHMB_CUDA_OPTIONAL(SHMB_CUDA_MEMBER)
#ifdef SHMB_TEST_SEAM
  SHMB_CUDA_FOR_TESTS(SHMB_CUDA_MEMBER)
#endif
#undef SHMB_CUDA_MEMBER
};

}  // namespace shmb::cuda
