// SPDX-License-Identifier: Apache-2.0
// Forked children: they use the inherited handles with their own leases, also after the end of the parent.
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/sys_socket.hpp"
#include "client/session/views.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/session.hpp"

using namespace support;
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

#define CHILD_STEP(number, condition) \
  do {                                \
    if (!(condition)) return number;  \
  } while (false)

// A broker that the test plays, so that it answers when the test says so.
struct PlayedBroker {
  harness::TempDir directory;
  std::string socket = directory.path() + "/socket";
  Fd listener = must(shmb::sys::seqpacket_socket(false));
  std::vector<std::byte> bytes = std::vector<std::byte>(SHMBW_MAX_MESSAGE);
  shmbw_header header{};

  PlayedBroker() {
    REQUIRE(sys::bind_path(listener.get(), socket));
    REQUIRE(sys::listen(listener.get(), 8));
  }
  template <class T>
  static T must(Sys<T> value) {
    REQUIRE(value.has_value());
    return std::move(*value);
  }
  static void greet(int fd, std::uint64_t tag) {
    std::array<std::byte, 512> buffer;
    wire::Writer writer(buffer);
    shmbw_hello_reply reply{};
    reply.version = SHMBW_PROTOCOL;
    reply.epoch = 1;
    writer.begin(SHMBW_OP_HELLO | SHMBW_REPLY, tag, Status::ok, reply);
    (void)sys::send(fd, writer.finish(0), {}, {}, true);
  }
  // The next request's op; 0: none came before a minute has passed.
  std::uint16_t take(int fd) {
    std::vector<Fd> fds;
    auto readable = sys::poll_readable(fd, 60'000'000'000);
    auto got = readable && *readable ? sys::receive(fd, bytes, fds, true) : sys::Received{};
    header = {};
    if (got && got->size >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
    return header.op;
  }
};

}  // namespace

TEST_CASE("a handle that is released while another thread of a forked child takes over is waited for, and released") {
  PlayedBroker broker;
  auto ends = PlayedBroker::must(sys::seqpacket_pair());
  broker.greet(ends[0].get(), 1);
  SessionFacts known;
  known.socket = broker.socket;
  auto session = must(Session::greet(std::move(ends[1]), known, {}, Deadline::after(0)));
  RegionFacts facts;
  facts.ref = {7, 1, 0};
  facts.rights = SHMBW_RIGHT_MAP_READ;
  auto region = std::make_unique<Region>(session, facts, Mapping(), Fd());
  auto child = harness::Child::run([&] {
    Status answered = Status::broken;
    std::thread calls([&] { answered = status_of(session->ping(Deadline::after(30'000'000'000))); });
    auto readable = sys::poll_readable(broker.listener.get(), 60'000'000'000);
    CHILD_STEP(1, readable && *readable);
    const int fd = ::accept(broker.listener.get(), nullptr, nullptr);
    CHILD_STEP(2, broker.take(fd) == SHMBW_OP_HELLO);
    broker.greet(fd, broker.header.tag);
    CHILD_STEP(3, broker.take(fd) == SHMBW_OP_INHERIT);
    const std::uint64_t inherits = broker.header.tag;
    std::atomic<bool> released{false};
    std::thread releases([&] {
      region.reset();
      released = true;
    });
    for (int i = 0; i < 300 && !released; ++i) ::usleep(1000);
    std::array<std::byte, 256> buffer;
    wire::Writer writer(buffer);
    writer.begin_batch<shmbw_inherit_reply>(SHMBW_OP_INHERIT | SHMBW_REPLY, inherits, 1);
    writer.element(0, shmbw_inherit_reply{{}, SHMBW_RIGHT_MAP_READ, 0});
    (void)sys::send(fd, writer.finish(0), {}, {}, true);
    unsigned leases_left = 1;
    std::uint16_t op = broker.take(fd);
    for (; op == SHMBW_OP_RELEASE; op = broker.take(fd)) --leases_left;
    CHILD_STEP(4, op == SHMBW_OP_STATUS);
    wire::Writer last(buffer);
    last.begin(SHMBW_OP_STATUS | SHMBW_REPLY, broker.header.tag, Status::ok, shmbw_status_reply{});
    (void)sys::send(fd, last.finish(0), {}, {}, true);
    calls.join();
    releases.join();
    CHILD_STEP(5, answered == Status::ok);
    session.reset();  // the end of the connection, for the last look
    while (broker.take(fd) == SHMBW_OP_RELEASE) --leases_left;
    CHILD_STEP(6, leases_left == 0);
    return 0;
  });
  CHECK(child.wait() == 0);
}

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

TEST_CASE("a forked child whose first call releases a region with its name takes the name away") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 8192)));
  auto child = harness::Child::run([&] { return region->release(kReleaseUnname) ? 0 : 1; });
  CHECK(child.wait() == 0);
  CHECK(status_of(attach_region(session, at("kv", kReadWrite))) == Status::not_found);
  auto listed = must(list_regions(*session, {}, Deadline::after(0)));
  REQUIRE(listed.rows.size() == 1);
  CHECK(listed.rows[0].record.holders == 1);  // the child's reference went, the parent's stayed
}

TEST_CASE("a name that cannot be taken away is an error, also in a forked child without a broker") {
  harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 8192)));
  auto other = must(create_region(session, named("other", 8192)));
  broker.kill();
  auto child = harness::Child::run([&] {
    auto released = region->release(kReleaseUnname);
    return !released && released.error().status == Status::session_lost ? 0 : 1;
  });
  CHECK(child.wait() == 0);
  CHECK(status_of(region->release(kReleaseUnname)) == Status::session_lost);
  must(other->release(0));  // what it held went with the session
}
