// SPDX-License-Identifier: Apache-2.0
// Law 11: every blocking call takes a deadline. A broker that is stopped costs each caller its deadline and no more;
// what it answers later is given back. The death of the awaited side always ends a wait.
//
// To see it fail: in client/session/channel.cpp, take_reply, take away
//   if (!told) give_back(view, pending, fds);
// and what a late reply grants stays in the books.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "client/face/shmbroker.h"
#include "tests/harness/stopped.hpp"
#include "tests/laws/law.hpp"

using namespace laws;

namespace {

constexpr std::int64_t kShort = 30'000'000;

struct CSession {
  shmb_session* raw = nullptr;
  explicit CSession(const std::string& socket) {
    shmb_connect_options options{};
    options.size = sizeof options;
    options.socket = socket.c_str();
    options.flags = SHMB_CONNECT_NO_GROUP;
    shmb_error error{};
    REQUIRE_MESSAGE(shmb_connect(&options, &raw, &error) == SHMB_OK, error.sentence);
  }
  CSession(const CSession&) = delete;
  CSession& operator=(const CSession&) = delete;
  ~CSession() { shmb_disconnect(raw); }
};

shmb_region* created(shmb_session* session, const char* name) {
  shmb_create_options options{};
  options.size = sizeof options;
  options.name = name;
  shmb_region* region = nullptr;
  shmb_error error{};
  REQUIRE_MESSAGE(shmb_create(session, 8192, &options, &region, &error) == SHMB_OK, error.sentence);
  return region;
}

struct Call {
  std::string name;
  std::function<int(shmb_error*)> make;
};

template <class T>
T sized() {
  T value{};
  value.size = sizeof value;
  return value;
}

}  // namespace

