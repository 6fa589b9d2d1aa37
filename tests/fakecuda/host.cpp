// SPDX-License-Identifier: Apache-2.0
// Registered host memory. The pages are pinned for real where the kernel lets us (an io_uring's fixed buffers), so that
// what their owner may not do meanwhile (seal, punch) shows, and they are mapped a second time, so that the device goes
// on reaching them when the process has unmapped them.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "tests/fakecuda/stream.hpp"

namespace fakecuda {
namespace {

constexpr std::size_t kHostPage = 4096;

// Whether all of a range is mapped and may be written: 0 not mapped, 1 read-only, 2 writable.
int protection_of(std::uintptr_t start, std::size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  std::uintptr_t at = start;
  int least = 2;
  for (std::string line; at < start + bytes && std::getline(maps, line);) {
    unsigned long long from = 0, to = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%llx-%llx %4s", &from, &to, rights) != 3 || to <= at) continue;
    if (from > at || rights[0] != 'r') return 0;
    if (rights[1] != 'w') least = 1;
    at = to;
  }
  return at < start + bytes ? 0 : least;
}

int pin_pages(void* start, std::size_t bytes) {
  io_uring_params params{};
  const int ring = static_cast<int>(::syscall(SYS_io_uring_setup, 1, &params));
  if (ring < 0) return -1;
  ::fcntl(ring, F_SETFD, FD_CLOEXEC);
  const iovec range{start, bytes};
  if (::syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &range, 1) == 0) return ring;
  ::close(ring);
  return -1;
}

std::map<Address, Mapping>::iterator find_host(State& it, const void* start) {
  auto found = it.mappings.begin();
  while (found != it.mappings.end() && !(found->second.kind == Kind::host && found->second.host == start)) ++found;
  return found;
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuMemHostRegister_v2(void* start, std::size_t bytes, unsigned flags) {
  return enter("cuMemHostRegister", Needs::context, [&](State& it, Lock&) -> Code {
    const auto first = reinterpret_cast<std::uintptr_t>(start);
    if (bytes == 0 || first % kHostPage != 0 || flags > 15) return kInvalidValue;
    if (const Code code = capture_forbids_unsafe(); code != kSuccess) return code;
    for (const auto& [address, mapping] : it.mappings) {
      const auto other = reinterpret_cast<std::uintptr_t>(mapping.host);
      if (mapping.kind == Kind::host && first < other + mapping.bytes && other < first + bytes)
        return kAlreadyRegistered;
    }
    const bool read_only = (flags & kHostReadOnly) != 0;
    if (read_only && it.machine.attribute(113) == 0) return kNotSupported;
    const int protection = protection_of(first, bytes);
    if (protection == 0 || (protection == 1 && !read_only)) return kInvalidValue;
    Mapping mapping;
    mapping.kind = Kind::host;
    mapping.bytes = (bytes + kHostPage - 1) / kHostPage * kHostPage;
    mapping.host = start;
    mapping.read_only = read_only;
    mapping.context = current_context();
    mapping.ordinal = mapping.context->ordinal;
    void* again = ::mremap(start, 0, mapping.bytes, MREMAP_MAYMOVE);  // shared mappings only
    mapping.shadow = again != MAP_FAILED ? std::make_shared<Shadow>(again, mapping.bytes, true)
                                         : std::make_shared<Shadow>(start, mapping.bytes, false);
    mapping.pin = protection == 2 ? pin_pages(start, bytes) : -1;
    mapping.id = it.next_id++;
    const Address address = reserve((mapping.bytes + kGranularity - 1) / kGranularity * kGranularity, kGranularity, 0);
    if (address == 0) {
      if (mapping.pin >= 0) ::close(mapping.pin);
      return kOutOfMemory;
    }
    it.mappings.emplace(address, std::move(mapping));
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemHostUnregister(void* start) {
  return enter("cuMemHostUnregister", Needs::driver, [&](State& it, Lock&) -> Code {
    if (current_context() == nullptr) return kInvalidContext;  // but a ruined one gives back
    const auto found = find_host(it, start);
    if (found == it.mappings.end()) return kNotRegistered;
    if (const Code code = capture_forbids_unsafe(); code != kSuccess) return code;
    const Mapping& mapping = found->second;
    if (protection_of(reinterpret_cast<std::uintptr_t>(start), mapping.bytes) == 0)
      it.violation("host memory was unmapped before it was unregistered");
    if (mapping.pin >= 0) ::close(mapping.pin);
    unreserve(found->first, (mapping.bytes + kGranularity - 1) / kGranularity * kGranularity);
    it.mappings.erase(found);
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemHostGetDevicePointer_v2(Address* address, void* start, unsigned flags) {
  return enter("cuMemHostGetDevicePointer", Needs::context, [&](State& it, Lock&) -> Code {
    if (address == nullptr || flags != 0) return kInvalidValue;
    const auto wanted = reinterpret_cast<std::uintptr_t>(start);
    for (const auto& [at, mapping] : it.mappings) {
      const auto first = reinterpret_cast<std::uintptr_t>(mapping.host);
      if (mapping.kind != Kind::host || wanted < first || wanted >= first + mapping.bytes) continue;
      *address = at + (wanted - first);
      return kSuccess;
    }
    return kInvalidValue;
  });
}
