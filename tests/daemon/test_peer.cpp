// SPDX-License-Identifier: Apache-2.0
// Which facts about the other end are used, one by one, and which are not.
#include <doctest/doctest.h>
#include <unistd.h>

#include "base/kernel.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "daemon/transport/peer.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"

using namespace shmb;
using namespace shmb::daemon;

TEST_CASE("the kernel names uid, gid, pid and groups of the process that connected") {
  auto pair = std::move(*sys::seqpacket_pair());
  Identity self = identify(pair[0].get(), true);
  CHECK(self.facts.uid == ::geteuid());
  CHECK(self.facts.gid == ::getegid());
  CHECK(self.facts.pid == static_cast<std::uint32_t>(::getpid()));
  CHECK(self.facts.admin);
  CHECK(self.facts.has_pidfd == static_cast<bool>(self.pidfd));
  if (kernel().peer_pidfd) CHECK(self.pidfd_is_certain);
}

TEST_CASE("each missing fact is unknown, and a peer without a uid is equal to no other") {
  auto pair = std::move(*sys::seqpacket_pair());
  SUBCASE("no credentials") {
    harness::Injected fault(fault::Call::getsockopt, EPERM, 1, -1);
    Identity nobody = identify(pair[0].get(), false);
    CHECK(nobody.facts.uid == 0xffff'ffff);
    CHECK(nobody.facts.pid == 0);
    CHECK(nobody.facts.groups.empty());
  }
  SUBCASE("no pidfd at all") {
    harness::Injected fault(fault::Call::peer_pidfd, EMFILE, 1, -1);
    fault::inject(fault::Call::pidfd_open, ENOSYS, 1, -1);
    Identity known = identify(pair[0].get(), false);
    CHECK(known.facts.uid == ::geteuid());
    CHECK_FALSE(known.facts.has_pidfd);
    CHECK_FALSE(confirm_start_time(known, pair[0].get(), *sys::process_start_time(0)));
  }
}

TEST_CASE("a pidfd that was opened by number is kept only for the process that began when it says, and is connected") {
  harness::PretendedKernel older(6, 1);
  auto pair = std::move(*sys::seqpacket_pair());
  const std::uint64_t began = *sys::process_start_time(0);
  Identity self = identify(pair[0].get(), false);
  REQUIRE(self.pidfd);
  CHECK_FALSE(self.pidfd_is_certain);
  SUBCASE("right") {
    CHECK(confirm_start_time(self, pair[0].get(), began));
    CHECK(self.pidfd_is_certain);
    CHECK(confirm_start_time(self, pair[0].get(), 0));  // it is certain now, whatever comes
  }
  SUBCASE("another start") { CHECK_FALSE(confirm_start_time(self, pair[0].get(), began + 1)); }
  SUBCASE("no start given") { CHECK_FALSE(confirm_start_time(self, pair[0].get(), 0)); }
  SUBCASE("disconnected meanwhile") {
    pair[1].reset();
    CHECK_FALSE(confirm_start_time(self, pair[0].get(), began));
  }
  SUBCASE("dead meanwhile") {
    auto child = harness::Child::run([] { return 0; });
    REQUIRE(child.wait_ended(10'000));  // a zombie: its start time can still be read
    self.facts.pid = static_cast<std::uint32_t>(child.pid());
    self.pidfd = std::move(*sys::pidfd_open(child.pid()));
    CHECK_FALSE(confirm_start_time(self, pair[0].get(), *sys::process_start_time(child.pid())));
    child.wait();
  }
  if (!self.pidfd_is_certain) CHECK_FALSE(self.facts.has_pidfd);
}

TEST_CASE("a socket is hung up when all holders of the other end have closed it") {
  auto pair = std::move(*sys::seqpacket_pair());
  auto second = std::move(*pair[1].dup());
  CHECK_FALSE(hung_up(pair[0].get()));
  pair[1].reset();
  CHECK_FALSE(hung_up(pair[0].get()));
  second.reset();
  CHECK(hung_up(pair[0].get()));
}