TEST_CASE(
    "law 11: every call to a broker that is stopped returns `deadline`, and what was granted late is given back") {
  on_each_engine([](BrokerFixture& broker) {
    const CSession session(broker.socket());
    shmb_session* const s = session.raw;
    shmb_region* const kept = created(s, "kept");
    shmb_region* const third = created(s, "third");
    shmb_region* const spent = created(s, "spent");
    shmb_region* const published = created(s, "published");
    shmb_group group{};
    REQUIRE(shmb_group_create(s, nullptr, &group, nullptr) == SHMB_OK);
    auto watch_options = sized<shmb_watch_options>();
    watch_options.kind = SHMB_WATCH_REGION;
    watch_options.region = shmb_region_get_id(kept);
    std::uint64_t watch = 0;
    REQUIRE(shmb_watch(s, &watch_options, &watch, nullptr, nullptr) == SHMB_OK);

    auto create = sized<shmb_create_options>();
    create.timeout_ns = kShort;
    auto late = create;
    late.name = "late";
    auto poor = create;
    poor.name = "poor";
    poor.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
    auto attach = sized<shmb_attach_options>();
    attach.timeout_ns = kShort;
    attach.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
    auto waits = attach;
    waits.wait_ns = kShort;
    auto group_options = sized<shmb_group_options>();
    group_options.timeout_ns = kShort;
    auto connect = sized<shmb_connect_options>();
    connect.socket = broker.socket().c_str();
    connect.timeout_ns = kShort;
    auto region_watch = watch_options;
    region_watch.timeout_ns = kShort;
    auto stat = sized<shmb_region_stat>();
    auto event = sized<shmb_event>();
    const shmb_region_id id = shmb_region_get_id(kept);
    shmb_region* no_region = nullptr;
    shmb_region* regions_out[2] = {};
    const shmb_create_item items[] = {{4096, nullptr}, {8192, nullptr}};
    shmb_session* no_session = nullptr;
    shmb_group no_group{};
    std::uint64_t number = 0;
    std::uint8_t ticket[16] = {1};
    const std::vector<Call> calls = {
        {"connect", [&](shmb_error* e) { return shmb_connect(&connect, &no_session, e); }},
        {"ping", [&](shmb_error* e) { return shmb_ping(s, kShort, e); }},
        {"create", [&](shmb_error* e) { return shmb_create(s, 8192, &late, &no_region, e); }},
        {"create of few rights", [&](shmb_error* e) { return shmb_create(s, 8192, &poor, &no_region, e); }},
        {"create in huge pages", [&](shmb_error* e) { return shmb_create(s, 4 << 20, &create, &no_region, e); }},
        {"create_many", [&](shmb_error* e) { return shmb_create_many(s, items, 2, kShort, regions_out, nullptr, e); }},
        {"attach", [&](shmb_error* e) { return shmb_attach(s, "kept", &attach, &no_region, e); }},
        {"attach that waits", [&](shmb_error* e) { return shmb_attach(s, "absent", &waits, &no_region, e); }},
        {"attach_id", [&](shmb_error* e) { return shmb_attach_id(s, &id, &attach, &no_region, e); }},
        {"attach_ticket", [&](shmb_error* e) { return shmb_attach_ticket(s, ticket, &attach, &no_region, e); }},
        {"stat", [&](shmb_error* e) { return shmb_stat(s, "kept", kShort, &stat, e); }},
        {"stat_id", [&](shmb_error* e) { return shmb_stat_id(s, &id, kShort, &stat, e); }},
        {"unname", [&](shmb_error* e) { return shmb_unname(s, "absent", kShort, e); }},
        {"ticket_create", [&](shmb_error* e) { return shmb_ticket_create(kept, 0, 1, 0, kShort, ticket, nullptr, e); }},
        {"ticket_lend", [&](shmb_error* e) { return shmb_ticket_lend(kept, 0, 1, 0, kShort, ticket, nullptr, e); }},
        {"ticket_revoke", [&](shmb_error* e) { return shmb_ticket_revoke(s, ticket, kShort, e); }},
        {"group_create", [&](shmb_error* e) { return shmb_group_create(s, &group_options, &no_group, e); }},
        {"group_join", [&](shmb_error* e) { return shmb_group_join(s, "absent", 0, kShort, &number, e); }},
        {"group_join_token", [&](shmb_error* e) { return shmb_group_join_token(s, ticket, 0, kShort, &number, e); }},
        {"group_end", [&](shmb_error* e) { return shmb_group_end(s, group.id, nullptr, 0, kShort, nullptr, e); }},
        {"watch", [&](shmb_error* e) { return shmb_watch(s, &region_watch, &number, nullptr, e); }},
        {"unwatch", [&](shmb_error* e) { return shmb_unwatch(s, watch, kShort, e); }},
        {"next_event", [&](shmb_error* e) { return shmb_next_event(s, kShort, &event, e); }},
    };
    const auto admin = open_admin(broker);
    const auto before = must(broker_status(*admin, soon())).record;
    const auto descriptors = [] {
      std::size_t open = 0;
      for (int fd = 0; fd < 512; ++fd) open += ::fcntl(fd, F_GETFD) >= 0;
      return open;
    };
    const auto open_before = descriptors();
    {
      const harness::Stopped stopped(broker.pid());
      for (const Call& call : calls) {
        CAPTURE(call.name);
        shmb_error error{};
        CHECK(call.make(&error) == SHMB_E_DEADLINE);
        CHECK(error.status == SHMB_E_DEADLINE);
        CHECK(std::strlen(error.sentence) > 0);
      }
      // Those without an argument have the default of five seconds: all at once, to wait once.
      std::vector<int> statuses(4, -1);
      std::vector<std::thread> threads;
      threads.emplace_back([&] {
        void* address = nullptr;
        statuses[0] = shmb_region_map(third, 0, 4096, SHMB_ACCESS_READ, &address, nullptr);
      });
      threads.emplace_back([&] {
        int fd = -1;
        statuses[1] = shmb_region_descriptor(kept, &fd, nullptr);
      });
      threads.emplace_back([&] { statuses[2] = shmb_release(spent, SHMB_RELEASE_UNNAME, nullptr); });
      threads.emplace_back([&] { statuses[3] = shmb_publish(published, kShort, nullptr); });
      for (auto& thread : threads) thread.join();
      for (const int status : statuses) CHECK(status == SHMB_E_DEADLINE);
    }
    shmb_error error{};
    CHECK(shmb_ping(s, SHMB_DEFAULT_TIMEOUT, &error) == SHMB_OK);
    const auto balanced = [&] {
      (void)shmb_ping(s, SHMB_DEFAULT_TIMEOUT, nullptr);  // late replies are read by whoever calls next
      const auto now = must(broker_status(*admin, soon())).record;
      return now.regions == before.regions - 1 && now.leases == before.leases - 1 && now.tickets == 0 &&
             now.sessions == before.sessions && now.groups == before.groups - 1 && now.watches == before.watches - 1;
    };
    CHECK(eventually(balanced));
    const auto after = must(broker_status(*admin, soon())).record;
    CHECK(after.regions == before.regions - 1);  // `spent`
    CHECK(after.leases == before.leases - 1);
    CHECK(after.watches == before.watches - 1);  // `unwatch`, late; the late `watch` was cancelled
    CHECK(after.groups == before.groups - 1);    // `group_end`, late; the late `group_create` was given up
    CHECK(after.bytes - after.bytes_cached <= before.bytes);
    CHECK(descriptors() == open_before);
    // The name that a late create took is free again; a late publish is done and can be asked for again.
    auto again = sized<shmb_create_options>();
    again.name = "late";
    REQUIRE_MESSAGE(shmb_create(s, 8192, &again, &no_region, &error) == SHMB_OK, error.sentence);
    CHECK(shmb_release(no_region, SHMB_RELEASE_UNNAME, nullptr) == SHMB_OK);
    again.name = "poor";
    REQUIRE_MESSAGE(shmb_create(s, 8192, &again, &no_region, &error) == SHMB_OK, error.sentence);
    CHECK(shmb_release(no_region, SHMB_RELEASE_UNNAME, nullptr) == SHMB_OK);
    CHECK_MESSAGE(shmb_publish(published, SHMB_DEFAULT_TIMEOUT, &error) == SHMB_OK, error.sentence);
    for (shmb_region* region : {kept, third, published})
      CHECK(shmb_release(region, SHMB_RELEASE_UNNAME, nullptr) == SHMB_OK);
  });
}

