// SPDX-License-Identifier: Apache-2.0
// The rights that the broker gives up at start. In system mode it ends as its own uid, with CAP_SYS_RESOURCE where it
// can get that, and nothing else. It checks the result, and does not start otherwise. Each thing that it could not get
// is a sentence in `status`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/start/config.hpp"

namespace shmb::daemon {

struct SystemUser {
  std::uint32_t uid = 0, gid = 0;
};
// A number, or a name in `passwd`, read with fgetpwent(3). A name service would load foreign code as root. A number
// without an entry has the gid of the same number.
Result<SystemUser> find_account(const std::string& user, const char* passwd = "/etc/passwd");

struct Lowered {
  std::uint64_t table = 0;  // descriptors this process may have
  std::vector<std::string> losses;
};
// `account` is the user to become. The present user means: stay. Call while the process has one thread.
Result<Lowered> lower_privileges(const Config& config, const SystemUser& account);

}  // namespace shmb::daemon
