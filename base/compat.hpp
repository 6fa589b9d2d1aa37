// SPDX-License-Identifier: Apache-2.0
// Kernel constants that Debian 12's headers lack, each with the version that brought it. Whether the running kernel
// knows them is asked at run time (base/kernel.hpp), never assumed.
#pragma once

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#ifndef MFD_NOEXEC_SEAL  // 6.3
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_EXEC  // 6.3
#define F_SEAL_EXEC 0x0020
#endif
#ifndef F_SEAL_FUTURE_WRITE  // 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef F_DUPFD_QUERY  // 6.10
#define F_DUPFD_QUERY 1027
#endif
#ifndef SO_PEERPIDFD  // 6.5
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS  // 6.16
#define SO_PASSRIGHTS 83
#endif
#ifndef MADV_POPULATE_READ  // 5.14
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE  // 5.14
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE  // 6.1
#define MADV_COLLAPSE 25
#endif

#include <cstdint>

namespace shmb::compat {

// struct pidfd_info as of 6.15, PIDFD_INFO_SIZE_VER0 = 64 (6.13 had the last word as padding).
struct PidfdInfo {
  std::uint64_t mask;
  std::uint64_t cgroup_id;
  std::uint32_t pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
  std::int32_t exit_code;  // a wait status
};
static_assert(sizeof(PidfdInfo) == 64);
inline constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);  // 6.13
inline constexpr std::uint64_t kPidfdInfoExit = 1u << 3;                    // 6.15

}  // namespace shmb::compat