TEST_CASE("law 11: a ticket, a group and a membership that came too late are given back, and what was there stays") {
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    const auto other = open(broker), session = open(broker);
    must(other->create_group({.name = "club"}, soon()));
    must(other->join_group("club", 0, soon()));
    must(session->create_group({.name = "home"}, soon()));
    const auto home = must(session->join_group("home", 0, soon()));
    auto region = must(create_region(session, named("kept", 8192)));
    const auto members = [&](const std::string& group) {
      for (const auto& row : must(list_groups(*admin, {}, soon())).rows)
        if (row.name == group) return static_cast<int>(row.record.members);
      return -1;
    };
    const auto late = [&](const std::function<Status()>& call) {
      const harness::Stopped stopped(broker.pid());
      CHECK(call() == Status::deadline);
    };
    const auto brief = [] { return Deadline::after(kShort); };

    late([&] { return status_of(region->make_ticket(SHMBW_RIGHT_MAP_READ, 5, 0, brief())); });
    must(session->ping(soon()));  // reads what came late; what it gives back is served before the next
    must(session->ping(soon()));
    CHECK(must(broker_status(*admin, soon())).record.tickets == 0);

    late([&] { return status_of(session->create_group({.name = "late"}, brief())); });
    must(session->ping(soon()));
    must(session->ping(soon()));
    CHECK(members("late") == -1);
    // One that may have been there before stays with the session.
    GroupSpec adopted{.name = "perhaps"};
    adopted.flags = SHMBW_GROUP_ADOPT_EXISTING;
    late([&] { return status_of(session->create_group(adopted, brief())); });
    must(session->ping(soon()));
    must(session->ping(soon()));
    CHECK(members("perhaps") == 0);
    must(session->leave_group(must(session->create_group(adopted, soon())).id, soon()));
    CHECK(members("perhaps") == -1);

    // A join to where it is already is no news.
    late([&] { return status_of(session->join_group("home", 0, brief())); });
    must(session->ping(soon()));
    must(session->ping(soon()));
    CHECK(members("home") == 1);
    CHECK(session->facts().group == home);
    late([&] { return status_of(session->join_group("club", SHMBW_JOIN_SUPERVISOR, brief())); });
    must(session->ping(soon()));
    must(session->ping(soon()));
    for (const auto& row : must(list_groups(*admin, {}, soon())).rows) CHECK(row.record.supervisors == 0);
    CHECK(session->facts().group == home);
    late([&] { return status_of(session->join_group("club", 0, brief())); });
    must(session->ping(soon()));
    must(session->ping(soon()));
    CHECK(members("club") == 1);
    CHECK(session->facts().group == 0);
    auto after = must(create_region(session, named("", 4096)));
    CHECK(session->facts().group != 0);
    CHECK(session->facts().group != home);
  });
}

