// SPDX-License-Identifier: Apache-2.0
// Only the versioned name is loaded, because libcuda.so without a number may be the toolkit's stub. Every function is
// requested with the version of its declaration in abi.hpp.
#include "cuda/driver.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "base/sys_gpu.hpp"
#include "base/text.hpp"
#include "client/session/forked.hpp"

namespace shmb::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr int kOldestDriver = 12000;
#ifndef SHMB_GPU
#define SHMB_GPU 1
#endif

// One per process. Its lock is held over a fork, so that the child finds it free.
struct Loader final : client::ForkGuarded {
  Loader() { client::enrol(*this); }
  void lock_for_fork() override { mutex.lock(); }
  void unlock_after_fork() override { mutex.unlock(); }

  std::mutex mutex;
  std::unique_ptr<Driver> driver;  // set once
  client::ForkMark mark;           // wiped in children
  bool initialised = false;        // cuInit was called: a child may not call the driver
  std::atomic<Code> poison{0};
  std::string path;
};

// Never destroyed: a host program's static objects may hold regions.
Loader& loader() {
  static Loader* const one = new Loader;
  return *one;
}

std::string library_path() {
#ifdef SHMB_TEST_SEAM
  if (!loader().path.empty()) return loader().path;
  if (const char* named = ::secure_getenv("SHMB_LIBCUDA"); named != nullptr) return named;
#endif
  return kLibrary;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::unexpected<Error> forked_error() {
  return error(Status::forked_child,
               "this process was forked from one that had used the GPU, and CUDA does not survive a fork: "
               "start it with exec (spawn, forkserver before the first GPU call) or use the GPU in the parent");
}

std::unexpected<Error> poisoned_error(const std::string& code) {
  return error(Status::context_poisoned,
               "an earlier fault (" + code +
                   ") has ruined the CUDA context of this process: regions can still be given "
                   "back, all other work on the GPU needs a new process");
}

// The meaning of a code, wherever it comes from, and the remedy.
struct Meaning {
  Status status;
  const char* advice;
};

Meaning meaning(Code code) {
  if (Driver::poisons(code)) return {Status::context_poisoned, "the context is ruined: start a new process"};
  if (Driver::of_capture(code))
    return {Status::busy, "a stream is being captured into a graph: call again after the capture"};
  if (code >= kMpsFirst && code <= kMpsLast) return {Status::mps, "look at the MPS control daemon and its log"};
  switch (code) {
    case kOutOfMemory:
      return {Status::out_of_memory, "free memory on the device or ask for less, then try again"};
    case kNotInitialized:
      return {Status::forked_child, "the driver is not initialised in this process: was it forked?"};
    case kStubLibrary:
      return {Status::stub_driver, "the toolkit's stub was loaded: take its folder out of the library path"};
    // None of these four means that memory is lost.
    case kDeviceUnavailable:
      return {Status::not_permitted,
              "another process has the device for itself, or its compute mode forbids it: look at the compute mode in "
              "nvidia-smi -q"};
    case kSystemNotReady:
      return {Status::driver_failed, "the system is not ready yet: look at nvidia-fabricmanager, then try again"};
    case kDriverMismatch:
      return {Status::driver_failed,
              "the driver library and the kernel module differ in version: reload the module, or give the container "
              "the host's library"};
    case kUnknown:
      return {Status::driver_failed, "look at the kernel log (Xid) and at nvidia-smi"};
    case kCompatNotSupported:
      return {Status::driver_too_old, "the kernel module does not support this driver library"};
    case kNoDevice:
      return {Status::no_device, "no GPU is visible: look at CUDA_VISIBLE_DEVICES and the container's devices"};
    case kInvalidDevice:
      return {Status::device_not_visible, "this process does not see the device: look at CUDA_VISIBLE_DEVICES"};
    case kAlreadyRegistered:
      return {Status::already_registered, "this process has registered these pages before: use that registration"};
    case kNotPermitted:
      return {Status::not_permitted, "the driver forbids it here: look at IMEX, MPS and the container's policy"};
    case kNotSupported:
      return {Status::not_supported, "this device or driver cannot do it"};
    case kInvalidValue:
    case kInvalidContext:
    case kInvalidHandle:
      return {Status::invalid, "the driver refused the arguments"};
    case kContextDestroyed:  // of the thread, not of the process: another context works
      return {Status::invalid, "the context that is current here was destroyed or reset: make another one current"};
    default:
      return {Status::driver_failed, "the driver's documentation says what this code means"};
  }
}

}  // namespace

