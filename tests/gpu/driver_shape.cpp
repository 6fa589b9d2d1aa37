// SPDX-License-Identifier: Apache-2.0
// Compares driver.hpp with the toolkit's cuda.h at compile time; without the toolkit this file is empty.
#include "tests/gpu/driver.hpp"

#if __has_include(<cuda.h>)
#include <cuda.h>

#include "tests/gpu/same_call.hpp"

namespace shmb::facts {
namespace {

#define SHMB_FACTS_COMPARE(member, symbol, version, parameters) \
  static_assert(same_call(static_cast<Code(*) parameters>(nullptr), static_cast<decltype(&symbol)>(nullptr)));
SHMB_FACTS_DRIVER(SHMB_FACTS_COMPARE)
#undef SHMB_FACTS_COMPARE
#if CUDA_VERSION >= 12050
static_assert(same_call(decltype(Driver::context_record){}, static_cast<decltype(&cuCtxRecordEvent)>(nullptr)));
#endif
#if CUDA_VERSION < 13000  // from then on another function has this name; the version asked for gives this one
static_assert(same_call(decltype(Driver::context_sync){}, static_cast<decltype(&cuCtxSynchronize)>(nullptr)));
#endif

static_assert(sizeof(AllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProp, requested_handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProp, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle) && sizeof(IpcHandle) == sizeof(CUipcEventHandle));
static_assert(sizeof(Uuid) == sizeof(CUuuid));
static_assert(kPinnedAllocation == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kDeviceLocation == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kPosixFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kRead == CU_MEM_ACCESS_FLAGS_PROT_READ && kReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(kHostPortable == CU_MEMHOSTREGISTER_PORTABLE && kHostDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kHostReadOnly == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(kNonBlocking == CU_STREAM_NON_BLOCKING && kLazyPeer == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(kDisableTiming == CU_EVENT_DISABLE_TIMING && kInterprocess == CU_EVENT_INTERPROCESS);
static_assert(kWaitGeq == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(kSuccess == CUDA_SUCCESS && kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kNotReady == CUDA_ERROR_NOT_READY && kIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);

}  // namespace
}  // namespace shmb::facts
#endif
