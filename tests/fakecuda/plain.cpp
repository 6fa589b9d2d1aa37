// SPDX-License-Identifier: Apache-2.0
// Memory of cuMemAlloc and its legacy IPC handles. A handle names a descriptor of its maker; behind the memory lies a
// page with the processes that have it open, so that freeing it too early is seen: the bytes are spoilt and both sides
// note a violation. A real driver's behaviour is then undefined.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "tests/fakecuda/stream.hpp"

namespace fakecuda {
namespace {

constexpr int kSpoilt = 0xdd;
constexpr std::size_t kTrailer = 4096;
constexpr std::uint32_t kMagic = 0x66616b65;

struct Openers {
  std::atomic<std::uint32_t> freed;
  std::atomic<std::int32_t> pids[512];
};
static_assert(sizeof(Openers) <= kTrailer);

struct NamedMemory {
  std::uint32_t magic;
  std::int32_t pid, fd;
  std::uint32_t uid;
  std::uint64_t bytes;  // of the memory, the page behind it not counted
  char id[40];
};
static_assert(sizeof(NamedMemory) <= sizeof(IpcHandle));

bool alive(std::int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

Openers& openers(const Mapping& mapping) { return *reinterpret_cast<Openers*>(mapping.shadow->data() + mapping.bytes); }

bool opened_elsewhere(const Mapping& mapping) {
  for (auto& pid : openers(mapping).pids)
    if (const std::int32_t who = pid.load(); who != 0 && who != ::getpid() && alive(who)) return true;
  return false;
}

Address enter_memory(State& it, Mapping mapping) {
  const Address address = reserve(mapping.bytes, kGranularity, 0);
  if (address == 0) return 0;
  mapping.id = it.next_id++;
  it.mappings.emplace(address, std::move(mapping));
  return address;
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuMemAlloc_v2(Address* address, std::size_t bytes) {
  return enter("cuMemAlloc", Needs::context, [&](State& it, Lock&) -> Code {
    if (address == nullptr || bytes == 0) return kInvalidValue;
    if (const Code code = capture_forbids_unsafe(); code != kSuccess) return code;
    const std::size_t rounded = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    Mapping mapping;
    mapping.kind = Kind::plain;
    mapping.bytes = rounded;
    mapping.context = current_context();
    mapping.ordinal = mapping.context->ordinal;
    Code why = kSuccess;
    const bool sealed = it.machine.sealed;
    it.machine.sealed = false;  // the page behind it comes below
    mapping.physical = make_physical(it, mapping.ordinal, rounded, 0, false, "p", &why);
    it.machine.sealed = sealed;
    if (mapping.physical == nullptr) return why;
    if (::ftruncate(mapping.physical->fd(), static_cast<off_t>(rounded + kTrailer)) != 0) return kOperatingSystem;
    mapping.shadow = shadow_of(mapping.physical->fd(), rounded + kTrailer);
    if (mapping.shadow == nullptr) return kOutOfMemory;
    *address = enter_memory(it, std::move(mapping));
    return *address == 0 ? kOutOfMemory : kSuccess;
  });
}

// Synchronises the context first, as the real one does.
FAKECUDA_API Code cuMemFree_v2(Address address) {
  return enter("cuMemFree", Needs::driver, [&](State& it, Lock& lock) -> Code {
    auto found = it.mappings.find(address);
    if (found == it.mappings.end() || found->second.kind != Kind::plain) return kInvalidValue;
    if (const Code code = capture_forbids_unsafe(); code != kSuccess) return code;
    wait_for_context(*found->second.context, lock);
    found = it.mappings.find(address);
    if (found == it.mappings.end()) return kInvalidValue;
    Mapping& mapping = found->second;
    openers(mapping).freed = 1;
    if (opened_elsewhere(mapping)) {
      it.violation("cuMemFree of memory that another process has open by cuIpcOpenMemHandle");
      std::memset(mapping.shadow->data(), kSpoilt, mapping.bytes);
    }
    unreserve(address, mapping.bytes);
    it.mappings.erase(found);
    return kSuccess;
  });
}

FAKECUDA_API Code cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  return enter("cuIpcGetMemHandle", Needs::context, [&](State& it, Lock&) -> Code {
    Address start = 0;
    const Mapping* mapping = mapping_at(it, address, &start);
    if (handle == nullptr || mapping == nullptr || mapping->kind != Kind::plain) return kInvalidValue;
    NamedMemory named{};
    named.magic = kMagic;
    named.pid = ::getpid();
    named.fd = mapping->physical->fd();
    named.uid = ::geteuid();
    named.bytes = mapping->bytes;
    std::snprintf(named.id, sizeof named.id, "%s", mapping->physical->name().id.c_str());
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &named, sizeof named);
    return kSuccess;
  });
}

FAKECUDA_API Code cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned flags) {
  return enter("cuIpcOpenMemHandle", Needs::context, [&](State& it, Lock&) -> Code {
    NamedMemory named{};
    std::memcpy(&named, &handle, sizeof named);
    named.id[sizeof named.id - 1] = 0;
    if (address == nullptr || named.magic != kMagic || flags > kLazyPeer) return kInvalidValue;
    if (named.pid == ::getpid()) return kInvalidContext;
    if (const Code code = capture_forbids_unsafe(); code != kSuccess) return code;
    const std::string as = named.id;
    for (auto& [at, mapping] : it.mappings) {
      // A context's own: another device has addresses of its own for it.
      if (mapping.kind != Kind::opened || mapping.opened_as != as) continue;
      // "may only be opened by one CUcontext per CUdevice per other process"
      if (mapping.ordinal == current_context()->ordinal && mapping.context != current_context()) return kInvalidContext;
      if (mapping.context != current_context()) continue;
      ++mapping.opens;
      *address = at;
      return kSuccess;
    }
    const std::string path = "/proc/" + std::to_string(named.pid) + "/fd/" + std::to_string(named.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return kInvalidValue;
    char target[512];
    const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
    MemoryName name;
    if (length <= 0 || !MemoryName::parse(std::string(target, static_cast<std::size_t>(length)), &name) ||
        name.id != as || name.card != it.machine.card) {
      ::close(fd);
      return kInvalidValue;
    }
    Mapping mapping;
    mapping.kind = Kind::opened;
    mapping.bytes = named.bytes;
    mapping.physical = std::make_shared<Physical>(fd, name);
    mapping.shadow = shadow_of(fd, named.bytes + kTrailer);
    if (mapping.shadow == nullptr) return kOutOfMemory;
    mapping.context = current_context();
    mapping.ordinal = mapping.context->ordinal;
    mapping.opened_as = as;
    mapping.opens = 1;
    if (openers(mapping).freed != 0) return kInvalidValue;
    for (auto& pid : openers(mapping).pids) {
      std::int32_t none = 0;
      if (pid.compare_exchange_strong(none, ::getpid())) break;
      if (none != ::getpid() && !alive(none) && pid.compare_exchange_strong(none, ::getpid())) break;
    }
    *address = enter_memory(it, std::move(mapping));
    return *address == 0 ? kOutOfMemory : kSuccess;
  });
}

FAKECUDA_API Code cuIpcCloseMemHandle(Address address) {
  return enter("cuIpcCloseMemHandle", Needs::driver, [&](State& it, Lock& lock) -> Code {
    if (current_context() == nullptr) return kInvalidContext;  // but a ruined one gives back
    auto found = it.mappings.find(address);
    if (found == it.mappings.end() || found->second.kind != Kind::opened) return kInvalidValue;
    if (const Code code = capture_forbids_unsafe(); code != kSuccess) return code;
    wait_for_context(*found->second.context, lock);
    found = it.mappings.find(address);
    if (found == it.mappings.end()) return kInvalidValue;
    Mapping& mapping = found->second;
    if (--mapping.opens > 0) return kSuccess;
    if (openers(mapping).freed != 0) it.violation("the maker of opened memory freed it before it was closed here");
    for (auto& pid : openers(mapping).pids) {
      std::int32_t own = ::getpid();
      if (pid.compare_exchange_strong(own, 0)) break;
    }
    unreserve(address, mapping.bytes);
    it.mappings.erase(found);
    return kSuccess;
  });
}