#ifdef SHMB_TEST_SEAM
void use_library_for_test(std::string path) { loader().path = std::move(path); }
#endif

bool Driver::poisons(Code code) {
  switch (code) {
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContained:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kAssert:
    case kHardwareStack:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidPc:
    case kLaunchFailed:
    case kTensorMemoryLeak:
      return true;
    default:
      return false;
  }
}

Code Driver::poisoned() { return loader().poison.load(std::memory_order_acquire); }

Result<const Driver*> Driver::load() {
  Loader& one = loader();
  std::lock_guard lock(one.mutex);
  if (one.initialised && !one.mark.intact()) return forked_error();
  if (one.driver != nullptr) {
    if (const Code code = one.poison.load(std::memory_order_acquire); code != 0)
      return poisoned_error(one.driver->code_text(code));
    return one.driver.get();
  }
  return load_first();
}

const Driver* Driver::loaded() {
  Loader& one = loader();
  std::lock_guard lock(one.mutex);
  return one.initialised && one.mark.intact() ? one.driver.get() : nullptr;
}

// Call with the loader's lock held.
Result<const Driver*> Driver::load_first() {
  Loader& one = loader();
#if !SHMB_GPU
  return error(Status::no_driver, "this library was built without GPU support (-Dgpu=disabled)");
#endif
  const std::string path = library_path();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return error(Status::no_driver, "no NVIDIA driver: " + std::string(reason != nullptr ? reason : path) +
                                        ". Install it, or give the container its libraries");
  }
  auto driver = std::make_unique<Driver>();
  if (auto resolved = driver->resolve(library); !resolved) {
    ::dlclose(library);  // only functions that need no initialisation were called
    return std::unexpected(resolved.error());
  }
  if (!one.initialised) {
    auto mark = client::ForkMark::make();
    if (!mark) return system_failure(mark.error(), "the page that tells of a fork");
    one.mark = std::move(*mark);
    one.initialised = true;
  }
  if (const Code code = driver->calls_.init(0); code != kSuccess)
    return std::unexpected(driver->failure(code, "cuInit", "driver " + version_text(driver->version_)));
  SHMB_TRY_VOID(driver->look_at_devices());
  one.driver = std::move(driver);
  return one.driver.get();
}

