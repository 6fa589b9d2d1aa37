// SPDX-License-Identifier: Apache-2.0
// Forked children: they use what they inherited, with leases of their own, whatever becomes of the parent.
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "client/views.hpp"
#include "tests/client/support.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"

using namespace client_tests;
using namespace shmb;
using namespace shmb::client;

namespace {

// Every handle works: the mapping, a further descriptor, a new create in the same group.
int uses_everything(const std::shared_ptr<Session>& session, Region& region) {
  region.data()[1] = std::byte{2};
  if (!region.descriptor(Deadline::after(0))) return 10;
  if (!create_region(session, named("", 4096))) return 11;
  auto again = attach_region(session, at("kv", kReadWrite));
  if (!again) return 12;
  return session->facts().group == region.facts().group ? 0 : 13;
}

}  // namespace

TEST_CASE("a forked child is a session of its own with leases of its own") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 4 << 20)));
  const auto parent = session->facts().session;
  auto child = harness::Child::run([&] {
    const int used = uses_everything(session, *region);
    if (used != 0) return used;
    return session->facts().session == parent ? 20 : 0;
  });
  CHECK(child.wait() == 0);
  CHECK(session->facts().session == parent);
  CHECK(region->data()[1] == std::byte{2});
  must(session->ping(Deadline::after(0)));
  must(region->release(kReleaseUnname));
}

TEST_CASE("a child that never calls costs the broker no session, and its exit takes nothing from the parent") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("", 8192)));
  auto child = harness::Child::run([&] {
    region->data()[0] = std::byte{5};
    region.reset();
    session.reset();
    return 0;
  });
  CHECK(child.wait() == 0);
  CHECK(region->data()[0] == std::byte{5});
  auto listed = must(list_regions(*session, {}, Deadline::after(0)));
  REQUIRE(listed.rows.size() == 1);
  CHECK(listed.rows[0].record.holders == 1);
}

TEST_CASE("a grandchild whose parent never called gets its leases all the same") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 8192)));
  auto child = harness::Child::run([&] {
    auto grandchild = harness::Child::run([&] { return uses_everything(session, *region); });
    return grandchild.wait();
  });
  CHECK(child.wait() == 0);
  SUBCASE("also when the child in between has called") {
    auto caller = harness::Child::run([&] {
      if (const int used = uses_everything(session, *region); used != 0) return used;
      auto grandchild = harness::Child::run([&] { return uses_everything(session, *region); });
      return grandchild.wait();
    });
    CHECK(caller.wait() == 0);
  }
  must(region->release(kReleaseUnname));
}

TEST_CASE("a child goes on when its parent was killed, before and after its own first call") {
  harness::BrokerOptions options;
  const harness::BrokerFixture broker(options);
  const std::string socket = broker.socket();
  const harness::Gate mapped, dead;
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  // The one in the middle makes the region, forks the child and is then killed.
  auto parent = harness::Child::run([&] {
    auto session = must(try_open(socket));
    auto region = must(create_region(session, named("kv", 8192)));
    region->data()[0] = std::byte{77};
    const pid_t child = ::fork();
    if (child == 0) {
      mapped.open();
      dead.wait();
      char verdict = 'y';
      if (region->data()[0] != std::byte{77}) verdict = 'm';
      else if (uses_everything(session, *region) != 0) verdict = 'u';
      else if (!region->release(kReleaseUnname)) verdict = 'r';
      (void)!::write(pipe_ends[1], &verdict, 1);
      ::_exit(0);
    }
    for (;;) ::pause();
    return 0;
  });
  CHECK(mapped.wait());
  parent.kill();
  CHECK(parent.wait() == 128 + SIGKILL);
  dead.open();
  char verdict = 0;
  ::close(pipe_ends[1]);
  CHECK(::read(pipe_ends[0], &verdict, 1) == 1);
  CHECK(verdict == 'y');
  ::close(pipe_ends[0]);
}

TEST_CASE("a bare clone(2), which runs no fork handler, is noticed too") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 8192)));
  const long child = ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(uses_everything(session, *region));
  int status = 0;
  CHECK(::waitpid(static_cast<pid_t>(child), &status, 0) == child);
  CHECK(status == 0);
  must(session->ping(Deadline::after(0)));
  must(region->release(kReleaseUnname));
}

TEST_CASE("forking while other threads are in calls leaves the child's locks free") {
  if (harness::kThreadSanitizer || harness::kAddressSanitizer)
    SKIP_CASE("a sanitizer's own locks do not survive the fork of a threaded program");
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 8192)));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!stop) (void)session->ping(Deadline::after(0));
    });
  for (int i = 0; i < 20; ++i) {
    auto child = harness::Child::run([&] { return uses_everything(session, *region); });
    CHECK(child.wait() == 0);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  must(region->release(kReleaseUnname));
}

TEST_CASE("a child whose broker is gone keeps its mapping and hears that the session is lost") {
  harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 8192)));
  region->data()[0] = std::byte{9};
  broker.kill();
  auto child = harness::Child::run([&] {
    if (region->data()[0] != std::byte{9}) return 1;
    auto refused = create_region(session, named("", 4096));
    if (refused || refused.error().status != Status::session_lost) return 2;
    return refused.error().sentence.find("forked child") != std::string::npos ? 0 : 3;
  });
  CHECK(child.wait() == 0);
}
