// SPDX-License-Identifier: Apache-2.0
// Sessions that outlive their broker: it is killed under its keepers, and no client notices anything but the time.
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/e2e/kept_daemon.hpp"
#include "tests/e2e/support.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/stopped.hpp"

using namespace e2e;

namespace {

BrokerOptions resuming(const std::string& engine = "auto", const std::string& more = "") {
  return with_keepers(engine, more.empty() ? "resume" : "resume;" + more);
}

shmbw_status_reply books_of(BrokerFixture& broker) {
  auto admin = harness::RawClient::connect(broker.admin());
  REQUIRE(admin.hello().ok());
  const auto answer = admin.status();
  REQUIRE(answer.ok());
  return answer.fixed<shmbw_status_reply>();
}

}  // namespace

TEST_CASE("a session has its regions, names, tickets, watches and group with the next broker, and no call fails") {
  NEEDS_KEEPERS();
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world(resuming(engine));
    const Processes processes(world.broker());
    const Session session = world.connect(), other = world.connect();
    session.create_group({.name = "job"});
    session.join("job");
    Region region = session.create(40 * KiB, {.name = "weights"});
    fill(region.bytes(), 3);
    const Ticket ticket = region.ticket(Rights::read, 3);
    const auto name = other.watch_name("job/later");
    const auto gone = other.watch(region.id(), SHMB_EVENT_BIT_GONE);
    pid_t broker = 0;
    const auto kill = [&] {
      broker = processes.await_broker(broker);
      ::kill(broker, SIGKILL);
    };
    for (int each = 0; each < 3; ++each) {
      kill();
      const auto again = session.try_attach(region.id());
      REQUIRE_MESSAGE(again, sentence_of(again));
      CHECK(holds(again->bytes(), 3));
      const auto by_ticket = other.try_attach(ticket);
      REQUIRE_MESSAGE(by_ticket, sentence_of(by_ticket));
      CHECK(by_ticket->id() == region.id());
      CHECK(other.try_attach("job/weights"));
      CHECK(status_of(session.try_create(4096)) == Status::ok);
    }
    CHECK(status_of(other.try_attach(ticket)) == Status::not_found);  // no use more, none less
    CHECK(status_of(other.try_next_event(Timeout::no_wait())) == Status::deadline);
    const Region later = session.create(4096, {.name = "later"});
    auto event = other.next_event();
    CHECK(event.kind == shmbroker::EventKind::name_appeared);
    CHECK(event.watch == name.id);
    CHECK(event.sequence == 1);
    kill();
    // Events may have been on their way, so a gap tells to look again.
    event = other.next_event();
    CHECK(event.kind == shmbroker::EventKind::gap);
    CHECK(event.sequence == 1);
    region.release(true);
    event = other.next_event();
    CHECK(event.kind == shmbroker::EventKind::region_gone);
    CHECK(event.watch == gone.id);
    CHECK(event.sequence == 2);
    other.unwatch(name.id);
    const auto books = books_of(world.broker());
    CHECK(books.sessions == 3);
    CHECK(books.watches == 0);
  }
}

TEST_CASE("a process that dies while there is no broker is reclaimed by the next one") {
  NEEDS_KEEPERS();
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world(resuming(engine));
    const Processes processes(world.broker());
    const Gate made;
    Child client = actor([&] {
      const Session session = world.connect();
      const Region region = session.create(4096);
      made.open();
      for (;;) ::pause();
    });
    REQUIRE(made.wait());
    const Session other = world.connect();
    const auto region = other.create(4096);
    const pid_t broker = processes.await_broker();
    harness::stop(world.broker().pid());
    ::kill(broker, SIGKILL);
    client.kill();
    client.wait();
    ::kill(world.broker().pid(), SIGCONT);
    CHECK(eventually([&] {
      const auto books = books_of(world.broker());
      return books.regions == 1 && books.sessions == 2;
    }));
    CHECK(other.try_attach(region.id()));
  }
}

TEST_CASE("a session without the feature ends with its broker, and others go on") {
  NEEDS_KEEPERS();
  World world(resuming());
  const Processes processes(world.broker());
  const Session session = world.connect();
  const Region region = session.create(4096);
  auto raw = harness::RawClient::connect(world.socket());
  REQUIRE(raw.hello().ok());
  REQUIRE(raw.create(4096).ok());
  ::kill(processes.await_broker(), SIGKILL);
  CHECK(raw.receive().kind == harness::RawPacket::Kind::end_of_file);
  CHECK(session.try_attach(region.id()));
  CHECK(eventually([&] { return books_of(world.broker()).regions == 1; }));
}
