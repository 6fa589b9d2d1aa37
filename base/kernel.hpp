// SPDX-License-Identifier: Apache-2.0
// The features of this kernel, probed once (never guessed from the version), minus those that the seam's pretended
// kernel would lack. Each lost feature has a sentence for `status`.
#pragma once

#include <string>
#include <vector>

namespace shmb {

struct KernelVersion {
  int major = 0, minor = 0;
  friend auto operator<=>(const KernelVersion&, const KernelVersion&) = default;
};

struct KernelFeatures {
  KernelVersion version;            // of uname, or the pretended one
  std::string release;              // uname's text, with "pretending 5.15" appended where it applies
  bool exec_seal = false;           // MFD_NOEXEC_SEAL, 6.3
  bool peer_pidfd = false;          // SO_PEERPIDFD, 6.5
  bool pidfd_open = false;          // 5.3; seccomp profiles may hide it
  bool pass_rights = false;         // SO_PASSRIGHTS, 6.16: a client cannot even send descriptors
  bool exit_info = false;           // PIDFD_GET_INFO with PIDFD_INFO_EXIT, 6.15: exit status of a non-child
  bool collapse = false;            // MADV_COLLAPSE on shmem, 6.1
  bool populate = false;            // MADV_POPULATE_READ/WRITE, 5.14
  bool io_uring = false;            // the engine's operations work here (set up, then torn down)
  std::string io_uring_reason;      // the reason if not
  bool proc = false;                // /proc is mounted and shows this process
  std::vector<std::string> losses;  // "SO_PEERPIDFD needs Linux 6.5: ..." one sentence each
};

const KernelFeatures& kernel();  // probed at first use, then constant (thread-safe)
KernelFeatures probe_kernel();   // probes again; the seam's pretended kernel applies

}  // namespace shmb
