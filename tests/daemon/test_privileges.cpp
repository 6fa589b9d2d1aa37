// SPDX-License-Identifier: Apache-2.0
// The user that the broker becomes, and that no other right is left. broker_process_test looks from outside.
#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fstream>

#include "base/sys_process.hpp"
#include "daemon/start/privileges.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"

using namespace shmb;
using namespace shmb::daemon;

TEST_CASE("an account is found by name and by number in the password file alone") {
  harness::TempDir folder;
  std::string passwd = folder.file("passwd");
  std::ofstream(passwd) << "root:x:0:0::/root:/bin/sh\nshm:x:977:978:the broker:/:/bin/false\n";
  auto named = find_account("shm", passwd.c_str());
  REQUIRE(named);
  CHECK(named->uid == 977);
  CHECK(named->gid == 978);
  auto numbered = find_account("977", passwd.c_str());
  REQUIRE(numbered);
  CHECK(numbered->gid == 978);
  auto unknown_number = find_account("1234", passwd.c_str());
  REQUIRE(unknown_number);
  CHECK(unknown_number->uid == 1234);
  CHECK(unknown_number->gid == 1234);
  for (const char* bad : {"nobody-here", "", "12x", "-1", "4294967296"}) {
    CAPTURE(bad);
    auto missing = find_account(bad, passwd.c_str());
    REQUIRE_FALSE(missing);
    CHECK(missing.error().sentence.find("--user") != std::string::npos);
  }
  CHECK(find_account("5", folder.file("none").c_str()));
}

TEST_CASE("root becomes another user for good") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root with CAP_SETUID");
  auto child = harness::Child::run([] {
    Config config;
    config.mode = Mode::system;
    auto lowered = lower_privileges(config, SystemUser{65534, 65534});
    if (!lowered) return 1;
    if (::getuid() != 65534 || ::getgid() != 65534 || ::getgroups(0, nullptr) != 0) return 2;
    if (::setuid(0) == 0 || ::setgid(0) == 0) return 3;
    if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return 4;
    if (::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0) return 5;
    auto limit = sys::descriptor_limit();
    if (limit->soft != lowered->table) return 6;
    return 0;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("a user other than root cannot become another user, and gets a sentence that says so") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root with CAP_SETUID");
  auto child = harness::Child::run_as(4321, 4321, [] {
    Config config;
    config.mode = Mode::system;
    auto lowered = lower_privileges(config, SystemUser{65534, 65534});
    if (lowered) return 1;
    if (lowered.error().sentence.find("only root can change to uid 65534") == std::string::npos) return 2;
    auto stays = lower_privileges(config, SystemUser{4321, 4321});
    if (!stays) return 3;
    for (const std::string& loss : stays->losses)
      if (loss.find("was not started by root") != std::string::npos) return 0;
    return 4;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("the table is as large as configured, and one that cannot be had is a loss") {
  auto child = harness::Child::run([] {
    Config config;
    config.descriptors = 300;
    auto small = lower_privileges(config, SystemUser{::geteuid(), ::getegid()});
    if (!small || small->table != 300 || sys::descriptor_limit()->soft != 300) return 1;
    return 0;
  });
  CHECK(child.wait() == 0);
  auto large = harness::Child::run([] {
    auto limit = *sys::descriptor_limit();
    Config config;
    config.descriptors = limit.hard + 1'000'000'000;  // over fs.nr_open: not even CAP_SYS_RESOURCE gets it
    auto lowered = lower_privileges(config, SystemUser{::geteuid(), ::getegid()});
    if (!lowered || lowered->table != limit.hard) return 1;
    return lowered->losses.front().find("raise the hard RLIMIT_NOFILE") != std::string::npos ? 0 : 2;
  });
  CHECK(large.wait() == 0);
}