Result<void> Driver::resolve(void* library) {
  using Version = Code (*)(int*);
  using Find = Code (*)(const char*, void**, int, std::uint64_t, int*);
  const auto ask_version = reinterpret_cast<Version>(::dlsym(library, "cuDriverGetVersion"));
  if (ask_version == nullptr)
    return error(Status::no_driver, library_path() + " is not NVIDIA's driver library: it has no cuDriverGetVersion");
  if (const Code code = ask_version(&version_); code == kStubLibrary)
    return error(Status::stub_driver,
                 "the toolkit's stub was loaded in place of the driver: take its folder out of LD_LIBRARY_PATH");
  else if (code != kSuccess) return std::unexpected(failure(code, "cuDriverGetVersion", library_path()));
  const auto too_old = [&](const std::string& lacks) {
    return error(Status::driver_too_old, "the driver supports CUDA " + version_text(version_) + lacks +
                                             ", sharing GPU memory needs 12.0 or later: update the driver");
  };
  if (version_ < kOldestDriver) return too_old("");
  const auto find = reinterpret_cast<Find>(::dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) return too_old(" but lacks cuGetProcAddress");
  const auto ask = [&](const char* symbol, int version) {
    void* found = nullptr;
    int status = 0;
    return find(symbol, &found, version, 0, &status) == kSuccess ? found : nullptr;
  };
#define SHMB_CUDA_ASK(member, symbol, version, exported, parameters) \
  calls_.member = reinterpret_cast<decltype(calls_.member)>(ask(#symbol, version));
#define SHMB_CUDA_ASK_OR_REFUSE(member, symbol, version, exported, parameters) \
  SHMB_CUDA_ASK(member, symbol, version, exported, parameters)                 \
  if (calls_.member == nullptr) return too_old(" but lacks " #symbol);
  SHMB_CUDA_REQUIRED(SHMB_CUDA_ASK_OR_REFUSE)
  SHMB_CUDA_OPTIONAL(SHMB_CUDA_ASK)
#ifdef SHMB_TEST_SEAM
  SHMB_CUDA_FOR_TESTS(SHMB_CUDA_ASK)
#endif
#undef SHMB_CUDA_ASK_OR_REFUSE
#undef SHMB_CUDA_ASK
  return {};
}

Result<void> Driver::look_at_devices() {
  int count = 0;
  if (const Code code = calls_.device_count(&count); code != kSuccess)
    return std::unexpected(failure(code, "cuDeviceGetCount", "this process"));
  if (count == 0)
    return error(Status::no_device,
                 "no GPU is visible to this process: look at CUDA_VISIBLE_DEVICES and the container's devices");
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    DeviceInfo info;
    char name[256] = {}, bus[32] = {};
    const std::string which = "device " + std::to_string(ordinal);
    if (const Code code = calls_.device_get(&info.device, ordinal); code != kSuccess)
      return std::unexpected(failure(code, "cuDeviceGet", which));
    if (const Code code = calls_.device_uuid(&info.uuid, info.device); code != kSuccess)
      return std::unexpected(failure(code, "cuDeviceGetUuid", which));
    if (const Code code = calls_.device_name(name, sizeof name, info.device); code != kSuccess)
      return std::unexpected(failure(code, "cuDeviceGetName", which));
    if (const Code code = calls_.device_bus_id(bus, sizeof bus, info.device); code != kSuccess)
      return std::unexpected(failure(code, "cuDeviceGetPCIBusId", which));
    if (const Code code = calls_.device_total(&info.bytes, info.device); code != kSuccess)
      return std::unexpected(failure(code, "cuDeviceTotalMem", which));
    info.name = name;
    info.bus_id = bus;
    info.mig = info.name.contains(" MIG ");
    const auto has = [&](DeviceAttribute attribute) {
      int value = 0;  // an attribute that an older driver does not know is a feature that it lacks
      return calls_.device_attribute(&value, attribute, info.device) == kSuccess && value != 0;
    };
    info.shareable = has(DeviceAttribute::vmm) && has(DeviceAttribute::posix_fd);
    info.rdma = has(DeviceAttribute::rdma_with_vmm);
    info.read_only_register = has(DeviceAttribute::read_only_register);
    info.mem_ops_64 = has(DeviceAttribute::mem_ops_64);
    info.dma_buf = has(DeviceAttribute::dma_buf);
    if (info.shareable) {
      AllocationProp prop;
      prop.type = kPinnedAllocation;
      prop.requested_handle_types = kPosixFd;
      prop.location = {kDeviceLocation, info.device};
      if (const Code code = calls_.granularity(&info.granularity, &prop, kMinimumGranularity); code != kSuccess)
        return std::unexpected(failure(code, "cuMemGetAllocationGranularity", which));
    }
    devices_.push_back(std::move(info));
  }
  return {};
}

Result<const DeviceInfo*> Driver::find(const Uuid& uuid) const {
  std::string seen;
  for (const DeviceInfo& info : devices_) {
    if (info.uuid == uuid) return &info;
    seen += (seen.empty() ? "" : ", ") + info.uuid_text();
  }
  return error(Status::device_not_found, "this process does not see the device " + uuid_text(uuid, false) +
                                             "; it sees " + seen + ": look at CUDA_VISIBLE_DEVICES");
}

Result<const DeviceInfo*> Driver::at(int ordinal) const {
  if (ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices_.size())
    return &devices_[static_cast<std::size_t>(ordinal)];
  return error(Status::device_not_found, "there is no device " + std::to_string(ordinal) + ": this process sees " +
                                             std::to_string(devices_.size()) + ", counted from 0");
}

Result<void> Driver::need(Feature feature) const {
  const char* missing = nullptr;
#define SHMB_CUDA_LOOK(member, symbol, version, exported, parameters) \
  if (calls_.member == nullptr && missing == nullptr) missing = #symbol;
  switch (feature) {
    case Feature::lease:
      SHMB_CUDA_LEASE(SHMB_CUDA_LOOK) break;
    case Feature::timeline:
      SHMB_CUDA_TIMELINE(SHMB_CUDA_LOOK) break;
    case Feature::bounded_waits:
      SHMB_CUDA_WAITS(SHMB_CUDA_LOOK) break;
    case Feature::rdma:
      SHMB_CUDA_RDMA(SHMB_CUDA_LOOK) break;
  }
#undef SHMB_CUDA_LOOK
  if (missing == nullptr) return {};
  return error(Status::not_supported, "the driver (CUDA " + version_text(version_) + ") has no " + missing);
}

bool Driver::has(Feature feature) const { return need(feature).has_value(); }

Code Driver::lost(const DeviceInfo& device) const {
  Context context = nullptr;
  Code code = calls_.primary_retain(&context, device.device);
  if (code != kSuccess) return code == kUnknown ? code : kSuccess;
  code = calls_.context_push(context);
  if (code == kSuccess) {
    std::size_t free = 0, total = 0;
    code = calls_.mem_info(&free, &total);
    (void)calls_.context_pop(&context);
  }
  calls_.primary_release(device.device);
  return code == kUnknown ? code : kSuccess;
}

Error Driver::looked_after(Error failure, const DeviceInfo* device) const {
  if (failure.status != Status::driver_failed || device == nullptr || lost(*device) == kSuccess) return failure;
  failure.status = Status::device_lost;
  failure.sentence += "; the device " + device->uuid_text() + " answers nothing any more";
  return failure;
}

std::string Driver::code_text(Code code) const {
  const char* name = nullptr;
  if (calls_.error_name != nullptr) calls_.error_name(code, &name);
  return std::to_string(code) + (name != nullptr ? " " + std::string(name) : "");
}

Error Driver::failure(Code code, std::string_view call, std::string_view object) const {
  if (poisons(code)) {
    Code none = 0;
    loader().poison.compare_exchange_strong(none, code, std::memory_order_acq_rel);
  }
  const Meaning means = meaning(code);
  return {means.status,
          0,
          {},
          std::string(call) + " for " + std::string(object) + " gives " + code_text(code) + ": " + means.advice};
}

Error Driver::import_failure(Code code, std::string_view object, const DeviceInfo& device) const {
  Error failed = failure(code, "cuMemImportFromShareableHandle", object);
  const auto says = [&](Status status, const std::string& advice) {
    failed.status = status;
    failed.sentence = "importing " + std::string(object) + " gives " + code_text(code) + ": " + advice;
  };
  if (code == kInvalidValue || code == kInvalidHandle)
    says(Status::bad_fd, "its descriptor is not an export of GPU memory; its publisher has to publish it again");
  else if (code == kOperatingSystem)
    says(Status::driver_failed,
         "the system refused the driver something: look at this process' limits on descriptors (ulimit -n) and memory "
         "first, then at whether its descriptor is an export of GPU memory at all");
  else if (code == kNotSupported && device.mig)
    says(Status::different_mig_instance, "it lies in another GPU instance than " + device.uuid_text() +
                                             ", and MIG instances share no memory: use one in the same instance");
  else if (code == kNotSupported || code == kInvalidDevice)
    says(Status::device_not_visible,
         "this process does not see the GPU that it lies on: add it to CUDA_VISIBLE_DEVICES or the container");
  return failed;
}

Error Driver::open_failure(Code code, std::string_view object) const {
  Error failed = failure(code, "cuIpcOpenMemHandle", object);
  const auto says = [&](Status status, const char* advice) {
    failed.status = status;
    failed.sentence = "cuIpcOpenMemHandle for " + std::string(object) + " gives " + code_text(code) + ": " + advice;
  };
  if (code == kInvalidContext || code == kInvalidDevice)
    says(Status::device_not_visible,
         "the driver needs its owner's device and process to be visible here; in containers, share the pid namespace, "
         "or publish a region of shmb_gpu_allocate");
  else if (code == kInvalidValue || code == kInvalidHandle || code == kOperatingSystem)
    says(Status::producer_dead, "there is no memory behind its handle any more: its owner has ended, or has freed it");
  else if (code == kMapFailed || code == kPeerUnsupported || code == kTooManyPeers)
    says(Status::not_supported,
         "the device cannot map memory of its owner's device, or has too many peers already: import it for the owner's "
         "device, or copy");
  return failed;
}

Error Driver::map_failure(Code code, std::string_view object, std::size_t bytes) const {
  Error failed = failure(code, "cuMemMap", object);
  if (code == kInvalidValue) {
    failed.status = Status::too_small;
    failed.sentence = "the memory behind " + std::string(object) + " is smaller than the " + format_size(bytes) +
                      " that its publisher claimed (cuMemMap gives " + code_text(code) + ")";
  }
  return failed;
}

std::string DeviceInfo::uuid_text() const { return cuda::uuid_text(uuid, mig); }

std::string uuid_text(const Uuid& uuid, bool mig) { return sys::gpu_uuid_text(uuid.bytes, mig); }

}  // namespace shmb::cuda