TEST_CASE("law 11: a call repeated after a deadline gets the second answer, though the first came late") {
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    const auto other = open(broker), session = open(broker);
    must(other->create_group({.name = "club"}, soon()));
    const auto club = must(other->join_group("club", 0, soon()));
    const auto rows = [&](const std::string& group) {
      for (const auto& row : must(list_groups(*admin, {}, soon())).rows)
        if (row.name == group) return std::pair(row.record.members, row.record.supervisors);
      return std::pair(99U, 99U);
    };
    const auto late = [&](const std::function<Status()>& call) {
      const harness::Stopped stopped(broker.pid());
      CHECK(call() == Status::deadline);
    };
    const auto brief = [] { return Deadline::after(kShort); };
    const auto settle = [&] {
      must(session->ping(soon()));
      must(session->ping(soon()));
    };

    late([&] { return status_of(session->join_group("club", 0, brief())); });
    CHECK(must(session->join_group("club", 0, soon())) == club);
    settle();
    CHECK(rows("club") == std::pair(2U, 0U));
    CHECK(session->facts().group == club);
    // Twice too late, and then in time.
    late([&] {
      (void)session->join_group("club", SHMBW_JOIN_SUPERVISOR, brief());
      return status_of(session->join_group("club", SHMBW_JOIN_SUPERVISOR, brief()));
    });
    CHECK(must(session->join_group("club", SHMBW_JOIN_SUPERVISOR, soon())) == club);
    settle();
    CHECK(rows("club") == std::pair(2U, 1U));
    // Refused the second time: what came late is left, and the other role stays.
    must(session->create_group({.name = "home"}, soon()));
    late([&] { return status_of(session->join_group("home", 0, brief())); });
    CHECK(status_of(session->join_group("absent", 0, soon())) == Status::not_found);
    settle();
    CHECK(rows("home") == std::pair(99U, 99U));
    CHECK(rows("club") == std::pair(1U, 1U));
    CHECK(session->facts().group == 0);
    late([&] { return status_of(session->join_group("club", 0, brief())); });
    settle();
    CHECK(rows("club") == std::pair(1U, 1U));
    CHECK(session->facts().group == 0);

    late([&] { return status_of(session->create_group({.name = "made"}, brief())); });
    const auto made = must(session->join_group("made", 0, soon()));
    settle();
    CHECK(rows("made") == std::pair(1U, 0U));
    CHECK(session->facts().group == made);
    GroupSpec adopted{.name = "again"};
    adopted.flags = SHMBW_GROUP_ADOPT_EXISTING;
    late([&] { return status_of(session->create_group({.name = "again"}, brief())); });
    must(session->create_group(adopted, soon()));
    settle();
    CHECK(rows("again") == std::pair(0U, 0U));
  });
}

