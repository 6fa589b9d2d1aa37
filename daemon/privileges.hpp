// SPDX-License-Identifier: Apache-2.0
// What the broker gives up at start. In system mode it ends as its own uid with CAP_SYS_RESOURCE, where that is to be
// had, and nothing else; it checks that, and does not start otherwise. What it could not get is a sentence in `status`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/config.hpp"

namespace shmb::daemon {

struct SystemUser {
  std::uint32_t uid = 0, gid = 0;
};
// A number, or a name in `passwd` read with fgetpwent(3): no name service, which would load foreign code as root. A
// number without an entry has the gid of the same number.
Result<SystemUser> find_account(const std::string& user, const char* passwd = "/etc/passwd");

struct Lowered {
  std::uint64_t table = 0;  // descriptors this process may have
  std::vector<std::string> losses;
};
// `account` is the one to become; the present one means: stay. Call while there is one thread.
Result<Lowered> lower_privileges(const Config& config, const SystemUser& account);

}  // namespace shmb::daemon
