// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver API that the GPU facts need, declared here so that the program builds on any machine:
// no CUDA header, no link to libcuda. driver_shape.cpp compares every line with cuda.h where the toolkit is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace shmb::facts {

using Code = int;
using Device = int;
using Address = unsigned long long;
using MemHandle = unsigned long long;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Kernel = struct KernelTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;

struct Uuid {
  unsigned char bytes[16];
};
struct Location {
  int type;
  int id;
};
struct AllocationProp {
  int type;
  int requested_handle_types;
  Location location;
  void* win32;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
struct AccessDesc {
  Location location;
  int flags;
};
struct IpcHandle {
  char reserved[64];
};

inline constexpr int kPinnedAllocation = 1;   // CU_MEM_ALLOCATION_TYPE_PINNED
inline constexpr int kDeviceLocation = 1;     // CU_MEM_LOCATION_TYPE_DEVICE
inline constexpr int kPosixFd = 1;            // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
inline constexpr int kRead = 1;               // CU_MEM_ACCESS_FLAGS_PROT_READ
inline constexpr int kReadWrite = 3;          // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
inline constexpr unsigned kHostPortable = 1;  // CU_MEMHOSTREGISTER_*
inline constexpr unsigned kHostDeviceMap = 2;
inline constexpr unsigned kHostReadOnly = 8;
inline constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kDisableTiming = 2;  // CU_EVENT_*
inline constexpr unsigned kInterprocess = 4;
inline constexpr unsigned kLazyPeer = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr unsigned kWaitGeq = 0;   // CU_STREAM_WAIT_VALUE_GEQ, cyclic
inline constexpr Code kSuccess = 0;
inline constexpr Code kOutOfMemory = 2;
inline constexpr Code kNotReady = 600;
inline constexpr Code kIllegalAddress = 700;

// X(member, symbol, version asked of cuGetProcAddress, parameters). The version is the one whose ABI stands here:
// asking for the newest would hand out another signature for some names.
#define SHMB_FACTS_DRIVER(X)                                                                                        \
  X(init, cuInit, 2000, (unsigned))                                                                                 \
  X(driver_version, cuDriverGetVersion, 2020, (int*))                                                               \
  X(error_name, cuGetErrorName, 6000, (Code, const char**))                                                         \
  X(device_count, cuDeviceGetCount, 2000, (int*))                                                                   \
  X(device_get, cuDeviceGet, 2000, (Device*, int))                                                                  \
  X(device_name, cuDeviceGetName, 2000, (char*, int, Device))                                                       \
  X(device_uuid, cuDeviceGetUuid, 11040, (Uuid*, Device))                                                           \
  X(device_peer, cuDeviceCanAccessPeer, 4000, (int*, Device, Device))                                               \
  X(device_attribute, cuDeviceGetAttribute, 2000, (int*, int, Device))                                              \
  X(device_bus_id, cuDeviceGetPCIBusId, 4010, (char*, int, Device))                                                 \
  X(primary_retain, cuDevicePrimaryCtxRetain, 7000, (Context*, Device))                                             \
  X(primary_release, cuDevicePrimaryCtxRelease, 11000, (Device))                                                    \
  X(context_set, cuCtxSetCurrent, 4000, (Context))                                                                  \
  X(primary_state, cuDevicePrimaryCtxGetState, 7000, (Device, unsigned*, int*))                                     \
  X(context_get, cuCtxGetCurrent, 4000, (Context*))                                                                 \
  X(mem_info, cuMemGetInfo, 3020, (std::size_t*, std::size_t*))                                                     \
  X(granularity, cuMemGetAllocationGranularity, 10020, (std::size_t*, const AllocationProp*, int))                  \
  X(mem_create, cuMemCreate, 10020, (MemHandle*, std::size_t, const AllocationProp*, unsigned long long))           \
  X(mem_release, cuMemRelease, 10020, (MemHandle))                                                                  \
  X(mem_export, cuMemExportToShareableHandle, 10020, (void*, MemHandle, int, unsigned long long))                   \
  X(mem_import, cuMemImportFromShareableHandle, 10020, (MemHandle*, void*, int))                                    \
  X(mem_properties, cuMemGetAllocationPropertiesFromHandle, 10020, (AllocationProp*, MemHandle))                    \
  X(address_reserve, cuMemAddressReserve, 10020, (Address*, std::size_t, std::size_t, Address, unsigned long long)) \
  X(address_free, cuMemAddressFree, 10020, (Address, std::size_t))                                                  \
  X(mem_map, cuMemMap, 10020, (Address, std::size_t, std::size_t, MemHandle, unsigned long long))                   \
  X(mem_unmap, cuMemUnmap, 10020, (Address, std::size_t))                                                           \
  X(mem_access, cuMemSetAccess, 10020, (Address, std::size_t, const AccessDesc*, std::size_t))                      \
  X(mem_alloc, cuMemAlloc, 3020, (Address*, std::size_t))                                                           \
  X(mem_free, cuMemFree, 3020, (Address))                                                                           \
  X(ipc_get_mem, cuIpcGetMemHandle, 4010, (IpcHandle*, Address))                                                    \
  X(ipc_open_mem, cuIpcOpenMemHandle, 11000, (Address*, IpcHandle, unsigned))                                       \
  X(ipc_close_mem, cuIpcCloseMemHandle, 4010, (Address))                                                            \
  X(event_create, cuEventCreate, 2000, (Event*, unsigned))                                                          \
  X(event_record, cuEventRecord, 2000, (Event, Stream))                                                             \
  X(event_query, cuEventQuery, 2000, (Event))                                                                       \
  X(event_destroy, cuEventDestroy, 4000, (Event))                                                                   \
  X(ipc_get_event, cuIpcGetEventHandle, 4010, (IpcHandle*, Event))                                                  \
  X(ipc_open_event, cuIpcOpenEventHandle, 4010, (Event*, IpcHandle))                                                \
  X(stream_create, cuStreamCreate, 2000, (Stream*, unsigned))                                                       \
  X(stream_sync, cuStreamSynchronize, 2000, (Stream))                                                               \
  X(stream_query, cuStreamQuery, 2000, (Stream))                                                                    \
  X(stream_capturing, cuStreamIsCapturing, 10000, (Stream, int*))                                                   \
  X(begin_capture, cuStreamBeginCapture, 10010, (Stream, int))                                                      \
  X(end_capture, cuStreamEndCapture, 10000, (Stream, Graph*))                                                       \
  X(graph_destroy, cuGraphDestroy, 10000, (Graph))                                                                  \
  X(stream_wait_event, cuStreamWaitEvent, 3020, (Stream, Event, unsigned))                                          \
  X(stream_write64, cuStreamWriteValue64, 11070, (Stream, Address, std::uint64_t, unsigned))                        \
  X(stream_wait64, cuStreamWaitValue64, 11070, (Stream, Address, std::uint64_t, unsigned))                          \
  X(host_register, cuMemHostRegister, 6050, (void*, std::size_t, unsigned))                                         \
  X(host_unregister, cuMemHostUnregister, 4000, (void*))                                                            \
  X(host_address, cuMemHostGetDevicePointer, 3020, (Address*, void*, unsigned))                                     \
  X(copy_to_device, cuMemcpyHtoD, 3020, (Address, const void*, std::size_t))                                        \
  X(copy_to_host, cuMemcpyDtoH, 3020, (void*, Address, std::size_t))                                                \
  X(copy_on_device, cuMemcpyDtoDAsync, 3020, (Address, Address, std::size_t, Stream))                               \
  X(module_load, cuModuleLoadData, 2000, (Module*, const void*))                                                    \
  X(module_kernel, cuModuleGetFunction, 2000, (Kernel*, Module, const char*))                                       \
  X(launch, cuLaunchKernel, 4000,                                                                                   \
    (Kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**))

// A driver may lack these: then the member is null.
#define SHMB_FACTS_OPTIONAL(X)                                 \
  X(context_record, cuCtxRecordEvent, 12050, (Context, Event)) \
  X(context_sync, cuCtxSynchronize, 2000, ())

struct Driver {
#define SHMB_FACTS_MEMBER(member, symbol, version, parameters) Code(*member) parameters = nullptr;
  SHMB_FACTS_DRIVER(SHMB_FACTS_MEMBER)
  SHMB_FACTS_OPTIONAL(SHMB_FACTS_MEMBER)
#undef SHMB_FACTS_MEMBER
};

extern Driver cu;

// Fills `cu` in this process. The answer is empty, or says what is missing. Never called by a holder process.
std::string load_driver();

bool driver_is_fake();  // tests/fakecuda, once it is loaded

// "700 CUDA_ERROR_ILLEGAL_ADDRESS"
std::string code_text(Code code);

// Ends the process with a failed report unless the call succeeded.
void must(Code code, const char* call);

}  // namespace shmb::facts