TEST_CASE("law 11: stat shows what a publish did after its deadline, and publish again maps the region") {
  on_each_engine([](BrokerFixture& broker) {
    const CSession session(broker.socket());
    shmb_region* const region = created(session.raw, "late");
    std::memcpy(shmb_region_data(region), "written before", 15);
    const shmb_region_id id = shmb_region_get_id(region);
    shmb_error error{};
    {
      const harness::Stopped stopped(broker.pid());
      CHECK(shmb_publish(region, kShort, &error) == SHMB_E_DEADLINE);
      CHECK(has(error.sentence, "publish it again"));
    }
    CHECK(shmb_region_data(region) == nullptr);
    auto stat = sized<shmb_region_stat>();
    REQUIRE_MESSAGE(shmb_stat_id(session.raw, &id, 0, &stat, &error) == SHMB_OK, error.sentence);
    CHECK(stat.state == SHMB_REGION_PUBLISHED);
    void* part = nullptr;
    CHECK(shmb_region_map(region, 0, 4096, SHMB_ACCESS_READ_WRITE, &part, nullptr) == SHMB_E_WRITE_CLOSED);
    REQUIRE_MESSAGE(shmb_publish(region, 0, &error) == SHMB_OK, error.sentence);
    REQUIRE(shmb_region_data(region) != nullptr);
    CHECK(std::memcmp(shmb_region_data(region), "written before", 15) == 0);
    CHECK(shmb_publish(region, 0, &error) == SHMB_E_INVALID);
    CHECK(shmb_release(region, SHMB_RELEASE_UNNAME, nullptr) == SHMB_OK);
  });
}

TEST_CASE("law 11: waiting for the work of others takes its own deadline") {
  on_each_engine([](BrokerFixture& broker) {
    const CSession session(broker.socket());
    auto waits = sized<shmb_attach_options>();
    waits.wait_ns = kShort;
    shmb_region* region = created(session.raw, nullptr);
    shmb_region* none = nullptr;
    CHECK(shmb_attach(session.raw, "never-made", &waits, &none, nullptr) == SHMB_E_DEADLINE);
    CHECK(shmb_group_wait(session.raw, 0, kShort, nullptr) == SHMB_E_DEADLINE);
    auto event = sized<shmb_event>();
    CHECK(shmb_next_event(session.raw, kShort, &event, nullptr) == SHMB_E_DEADLINE);
    CHECK(shmb_next_event(session.raw, SHMB_NO_WAIT, &event, nullptr) == SHMB_E_DEADLINE);
    const auto admin = open_admin(broker);  // cancelling a watch waits for no answer
    CHECK(eventually([&] { return must(broker_status(*admin, soon())).record.watches == 0; }));
    CHECK(shmb_release(region, 0, nullptr) == SHMB_OK);
  });
}

TEST_CASE("law 11: waits without limit end with the death of the awaited side") {
  on_each_engine([](BrokerFixture& broker) {
    const CSession session(broker.socket());
    Line told;
    auto member = Child::run([&] {
      auto own = must(try_open(broker.socket()));
      must(own->create_group({.name = "mortal"}, soon()));
      must(own->join_group("mortal", 0, soon()));
      told.say('j');
      for (;;) ::pause();
      return 0;
    });
    REQUIRE(told.hear() == 'j');
    std::atomic<int> ended{-1}, attached{-1}, event_status{-1};
    std::atomic<std::uint32_t> kind{0};
    std::uint64_t group = 0;
    for (const auto& row : must(list_groups(*open(broker), {}, soon())).rows)
      if (row.name == "mortal") group = row.record.group;
    REQUIRE(group != 0);
    std::thread group_waiter([&] { ended = shmb_group_wait(session.raw, group, SHMB_FOREVER, nullptr); });
    std::thread name_waiter([&] {
      auto waits = sized<shmb_attach_options>();
      waits.wait_ns = SHMB_FOREVER;
      shmb_region* none = nullptr;
      attached = shmb_attach(session.raw, "mortal/never-made", &waits, &none, nullptr);
    });
    const CSession listener(broker.socket());
    std::thread event_waiter([&] {
      auto event = sized<shmb_event>();
      event_status = shmb_next_event(listener.raw, SHMB_FOREVER, &event, nullptr);
      kind = event.kind;
    });
    const auto admin = open_admin(broker);
    REQUIRE(eventually([&] { return must(broker_status(*admin, soon())).record.watches == 3; }));
    CHECK(ended == -1);
    CHECK(attached == -1);
    member.kill();
    CHECK(member.wait() == 128 + SIGKILL);
    group_waiter.join();
    CHECK(ended == SHMB_OK);
    name_waiter.join();
    CHECK(attached == SHMB_E_GROUP_ENDED);
    CHECK(event_status == -1);
    broker.kill();
    event_waiter.join();
    CHECK(event_status == SHMB_OK);
    CHECK(kind == SHMB_EVENT_BROKER_AWAY);
  });
}

