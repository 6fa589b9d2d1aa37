// SPDX-License-Identifier: Apache-2.0
// How the functions are found, with the versions that brought them. A caller that asks for a version newer than the one
// whose declaration he uses gets another function under the same name; here that one notes a violation.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "tests/fakecuda/state.hpp"

namespace fakecuda {
namespace {

struct Entry {
  const char* name;
  int version;
  const char* exported;
};

constexpr Entry kEntries[] = {
#define FAKECUDA_ENTRY(member, symbol, version, exported, parameters) {#symbol, version, #exported},
    SHMB_CUDA_REQUIRED(FAKECUDA_ENTRY) SHMB_CUDA_OPTIONAL(FAKECUDA_ENTRY) SHMB_CUDA_FOR_TESTS(FAKECUDA_ENTRY)
#undef FAKECUDA_ENTRY
    // Functions that the GPU facts and other programs use beside these.
    {"cuDriverGetVersion", 2020, "cuDriverGetVersion"},
    {"cuGetErrorString", 6000, "cuGetErrorString"},
    {"cuPointerGetAttribute", 4000, "cuPointerGetAttribute"},
    {"cuEventSynchronize", 2000, "cuEventSynchronize"},
    {"cuStreamWriteValue32", 11070, "cuStreamWriteValue32_v2"},
    {"cuStreamWaitValue32", 11070, "cuStreamWaitValue32_v2"},
    {"cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2"},
    {"cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2"},
    {"cuModuleLoadData", 2000, "cuModuleLoadData"},
    {"cuModuleUnload", 2000, "cuModuleUnload"},
    {"cuModuleGetFunction", 2000, "cuModuleGetFunction"},
    {"cuLaunchKernel", 4000, "cuLaunchKernel"},
    // Other declarations of 13.0.
    {"cuCtxGetDevice", 13000, "fakecuda_newer"},
    {"cuCtxSynchronize", 13000, "fakecuda_newer"},
};

struct CodeName {
  Code code;
  const char* name;
  const char* text;
};

constexpr CodeName kCodes[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kStubLibrary, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {kDeviceUnavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kMapFailed, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {kContained, "CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {kOperatingSystem, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kContextDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {kAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the memory is registered"},
    {kNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered region"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kLaunchTimeout, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {kAssert, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {kHardwareStack, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {kIllegalInstruction, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {kMisalignedAddress, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {kInvalidAddressSpace, "CUDA_ERROR_INVALID_ADDRESS_SPACE",
     "operation not supported on global/shared address space"},
    {kInvalidPc, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
    {kTensorMemoryLeak, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory not completely deallocated"},
    {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {kSystemNotReady, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {kDriverMismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver"},
    {kIllegalState, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error"},
    {kCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capture"},
    {kCaptureWrongThread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a capture of another thread"},
    {kMpsFirst, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect"},
    {kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const CodeName* named(Code code) {
  for (const CodeName& one : kCodes)
    if (one.code == code) return &one;
  return nullptr;
}

// Found in this library by its own name, not in what else the process has loaded.
void* own_symbol(const char* name) {
  Dl_info here{};
  static void* const self = ::dladdr(reinterpret_cast<void*>(&fakecuda_audit), &here) != 0
                                ? ::dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD)
                                : nullptr;
  return self != nullptr ? ::dlsym(self, name) : nullptr;
}

constexpr int kNoSuchSymbol = 1, kTooNew = 2;  // CUdriverProcAddressQueryResult

Code find_procedure(const char* symbol, void** to, int version, int* status) {
  if (symbol == nullptr || to == nullptr) return kInvalidValue;
  *to = nullptr;
  const Entry* best = nullptr;
  bool known = false;
  if (const char* hidden = std::getenv("FAKECUDA_HIDE"); hidden != nullptr && std::strcmp(hidden, symbol) == 0) {
    if (status != nullptr) *status = kNoSuchSymbol;
    return kNotFound;
  }
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.name, symbol) != 0) continue;
    known = true;
    if (entry.version <= version && entry.version <= played_version() &&
        (best == nullptr || entry.version > best->version))
      best = &entry;
  }
  if (status != nullptr) *status = best != nullptr ? 0 : known ? kTooNew : kNoSuchSymbol;
  if (best == nullptr) return kNotFound;
  *to = own_symbol(best->exported);
  return *to != nullptr ? kSuccess : kNotFound;
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code fakecuda_newer() {
  return enter("fakecuda_newer", Needs::nothing, [](State& it, Lock&) -> Code {
    it.violation("a function was called by the declaration of another version");
    return kInvalidValue;
  });
}

FAKECUDA_API Code cuGetProcAddress_v2(const char* symbol, void** to, int version, std::uint64_t, int* status) {
  return plays_stub() ? kStubLibrary : find_procedure(symbol, to, version, status);
}

FAKECUDA_API Code cuGetProcAddress(const char* symbol, void** to, int version, std::uint64_t) {
  return plays_stub() ? kStubLibrary : find_procedure(symbol, to, version, nullptr);
}

FAKECUDA_API Code cuGetErrorName(Code code, const char** name) {
  if (name == nullptr) return kInvalidValue;
  *name = named(code) != nullptr ? named(code)->name : nullptr;
  return *name != nullptr ? kSuccess : kInvalidValue;
}

FAKECUDA_API Code cuGetErrorString(Code code, const char** text) {
  if (text == nullptr) return kInvalidValue;
  *text = named(code) != nullptr ? named(code)->text : nullptr;
  return *text != nullptr ? kSuccess : kInvalidValue;
}
