// SPDX-License-Identifier: Apache-2.0
// The broker goes away under its clients: each is told once and cleanly, what is mapped stays, and a new broker serves
// them again.
#include <poll.h>
#include <sys/stat.h>

#include "tests/e2e/support.hpp"

using namespace e2e;

namespace {

BrokerOptions in_the_same_place(const BrokerFixture& first, BrokerOptions options) {
  options.arguments = {"--directory", first.directory()};
  options.expect_empty_books = false;  // its admin socket is not where this fixture thinks
  return options;
}

// The promises to a client once its broker is gone.
void outlive(const Session& session, Region& written, const shmbroker::ReadOnlyRegion& read) {
  pollfd entry{session.event_descriptor(), POLLIN, 0};
  NEED(::poll(&entry, 1, 20'000) == 1);
  const auto event = session.next_event();
  NEED(event.kind == shmbroker::EventKind::broker_away);
  NEED(!event.text.empty());
  NEED(session.info().lost == 1);
  NEED_STATUS(session.try_next_event(Timeout::no_wait()), session_lost);
  NEED_STATUS(session.try_ping(), session_lost);
  const auto refused = session.try_create(4096);
  NEED_STATUS(refused, session_lost);
  NEED(!sentence_of(refused).empty());
  NEED_STATUS(session.try_attach(read.id()), session_lost);
  NEED_STATUS(written.try_ticket(), session_lost);
  NEED(holds(written.bytes(), 1));
  NEED(holds(read.bytes(), 2));
  fill(written.bytes(), 3);
  NEED(holds(written.bytes(), 3));
}

}  // namespace

TEST_CASE("SIGKILL of the broker: clients hear of it, keep their mappings and connect to the next one") {
  for (BrokerOptions options : harness::engines_and_kernels()) {
    const std::string name = harness::name_of(options);
    CAPTURE(name);
    World world(options);
    Gate ready[2], again;
    const auto client = [&](const Gate& me) {
      return actor([&] {
        const Session session = world.connect();
        Region region = session.create(2 * MiB), other = session.create(4096);
        fill(region.bytes(), 1);
        fill(other.bytes(), 2);
        const auto read = session.attach(other.id());
        const std::uint64_t epoch = session.epoch().value;
        me.open();
        outlive(session, region, read);
        NEED(again.wait());
        const Session next = world.connect();
        NEED(next.epoch().value != epoch);
        NEED_STATUS(next.try_attach(region.id()), stale);
        Region fresh = next.create(2 * MiB);
        NEED(all_zero(fresh.bytes()));
        NEED(holds(region.bytes(), 3));  // still there beside the new life
        region.release();                // of the lost session: harmless
        NEED_STATUS(next.try_ping(), ok);
      });
    };
    Child clients[] = {client(ready[0]), client(ready[1])};
    for (const Gate& gate : ready) REQUIRE(gate.wait());
    world.broker().kill();
    const BrokerFixture next(in_the_same_place(world.broker(), options));
    REQUIRE_MESSAGE(next.running(), next.log());
    again.open();
    for (Child& one : clients) REQUIRE(one.wait() == 0);
    CHECK(world.broker().books().empty());  // asks whoever serves that place now
  }
}

TEST_CASE("SIGTERM of the broker: it ends with 0, takes its sockets away, and clients are no worse off") {
  in_every_world([](World& world) {
    Gate ready;
    Child client = actor([&] {
      const Session session = world.connect();
      Region region = session.create(2 * MiB), other = session.create(4096);
      fill(region.bytes(), 1);
      fill(other.bytes(), 2);
      const auto read = session.attach(other.id());
      ready.open();
      outlive(session, region, read);
      const auto refused = Session::try_connect({.socket = world.socket()});
      NEED_STATUS(refused, no_broker);
      NEED(sentence_of(refused).find(world.socket()) != std::string::npos);
    });
    REQUIRE(ready.wait());
    CHECK(world.broker().stop() == 0);
    struct stat facts;
    CHECK(::lstat(world.socket().c_str(), &facts) != 0);
    CHECK(::lstat(world.broker().admin().c_str(), &facts) != 0);
    CHECK(client.wait() == 0);
  });
}

TEST_CASE("a client that waits for something when the broker dies returns at once, not at its deadline") {
  for (const std::string& engine : harness::engines()) {
    World world({.engine = engine});
    Gate waiting[3];
    const auto waits = [&](const Gate& me, const std::function<Status(const Session&)>& wait) {
      return actor([&world, &me, wait] {
        const Session session = world.connect();
        session.create(4096);
        me.open();
        NEED(wait(session) == Status::session_lost);
      });
    };
    // Each would wait for ever, or past the harness' patience.
    Child clients[] = {
        waits(waiting[0],
              [](const Session& session) {
                return status_of(session.try_attach("nobody/makes-it", {.wait = Timeout::forever()}));
              }),
        waits(waiting[1], [](const Session& session) { return status_of(session.try_wait_group()); }),
        waits(waiting[2],
              [](const Session& session) {
                (void)session.try_next_event(Timeout::forever());  // BROKER_AWAY
                return status_of(session.try_next_event(Timeout::forever()));
              }),
    };
    for (const Gate& gate : waiting) REQUIRE(gate.wait());
    ::usleep(50'000);
    world.broker().kill();
    for (Child& client : clients) CHECK(client.wait() == 0);
  }
}