TEST_CASE("law 11: a call to the broker has a deadline: one without end is refused, and changes nothing") {
  on_each_engine([](BrokerFixture& broker) {
    const CSession session(broker.socket());
    shmb_session* const s = session.raw;
    shmb_region* const kept = created(s, "kept");
    auto create = sized<shmb_create_options>();
    auto attach = sized<shmb_attach_options>();
    auto group_options = sized<shmb_group_options>();
    auto watch_options = sized<shmb_watch_options>();
    auto pool_options = sized<shmb_pool_options>();
    auto stat = sized<shmb_region_stat>();
    create.timeout_ns = attach.timeout_ns = group_options.timeout_ns = watch_options.timeout_ns =
        pool_options.timeout_ns = SHMB_FOREVER;
    watch_options.kind = SHMB_WATCH_REGION;
    watch_options.region = shmb_region_get_id(kept);
    auto connect = sized<shmb_connect_options>();
    connect.socket = broker.socket().c_str();
    connect.timeout_ns = SHMB_FOREVER;
    const shmb_region_id id = shmb_region_get_id(kept);
    shmb_session* no_session = nullptr;
    shmb_region* no_region = nullptr;
    shmb_pool* no_pool = nullptr;
    shmb_group no_group{};
    std::uint64_t number = 0;
    std::uint8_t ticket[16] = {1};
    constexpr std::int64_t ever = SHMB_FOREVER;
    const std::vector<Call> calls = {
        {"connect", [&](shmb_error* e) { return shmb_connect(&connect, &no_session, e); }},
        {"ping", [&](shmb_error* e) { return shmb_ping(s, ever, e); }},
        {"create", [&](shmb_error* e) { return shmb_create(s, 8192, &create, &no_region, e); }},
        {"attach", [&](shmb_error* e) { return shmb_attach(s, "kept", &attach, &no_region, e); }},
        {"publish", [&](shmb_error* e) { return shmb_publish(kept, ever, e); }},
        {"stat", [&](shmb_error* e) { return shmb_stat(s, "kept", ever, &stat, e); }},
        {"stat_id", [&](shmb_error* e) { return shmb_stat_id(s, &id, ever, &stat, e); }},
        {"unname", [&](shmb_error* e) { return shmb_unname(s, "kept", ever, e); }},
        {"ticket_create", [&](shmb_error* e) { return shmb_ticket_create(kept, 0, 1, 0, ever, ticket, nullptr, e); }},
        {"ticket_revoke", [&](shmb_error* e) { return shmb_ticket_revoke(s, ticket, ever, e); }},
        {"group_create", [&](shmb_error* e) { return shmb_group_create(s, &group_options, &no_group, e); }},
        {"group_join", [&](shmb_error* e) { return shmb_group_join(s, "absent", 0, ever, &number, e); }},
        {"group_leave", [&](shmb_error* e) { return shmb_group_leave(s, 0, ever, e); }},
        {"group_end", [&](shmb_error* e) { return shmb_group_end(s, 1, nullptr, 0, ever, nullptr, e); }},
        {"watch", [&](shmb_error* e) { return shmb_watch(s, &watch_options, &number, nullptr, e); }},
        {"unwatch", [&](shmb_error* e) { return shmb_unwatch(s, 1, ever, e); }},
        {"pool_create", [&](shmb_error* e) { return shmb_pool_create(s, &pool_options, &no_pool, e); }},
    };
    const auto admin = open_admin(broker);
    const auto before = must(broker_status(*admin, soon())).record;
    for (const Call& call : calls) {
      CAPTURE(call.name);
      shmb_error error{};
      CHECK(call.make(&error) == SHMB_E_INVALID);
      CHECK(std::strstr(error.sentence, "deadline") != nullptr);
    }
    const auto after = must(broker_status(*admin, soon())).record;
    CHECK(after.regions == before.regions);
    CHECK(after.groups == before.groups);
    CHECK(after.sessions == before.sessions);
    CHECK(shmb_region_data(kept) != nullptr);
    CHECK(shmb_release(kept, SHMB_RELEASE_UNNAME, nullptr) == SHMB_OK);
  });
}
