// SPDX-License-Identifier: Apache-2.0
// Kernel constants that Debian 12's headers lack, each with the version that brought it. Whether the running kernel
// knows them is asked at run time (base/kernel.hpp), never assumed.
#pragma once

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#ifndef MFD_NOEXEC_SEAL      // 6.3
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_EXEC          // 6.3
#define F_SEAL_EXEC 0x0020
#endif
#ifndef F_SEAL_FUTURE_WRITE  // 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef SO_PEERPIDFD         // 6.5
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS        // 6.16
#define SO_PASSRIGHTS 83
#endif
#ifndef MADV_POPULATE_READ   // 5.14
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE  // 5.14
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE        // 6.1
#define MADV_COLLAPSE 25
#endif
