// SPDX-License-Identifier: Apache-2.0
// See privileges.hpp. CAP_SYS_RESOURCE is kept for one reason. Without it the kernel counts descriptors in flight
// against RLIMIT_NOFILE of the sending user, and all clients share one allowance (unix(7), ETOOMANYREFS).
#include "daemon/start/privileges.hpp"

#include <grp.h>
#include <pwd.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <memory>

#include "base/result.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"

namespace shmb::daemon {
namespace {

constexpr std::uint64_t kWantedTable = 1'048'576;

struct FreeCap {
  void operator()(_cap_struct* state) const { cap_free(state); }
};
using Caps = std::unique_ptr<_cap_struct, FreeCap>;

bool permitted(cap_value_t capability) {
  Caps now(cap_get_proc());
  cap_flag_value_t value = CAP_CLEAR;
  return now && cap_get_flag(now.get(), capability, CAP_PERMITTED, &value) == 0 && value == CAP_SET;
}

Caps only(bool resource) {
  Caps wanted(cap_init());
  cap_value_t keep = CAP_SYS_RESOURCE;
  if (wanted && resource) {
    cap_set_flag(wanted.get(), CAP_PERMITTED, 1, &keep, CAP_SET);
    cap_set_flag(wanted.get(), CAP_EFFECTIVE, 1, &keep, CAP_SET);
  }
  return wanted;
}

std::unexpected<Error> failed(const char* what) { return system_failure(Errno{errno}, what); }

// The bounding set matters only for execve, which no_new_privs makes harmless. It can be emptied only while CAP_SETPCAP
// is effective.
void empty_bounding_set(bool resource) {
  for (cap_value_t each = 0; cap_get_bound(each) >= 0; ++each)
    if (!(resource && each == CAP_SYS_RESOURCE)) (void)cap_drop_bound(each);
}

Result<void> keep_only_resource(bool resource) {
  Caps wanted = only(resource);
  if (!wanted || cap_set_proc(wanted.get()) != 0) return failed("giving up capabilities");
  Caps now(cap_get_proc());
  if (!now || cap_compare(now.get(), wanted.get()) != 0)
    return error(Status::system, "capabilities are left that should be gone: the broker does not start with them");
  return {};
}

Result<void> become(const SystemUser& account) {
  if (::setgroups(0, nullptr) != 0) return failed("giving up supplementary groups");
  if (::setresgid(account.gid, account.gid, account.gid) != 0) return failed("changing to the broker's gid");
  // Permitted capabilities survive the change of uid only if asked for (capabilities(7), SECBIT_KEEP_CAPS).
  if (::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) return failed("keeping a capability over the change of uid");
  if (::setresuid(account.uid, account.uid, account.uid) != 0) return failed("changing to the broker's uid");
  (void)::prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
  uid_t real = 0, effective = 0, saved = 0;
  if (::getresuid(&real, &effective, &saved) != 0 || real != account.uid || effective != account.uid ||
      saved != account.uid)
    return error(Status::system, "the change to the broker's uid was not complete");
  return {};
}

// Sets the table as large as wanted and allowed. The hard limit is raised first, while that may still be possible.
std::uint64_t raise_table(const Config& config, std::vector<std::string>& losses) {
  auto limit = sys::descriptor_limit();
  if (!limit) return 1024;
  std::uint64_t wanted = config.descriptors != 0       ? config.descriptors
                         : config.mode == Mode::system ? std::max(limit->hard, kWantedTable)
                                                       : limit->hard;
  if (wanted <= limit->hard || !sys::set_descriptor_limit({wanted, wanted})) {
    std::uint64_t soft = std::min(wanted, limit->hard);
    if (!sys::set_descriptor_limit({soft, limit->hard})) soft = limit->soft;
    if (soft < wanted)
      losses.push_back("at most " + std::to_string(soft) + " descriptors (wanted " + std::to_string(wanted) +
                       "): raise the hard RLIMIT_NOFILE, or give CAP_SYS_RESOURCE");
    return soft;
  }
  return wanted;
}

}  // namespace

Result<SystemUser> find_account(const std::string& user, const char* passwd) {
  std::uint32_t number = 0;
  auto [end, failure] = std::from_chars(user.data(), user.data() + user.size(), number);
  bool numeric = failure == std::errc{} && end == user.data() + user.size() && !user.empty();
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(passwd, "re"), std::fclose);
  if (file) {
    while (const ::passwd* entry = ::fgetpwent(file.get())) {
      if (numeric ? entry->pw_uid == number : user == entry->pw_name) return SystemUser{entry->pw_uid, entry->pw_gid};
    }
  }
  if (numeric) return SystemUser{number, number};
  return error(Status::not_found, "user " + quoted(user) + " is not in " + passwd +
                                      ": create it (adduser --system --group NAME) or give another with --user");
}

Result<Lowered> lower_privileges(const Config& config, const SystemUser& account) {
  Lowered lowered;
  lowered.table = raise_table(config, lowered.losses);
  bool resource = permitted(CAP_SYS_RESOURCE);
  bool root = ::geteuid() == 0;
  empty_bounding_set(resource);
  if (account.uid != ::geteuid()) {
    if (!root)
      return error(Status::denied, "only root can change to uid " + std::to_string(account.uid) +
                                       ": start as root, or as that user, or give no --user");
    SHMB_TRY_VOID(become(account));
  } else if (config.mode == Mode::system && !resource) {
    lowered.losses.push_back("system mode was not started by root: it runs as uid " + std::to_string(account.uid) +
                             " with the limits it found");
  }
  if (auto none = sys::set_no_new_privileges(); !none) return system_failure(none.error(), "setting no_new_privs");
  SHMB_TRY_VOID(keep_only_resource(resource));
  // Last, because a change of uid resets it (prctl(2)). Afterwards no process of the same uid can ptrace the broker or
  // take its descriptors with pidfd_getfd.
  if (auto hidden = sys::set_dumpable(false); !hidden) return system_failure(hidden.error(), "becoming not dumpable");
  if (!resource)
    lowered.losses.push_back("no CAP_SYS_RESOURCE: at most " + std::to_string(lowered.table) +
                             " descriptors may be unread over all clients, and other processes of uid " +
                             std::to_string(account.uid) + " use the same allowance");
  if (config.mode == Mode::private_)
    lowered.losses.push_back(
        "private mode: clients have the broker's own uid, so limits and rights guard against mistakes, not against "
        "programs of this user that mean harm");
  return lowered;
}

}  // namespace shmb::daemon
