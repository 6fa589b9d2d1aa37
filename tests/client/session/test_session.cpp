// SPDX-License-Identifier: Apache-2.0
// Sessions, groups, events and views against a real broker.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "client/session/session.hpp"
#include "client/session/views.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/session.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

TEST_CASE("a session knows its broker") {
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    harness::BrokerOptions options;
    options.engine = engine;
    const harness::BrokerFixture broker(options);
    auto session = open(broker);
    const SessionFacts facts = session->facts();
    CHECK(facts.mode == SHMBW_MODE_PRIVATE);
    CHECK(facts.epoch != 0);
    CHECK(facts.session != 0);
    CHECK(facts.group == 0);
    CHECK(facts.uid == ::geteuid());
    CHECK(facts.broker_pid == broker.pid());
    CHECK(facts.socket == broker.socket());
    CHECK(facts.broker.find("shmbrokerd") != std::string::npos);
    CHECK_FALSE(facts.started_by_us);
    auto status = must(broker_status(*session, Deadline::after(0)));
    CHECK(status.record.epoch == facts.epoch);
    CHECK(status.record.sessions == 1);
    CHECK(status.record.engine == (engine == "epoll" ? SHMBW_ENGINE_EPOLL : SHMBW_ENGINE_IO_URING));
  }
}

TEST_CASE("a broker that refuses a flag is called older only if it is of another version") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 4096)));
  auto refused = region->make_ticket(0x100, 0, 0, Deadline::after(0));
  CHECK(status_of(refused) == Status::unknown_flags);
  CHECK_FALSE(refused.error().sentence.contains("older"));
  SessionFacts facts = session->facts();
  facts.broker = "shmbrokerd 0.0.9";
  const std::string sentence = of_older_broker(facts, Error{Status::unknown_flags, 0, {}, "refused"}).sentence;
  CHECK(sentence.contains("shmbrokerd 0.0.9) is older than this library"));
}

TEST_CASE("eight threads share one session without ever taking each other's answer") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto keeper = must(create_region(session, named("", 4096)));
  const int rounds = 1000 / harness::kSlowdown;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < rounds; ++i) {
        const std::uint64_t length =
            4096 * (1 + static_cast<std::uint64_t>((t * 7 + i) % 5)) - static_cast<std::uint64_t>(t);
        auto made = create_region(session, named(i % 3 == 0 ? "t" + std::to_string(t) : "", length));
        if (!made || (*made)->facts().length != length) {
          ++wrong;
          continue;
        }
        (*made)->data()[length - 1] = static_cast<std::byte>(t);
        AttachItem again;
        again.target = Target::with_id((*made)->ref());
        again.rights = kReadWrite;
        auto attached = attach_region(session, again);
        if (!attached || (*attached)->data()[length - 1] != static_cast<std::byte>(t)) ++wrong;
        if (!(*made)->release(i % 3 == 0 ? kReleaseUnname : 0)) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(must(list_regions(*session, {}, Deadline::after(0))).total_count == 1);
}

TEST_CASE("the session is lost when the broker goes; mappings stay and calls fail at once") {
  harness::BrokerFixture broker;
  auto session = open(broker);
  auto region = must(create_region(session, named("kv", 4 << 20)));
  region->data()[0] = std::byte{1};
  broker.kill();
  region->data()[0] = std::byte{2};
  CHECK(status_of(session->ping(Deadline::after(0))) == Status::session_lost);
  CHECK(session->lost());
  CHECK(status_of(create_region(session, named("", 4096))) == Status::session_lost);
  CHECK(status_of(region->publish(Deadline::after(0))) == Status::session_lost);
  CHECK(status_of(session->wait_group(0, Deadline::after(0), Deadline::after(kForever))) == Status::session_lost);
  auto again = try_open(broker.socket());
  CHECK(status_of(again) == Status::no_broker);
}

TEST_CASE("a stopped broker is a deadline, and answers when it goes on") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  harness::stop(broker.pid());
  CHECK(status_of(session->ping(Deadline::after(30'000'000))) == Status::deadline);
  auto late = create_region(session, named("late", 4096), 30'000'000);
  CHECK(status_of(late) == Status::deadline);
  ::kill(broker.pid(), SIGCONT);
  must(session->ping(Deadline::after(0)));
  // The late grant was given back, and the name with it.
  must(session->ping(Deadline::after(0)));
  CHECK(must(list_regions(*session, {}, Deadline::after(0))).rows.empty());
}

