// SPDX-License-Identifier: Apache-2.0
// Test bodies in processes of their own, each with an environment for the fake: what it plays is read once in a
// process, and a process that has used a driver may not fork. A body tells by its status; NEED names what did not hold.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/abi.hpp"
#include "tests/fakecuda/fake.hpp"
#include "tests/harness/child.hpp"

#define NEED(condition)                                                                   \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                           \
    }                                                                                     \
  } while (false)

namespace fakecuda {

using namespace shmb::cuda;
using Environment = std::vector<std::pair<std::string, std::string>>;

// The driver's functions by their names in the library, without any loader of ours.
inline Calls plain_calls() {
  Calls calls;
  const Fake& fake = Fake::use();
#define FAKECUDA_FIND(member, symbol, version, exported, parameters) \
  calls.member = fake.call<Code parameters>(#exported);
  SHMB_CUDA_REQUIRED(FAKECUDA_FIND)
  SHMB_CUDA_OPTIONAL(FAKECUDA_FIND)
  SHMB_CUDA_FOR_TESTS(FAKECUDA_FIND)
#undef FAKECUDA_FIND
  return calls;
}

inline harness::Child process(const Environment& environment, const std::function<int()>& body) {
  // A card of this program's own: another run of it at the same time is no process of ours.
  static const int named = ::setenv("FAKECUDA_CARD", ("f" + std::to_string(::getpid())).c_str(), 1);
  if (named != 0) std::abort();
  return harness::Child::run([=] {
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    return body();
  });
}

// 0: the body held and left nothing behind in the driver.
inline int holds(const Environment& environment, const std::function<int()>& body) {
  return process(environment,
                 [=] {
                   if (const int status = body(); status != 0) return status;
                   const Audit audit = Fake::use().audit();
                   for (const std::string& text : Fake::use().violations()) std::fprintf(stderr, "%s\n", text.c_str());
                   NEED(audit.left() == 0);
                   NEED(audit.violations == 0);
                   return 0;
                 })
      .wait();
}

// Two ends of a conversation between processes that are forked after its making.
class Talk {
 public:
  Talk() {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_) != 0) std::abort();
  }
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;
  ~Talk() {
    for (const int end : ends_) ::close(end);
  }

  // Bytes and at most one descriptor, from one side (0 or 1) to the other.
  bool say(int side, const void* data, std::size_t bytes, int fd = -1) const {
    iovec part{const_cast<void*>(data), bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    return ::sendmsg(ends_[side], &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
  }
  template <class T>
  bool say(int side, const T& value, int fd = -1) const {
    return say(side, &value, sizeof value, fd);
  }
  // The message of the other side; false: nothing came within half a minute.
  bool hear(int side, void* data, std::size_t bytes, int* fd = nullptr) const {
    pollfd ready{ends_[side], POLLIN, 0};
    if (::poll(&ready, 1, 30'000) != 1) return false;
    iovec part{data, bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(ends_[side], &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(bytes)) return false;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (fd != nullptr && header != nullptr) std::memcpy(fd, CMSG_DATA(header), sizeof *fd);
    return true;
  }
  template <class T>
  bool hear(int side, T* value, int* fd = nullptr) const {
    return hear(side, value, sizeof *value, fd);
  }

 private:
  int ends_[2];
};

inline constexpr std::size_t kMega = std::size_t{1} << 20;

inline AllocationProp shareable(int ordinal = 0) {
  AllocationProp prop;
  prop.type = kPinnedAllocation;
  prop.requested_handle_types = kPosixFd;
  prop.location = {kDeviceLocation, ordinal};
  return prop;
}
inline void* as_pointer(int fd) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)); }

// The primary context of a device, current in this thread.
inline bool with_context(const Calls& cu, int ordinal = 0) {
  Context context = nullptr;
  return cu.init(0) == kSuccess && cu.primary_retain(&context, ordinal) == kSuccess &&
         cu.context_set(context) == kSuccess;
}
inline bool without_context(const Calls& cu, int ordinal = 0) {
  return cu.context_set(nullptr) == kSuccess && cu.primary_release(ordinal) == kSuccess;
}
inline Address map_for(const Calls& cu, MemHandle handle, std::size_t bytes, int access, int ordinal = 0) {
  Address at = 0;
  const AccessDesc who{{kDeviceLocation, ordinal}, access};
  const bool done = cu.address_reserve(&at, bytes, 0, 0, 0) == kSuccess &&
                    cu.mem_map(at, bytes, 0, handle, 0) == kSuccess &&
                    cu.mem_set_access(at, bytes, &who, 1) == kSuccess;
  return done ? at : 0;
}
inline bool unmap_all(const Calls& cu, Address at, std::size_t bytes) {
  return cu.mem_unmap(at, bytes) == kSuccess && cu.address_free(at, bytes) == kSuccess;
}

}  // namespace fakecuda
