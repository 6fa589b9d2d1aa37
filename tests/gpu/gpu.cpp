// SPDX-License-Identifier: Apache-2.0
// One context, one module, one pair of result words a process: an actor is too short-lived for more.
#include "tests/gpu/gpu.hpp"

#include <cstdio>
#include <cstring>

#include "tests/gpu/kernels.hpp"
#include "tests/gpu/report.hpp"

namespace shmb::facts {
namespace {

constexpr unsigned kBlocks = 528;
constexpr unsigned kThreads = 256;

// The result of start_gpu, for the life of the process.
struct Gpu {
  Device device = 0;
  Context context = nullptr;
  Kernel fill = nullptr, check = nullptr, watch = nullptr, spin = nullptr, poke = nullptr, tally = nullptr,
         gaps = nullptr;
  Address out = 0;  // two words that kernels add to
} gpu;

Kernel kernel(Module module, const char* name) {
  Kernel found = nullptr;
  must(cu.module_kernel(&found, module, name), "cuModuleGetFunction");
  return found;
}

void read_out(std::uint64_t (&words)[2]) { must(cu.copy_to_host(words, gpu.out, sizeof words), "cuMemcpyDtoH"); }

void launch(Kernel kernel, unsigned blocks, unsigned threads, void** arguments, Stream stream) {
  must(cu.launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
}

}  // namespace

void start_driver() {
  const std::string problem = load_driver();
  if (!problem.empty()) fail("%s", problem.c_str());
  must(cu.init(0), "cuInit");
  must(cu.device_get(&gpu.device, 0), "cuDeviceGet");
}

void start_gpu() {
  start_driver();
  must(cu.primary_retain(&gpu.context, gpu.device), "cuDevicePrimaryCtxRetain");
  must(cu.context_set(gpu.context), "cuCtxSetCurrent");
  Module module = nullptr;
  must(cu.module_load(&module, kKernels), "cuModuleLoadData");
  gpu.fill = kernel(module, "fill");
  gpu.check = kernel(module, "check");
  gpu.watch = kernel(module, "watch");
  gpu.spin = kernel(module, "spin");
  gpu.poke = kernel(module, "poke");
  gpu.tally = kernel(module, "tally");
  gpu.gaps = kernel(module, "gaps");
  must(cu.mem_alloc(&gpu.out, 2 * sizeof(std::uint64_t)), "cuMemAlloc");
}

AllocationProp shareable() {
  AllocationProp prop{};
  prop.type = kPinnedAllocation;
  prop.requested_handle_types = kPosixFd;
  prop.location = {kDeviceLocation, gpu.device};
  return prop;
}

std::size_t granularity() {
  const AllocationProp prop = shareable();
  std::size_t bytes = 0;
  must(cu.granularity(&bytes, &prop, 0), "cuMemGetAllocationGranularity");
  return bytes;
}

Code try_create(std::size_t bytes, MemHandle* handle) {
  const AllocationProp prop = shareable();
  return cu.mem_create(handle, bytes, &prop, 0);
}

MemHandle create(std::size_t bytes) {
  MemHandle handle = 0;
  must(try_create(bytes, &handle), "cuMemCreate");
  return handle;
}

int export_fd(MemHandle handle) {
  int fd = -1;
  must(cu.mem_export(&fd, handle, kPosixFd, 0), "cuMemExportToShareableHandle");
  return fd;
}

Code try_import(int fd, MemHandle* handle) {
  return cu.mem_import(handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), kPosixFd);
}

Region map_handle(MemHandle handle, std::size_t bytes, int access) {
  Region region{handle, 0, bytes};
  must(cu.address_reserve(&region.address, bytes, 0, 0, 0), "cuMemAddressReserve");
  must(cu.mem_map(region.address, bytes, 0, handle, 0), "cuMemMap");
  const AccessDesc who{{kDeviceLocation, gpu.device}, access};
  must(cu.mem_access(region.address, bytes, &who, 1), "cuMemSetAccess");
  return region;
}

Region create_mapped(std::size_t bytes) { return map_handle(create(bytes), bytes); }

Region import_mapped(int fd, std::size_t bytes, int access) {
  MemHandle handle = 0;
  must(try_import(fd, &handle), "cuMemImportFromShareableHandle");
  return map_handle(handle, bytes, access);
}

void release_handle(Region& region) {
  must(cu.mem_release(region.handle), "cuMemRelease");
  region.handle = 0;
}

void unmap(Region& region) {
  must(cu.mem_unmap(region.address, region.bytes), "cuMemUnmap");
  must(cu.address_free(region.address, region.bytes), "cuMemAddressFree");
  if (region.handle != 0) release_handle(region);
  region.address = 0;
}

void fill(Address address, std::size_t bytes, std::uint64_t seed, Stream stream) {
  std::uint64_t words = bytes / 8;
  void* arguments[] = {&address, &words, &seed};
  launch(gpu.fill, kBlocks, kThreads, arguments, stream);
  if (stream == nullptr) must(cu.stream_sync(nullptr), "cuStreamSynchronize");
}

void clear_counts() {
  const std::uint64_t zero[2] = {0, 0};
  must(cu.copy_to_device(gpu.out, zero, sizeof zero), "cuMemcpyHtoD");
}

void check_later(Address address, std::size_t bytes, std::uint64_t seed, Stream stream) {
  std::uint64_t words = bytes / 8;
  void* arguments[] = {&address, &words, &seed, &gpu.out};
  launch(gpu.check, kBlocks, kThreads, arguments, stream);
}

std::uint64_t mismatches(Address address, std::size_t bytes, std::uint64_t seed, Stream stream) {
  clear_counts();
  check_later(address, bytes, seed, stream);
  must(cu.stream_sync(stream), "cuStreamSynchronize");
  std::uint64_t result[2];
  read_out(result);
  return result[0];
}

void watch(Address address, std::size_t bytes, std::uint64_t seed, std::uint64_t ns, Stream stream) {
  clear_counts();
  std::uint64_t words = bytes / 8;
  void* arguments[] = {&address, &words, &seed, &gpu.out, &ns};
  launch(gpu.watch, 66, kThreads, arguments, stream);
}

Watched count_watched(Stream stream) {
  must(cu.stream_sync(stream), "cuStreamSynchronize");
  std::uint64_t result[2];
  read_out(result);
  return {result[0], result[1]};
}

void watch_gaps(Address address, std::size_t bytes, std::uint64_t ns, Address out, Stream stream) {
  std::uint64_t words = bytes / 8, zero = 0;
  void* arguments[] = {&address, &words, &ns, &zero, &out};
  launch(gpu.gaps, 1, 1, arguments, stream);
}

void spin(std::uint64_t ns, Stream stream) {
  void* arguments[] = {&ns};
  launch(gpu.spin, 1, 1, arguments, stream);
}

Code poke(Address address, std::uint64_t value) {
  void* arguments[] = {&address, &value};
  launch(gpu.poke, 1, 1, arguments, nullptr);
  return cu.stream_sync(nullptr);
}

Tally tally(Address address, std::size_t bytes, std::uint64_t value) {
  clear_counts();
  std::uint64_t words = bytes / 8;
  void* arguments[] = {&address, &words, &value, &gpu.out};
  launch(gpu.tally, kBlocks, kThreads, arguments, nullptr);
  must(cu.stream_sync(nullptr), "cuStreamSynchronize");
  std::uint64_t result[2];
  read_out(result);
  return {result[0], result[1]};
}

Stream make_stream() {
  Stream stream = nullptr;
  must(cu.stream_create(&stream, kNonBlocking), "cuStreamCreate");
  return stream;
}

int attribute(int which) {
  int value = -1;
  must(cu.device_attribute(&value, which, gpu.device), "cuDeviceGetAttribute");
  return value;
}

int device_count() {
  int count = 0;
  must(cu.device_count(&count), "cuDeviceGetCount");
  return count;
}

std::string device_uuid(int ordinal) {
  Device device = 0;
  must(cu.device_get(&device, ordinal), "cuDeviceGet");
  Uuid uuid{};
  must(cu.device_uuid(&uuid, device), "cuDeviceGetUuid");
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char hex[4];
    std::snprintf(hex, sizeof hex, "%02x", uuid.bytes[i]);
    text += hex;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

bool are_peers(int ordinal, int other) {
  Device here = 0, there = 0;
  must(cu.device_get(&here, ordinal), "cuDeviceGet");
  must(cu.device_get(&there, other), "cuDeviceGet");
  int can = 0;
  must(cu.device_peer(&can, here, there), "cuDeviceCanAccessPeer");
  return can != 0;
}

std::string device_name() {
  char name[128] = {};
  must(cu.device_name(name, sizeof name, gpu.device), "cuDeviceGetName");
  return name;
}

}  // namespace shmb::facts