TEST_CASE("groups: created, joined by name and by token, left, waited for") {
  const harness::BrokerFixture broker;
  auto session = open(broker), other = open(broker);
  GroupSpec spec;
  spec.name = "train";
  auto group = must(session->create_group(spec, Deadline::after(0)));
  CHECK(status_of(session->create_group(spec, Deadline::after(0))) == Status::exists);
  spec.name = "no/slash";
  CHECK(status_of(session->create_group(spec, Deadline::after(0))) == Status::invalid);
  CHECK(must(session->join_group(std::string("train"), 0, Deadline::after(0))) == group.id);
  CHECK(session->facts().group == group.id);
  CHECK(must(other->join_group(group.token, 0, Deadline::after(0))) == group.id);
  CHECK(status_of(other->join_group(Token{}, 0, Deadline::after(0))) == Status::invalid);
  CHECK(status_of(other->join_group(std::string("absent"), 0, Deadline::after(0))) == Status::not_found);
  CHECK(status_of(other->join_group(std::string("1:2:3"), 0, Deadline::after(0))) == Status::invalid);

  auto watcher = open(broker);
  CHECK(status_of(watcher->wait_group(group.id, Deadline::after(0), Deadline::after(20'000'000))) == Status::deadline);
  Result<void> ended = error(Status::invalid, "");
  std::thread waiting(
      [&] { ended = watcher->wait_group(group.id, Deadline::after(0), Deadline::after(60'000'000'000)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  must(session->leave_group(0, Deadline::after(0)));
  CHECK(session->facts().group == 0);
  other.reset();
  waiting.join();
  CHECK(status_of(ended) == Status::ok);
}

TEST_CASE("SHMBROKER_GROUP's value makes a session a member") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  GroupSpec spec;
  spec.name = "job";
  auto group = must(session->create_group(spec, Deadline::after(0)));
  must(session->join_group(group.token, 0, Deadline::after(0)));
  std::uint8_t token[16];
  std::copy(group.token.bytes.begin(), group.token.bytes.end(), token);
  ConnectOptions options;
  options.socket = broker.socket();
  options.group = names::format_group_variable("job", token);
  CHECK(must(shmb::client::connect(options))->facts().group == group.id);
  token[0] ^= 1;
  options.group = names::format_group_variable("job", token);
  CHECK(status_of(shmb::client::connect(options)) == Status::not_found);
  options.group = "job";
  const auto by_name = shmb::client::connect(options);
  CHECK(status_of(by_name) == Status::invalid);
  CHECK(by_name.error().sentence.starts_with("the group to connect to is not NAME:TOKEN"));
  Places places = process_places();
  places.socket_variable = broker.socket();
  options = {};
  places.group_variable = "job";
  const auto by_variable = shmb::client::connect(options, places);
  CHECK(status_of(by_variable) == Status::invalid);
  CHECK(by_variable.error().sentence.starts_with("SHMBROKER_GROUP is not NAME:TOKEN"));
  places.group_variable = names::format_group_variable("job", token);
  CHECK(status_of(shmb::client::connect(options, places)) == Status::not_found);
  options.no_group = true;
  CHECK(status_of(shmb::client::connect(options, places)) == Status::ok);
}

TEST_CASE("events come through the descriptor that the caller polls") {
  const harness::BrokerFixture broker;
  auto session = open(broker), other = open(broker);
  auto region = must(create_region(session, named("kv", 8192)));
  const std::uint64_t group = region->facts().group;
  must(other->join_group("#" + std::to_string(group), 0, Deadline::after(0)));
  const int fd = must(other->event_descriptor());
  CHECK(must(other->event_descriptor()) == fd);
  pollfd watched{fd, POLLIN, 0};
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_REGION;
  spec.region = region->ref();
  auto watch = must(other->watch(spec, Deadline::after(0)));
  spec.kind = SHMBW_WATCH_KIND_NAME;
  spec.address = "next";
  auto name = must(other->watch(spec, Deadline::after(0)));
  CHECK(name.state == 0);
  while (::poll(&watched, 1, 0) == 1 && other->next_event(Deadline::now())) {
  }
  must(region->publish(Deadline::after(0)));
  CHECK(::poll(&watched, 1, 10'000) == 1);
  Event event = must(other->next_event(Deadline::after(0)));
  CHECK(event.kind == Event::Kind::region_published);
  CHECK(event.watch == watch.id);
  CHECK(event.region.id == region->ref().id);

  auto next = must(create_region(session, named("next", 4096)));
  event = must(other->next_event(Deadline::after(0)));
  CHECK(event.kind == Event::Kind::name_appeared);
  CHECK(event.watch == name.id);
  CHECK(event.text == "next");

  must(region->release(kReleaseUnname));
  event = must(other->next_event(Deadline::after(0)));
  CHECK(event.kind == Event::Kind::region_gone);
  must(other->unwatch(name.id, Deadline::after(0)));
  CHECK(status_of(other->unwatch(name.id, Deadline::after(0))) == Status::not_found);
  must(next->release(kReleaseUnname));
}

TEST_CASE("the reclaim of a killed member is reported to its watcher") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_RECLAIM;
  must(session->watch(spec, Deadline::after(0)));
  const std::string socket = broker.socket();
  const harness::Gate ready;
  auto victim = harness::Child::run([&] {
    auto own = must(try_open(socket));
    auto region = must(create_region(own, named("", 1 << 20)));
    ready.open();
    for (;;) ::pause();
    return 0;
  });
  CHECK(ready.wait());
  const pid_t pid = victim.pid();
  victim.kill();
  victim.wait();
  const Event event = must(session->next_event(Deadline::after(20'000'000'000)));
  CHECK(event.kind == Event::Kind::reclaim);
  CHECK(event.pid == static_cast<std::uint32_t>(pid));
  CHECK(event.regions == 1);
  CHECK(event.bytes == 1 << 20);
}

TEST_CASE("views page through more rows than one message holds") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  std::vector<CreateItem> items(1500, named("", 4096));
  auto made = create_regions(session, items, 0);
  auto listed = must(list_regions(*session, {}, Deadline::after(0)));
  CHECK(listed.rows.size() == 1500);
  CHECK(listed.total_count == 1500);
  CHECK(listed.total_bytes == 1500 * 4096);
  std::set<std::uint64_t> ids;
  for (const RegionRow& row : listed.rows) ids.insert(row.record.region.id);
  CHECK(ids.size() == 1500);
  Selection one;
  one.region = must(std::move(made[7]))->ref();
  CHECK(must(list_regions(*session, one, Deadline::after(0))).rows.size() <= 1);
  CHECK(must(list_sessions(*session, {}, Deadline::after(0))).rows.size() == 1);
  CHECK(must(list_groups(*session, {}, Deadline::after(0))).rows.size() == 1);
  CHECK(must(list_uids(*session, {}, Deadline::after(0))).rows.size() == 1);
  CHECK(must(list_tickets(*session, {}, Deadline::after(0))).rows.empty());
  CHECK(must(list_leases(*session, {}, Deadline::after(0))).rows.size() >= 1499);
}
