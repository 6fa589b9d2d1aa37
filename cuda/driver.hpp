// SPDX-License-Identifier: Apache-2.0
// libcuda, found at run time. Without driver, device or toolkit the rest of the library works, and `load` says which of
// them is missing. The library is loaded once and never unloaded. Afterwards only two facts can change, and only once:
// this process is a forked child, or its context was ruined by a fault on the device.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "cuda/abi.hpp"

namespace shmb::cuda {

struct DeviceInfo {
  Device device = 0;  // its ordinal in this process
  Uuid uuid;          // of the GPU, or of the instance under MIG
  bool mig = false;
  std::string name, bus_id;
  std::size_t bytes = 0, granularity = 0;
  bool shareable = false;  // VMM with POSIX descriptors
  bool rdma = false, read_only_register = false, mem_ops_64 = false, dma_buf = false;

  std::string uuid_text() const;  // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", or "MIG-..."
};

// Features that some drivers lack.
enum class Feature { lease, timeline, bounded_waits, rdma };

class Driver {
 public:
  // Errors: no_driver, stub_driver, driver_too_old, no_device; forked_child in a child of a process that used the
  // driver; context_poisoned after a fault that ruined the context. Every call that begins new work loads again. A
  // failure is not remembered, because the driver may come later.
  static Result<const Driver*> load();
  // The result of the last successful `load`, also after a fault: for giving resources back. Null in a forked child,
  // where no driver call is allowed.
  static const Driver* loaded();

  const Calls* operator->() const { return &calls_; }
  const Calls& calls() const { return calls_; }
  int version() const { return version_; }  // 13000 is 13.0
  std::span<const DeviceInfo> devices() const { return devices_; }
  // Error: device_not_found, with the visible devices.
  Result<const DeviceInfo*> find(const Uuid& uuid) const;
  Result<const DeviceInfo*> at(int ordinal) const;
  bool has(Feature feature) const;
  Result<void> need(Feature feature) const;  // not_supported, with the name of the missing function

  // The sentence and status of a failed call: "cuMemMap for region 7.1 gives 1 CUDA_ERROR_INVALID_VALUE (…): …". A code
  // that ruins the context is remembered.
  Error failure(Code code, std::string_view call, std::string_view object) const;
  // As failure(), for importing a descriptor and mapping its memory: there the same codes say more.
  Error import_failure(Code code, std::string_view object, const DeviceInfo& device) const;
  Error open_failure(Code code, std::string_view object) const;  // for lent memory
  Error map_failure(Code code, std::string_view object, std::size_t bytes) const;
  std::string code_text(Code code) const;  // "700 CUDA_ERROR_ILLEGAL_ADDRESS"

  // For a failure without a distinct code: asks the device. The result is device_lost if the device fails a query that
  // never fails on a working one. One strange answer alone proves no loss. Null: the device is not visible, and the
  // failure is returned unchanged.
  Error looked_after(Error failure, const DeviceInfo* device) const;

  static bool poisons(Code code);  // a sticky error: the context is unusable
  static Code poisoned();          // the first such code seen in this process, or 0
  // A stream of the program is being captured into a graph, and the call is not allowed meanwhile.
  static bool of_capture(Code code) { return code >= kCaptureUnsupported && code <= kCaptureWrongThread; }

 private:
  static Result<const Driver*> load_first();
  Code lost(const DeviceInfo& device) const;  // the driver's code, or 0
  Result<void> resolve(void* library);
  Result<void> look_at_devices();

  Calls calls_;
  int version_ = 0;
  std::vector<DeviceInfo> devices_;
};

std::string uuid_text(const Uuid& uuid, bool mig);

#ifdef SHMB_TEST_SEAM
// The library to load instead of libcuda.so.1. Empty: the one of SHMB_LIBCUDA in the environment, else libcuda.so.1.
// Call it before the first load that succeeds.
void use_library_for_test(std::string path);
#endif

}  // namespace shmb::cuda
