// SPDX-License-Identifier: Apache-2.0
// Law 8: one bad peer hurts nobody. The wire's own tests (tests/wire) take each bad peer apart; here all of them come
// at once, beside a well-behaved user that must get every answer right.
//
// To see it fail: in daemon/transport/connection.cpp, may_serve, take away
//   if (!outbox_->open()) return is_never_answered(request);
// so that requests are read while a reply is unread, and one session takes ever more descriptors into flight.
#include <sys/resource.h>
#include <sys/socket.h>

#include <climits>
#include <thread>

#include "base/mapping.hpp"
#include "base/sys_futex.hpp"
#include "proto/timeline_layout.hpp"
#include "tests/harness/stuck_write.hpp"
#include "tests/laws/law.hpp"
#include "tests/support/bystander.hpp"
#include "tests/support/wire.hpp"

using namespace laws;
using wire_test::Bystander;
using wire_test::greeted;

namespace {

constexpr std::size_t kHalfOpen = 1000;
constexpr std::uint32_t kTimelines = 1000;

bool allow_descriptors(rlim_t wanted) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return true;
  limit.rlim_cur = wanted;
  return limit.rlim_max >= wanted && ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// A batch ATTACH of every region the client made, asked `times` times without reading an answer.
struct Lazy {
  RawClient client;
  std::size_t regions;
  std::uint64_t session = 0;

  Lazy(const BrokerFixture& broker, std::size_t count, int times) : regions(count) {
    client = RawClient::connect(broker.socket());
    const RawPacket hello = client.hello();
    REQUIRE(hello.ok());
    session = hello.fixed<shmbw_hello_reply>().session;
    shmbw_create wish{};
    wish.length = 4096;
    const std::vector<shmbw_create> wishes(count, wish);
    const RawPacket made = client.call_batch(SHMBW_OP_CREATE, std::span(wishes));
    REQUIRE(made.ok());
    std::vector<shmbw_attach> attaches(count);
    for (std::size_t i = 0; i < count; ++i) {
      attaches[i].by = SHMBW_ATTACH_BY_ID;
      attaches[i].rights = kReadWrite;
      attaches[i].region = made.element<shmbw_create_reply>(i).region;
    }
    for (int i = 0; i < times; ++i)
      (void)sys::send(client.fd(), wire_test::batch(SHMBW_OP_ATTACH, 100 + static_cast<unsigned>(i), attaches), {}, {},
                      false);
  }
};

std::optional<shmbw_session_record> row_of(const std::shared_ptr<Session>& admin, std::uint64_t session) {
  for (const auto& row : sessions(admin))
    if (row.record.session == session) return row.record;
  return std::nullopt;
}

}  // namespace

TEST_CASE("law 8: lazy readers, junk, an unread subscription and a thousand half-open peers delay no other client") {
  if (!allow_descriptors(3000)) SKIP_CASE("fewer than 3,000 descriptors are allowed here");
  on_each_engine([](BrokerFixture& broker) {
    Bystander bystander(broker.socket());
    REQUIRE(bystander.goes_on());
    const auto admin = open_admin(broker);

    std::vector<std::unique_ptr<Lazy>> lazy;
    for (int i = 0; i < 10; ++i) lazy.push_back(std::make_unique<Lazy>(broker, 20, 30));
    CHECK(bystander.goes_on());

    RawClient watcher = greeted(broker);
    auto maker = open(broker);
    const auto group = must(maker->create_group({.name = "noise"}, soon()));
    must(maker->join_group(group.token, 0, soon()));
    shmbw_watch wish{};
    wish.kind = SHMBW_WATCH_KIND_NAME;
    wish.events = SHMBW_WATCH_EVENT_APPEARED;
    wish.group_len = 5;
    wish.name_len = 1;
    REQUIRE(watcher.call(SHMBW_OP_WATCH, wish, "noisex").ok());
    for (int i = 0; i < 1000; ++i) {
      CreateItem item = named("x", 4096);
      item.flags = SHMBW_CREATE_REPLACE | kCreateUnmapped;
      (void)must(create_region(maker, item));
    }
    CHECK(bystander.goes_on());

    std::uint32_t noise = 1;
    for (int i = 0; i < 300; ++i) {
      RawClient junk = RawClient::connect(broker.socket());
      if (i % 2 == 0) (void)junk.hello();
      std::vector<std::byte> bytes(1 + noise % 600);
      for (auto& byte : bytes) byte = static_cast<std::byte>((noise = noise * 1664525 + 1013904223) >> 24);
      (void)junk.send(i % 7 == 0 ? std::span<std::byte>() : std::span(bytes));  // an empty packet, too
    }
    CHECK(bystander.goes_on());

    {
      std::vector<RawClient> half_open;
      for (std::size_t i = 0; i < kHalfOpen; ++i) half_open.push_back(RawClient::connect(broker.socket()));
      CHECK(bystander.goes_on());
      must(open(broker)->ping(soon()));  // who says HELLO gets in
    }
    CHECK(bystander.goes_on());

    // The lazy have one reply each on the way, whatever they asked; the watcher's events do not count. The bystander is
    // still, or one of its own might be on the way, too.
    REQUIRE(bystander.pause());
    for (const auto& peer : lazy) {
      const auto row = row_of(admin, peer->session);
      REQUIRE(row.has_value());
      CHECK(row->in_flight == peer->regions);
      CHECK(row->state == SHMBW_SESSION_STATE_MEMBER);
    }
    CHECK(must(broker_status(*admin, soon())).record.in_flight == 10 * 20);
    bystander.resume();
    CHECK(watcher.event().is_event());
    CHECK(watcher.status().ok());
    lazy.clear();
    must(shmb::client::unname(*maker, must(Target::at("noise/x")), soon()));
    maker.reset();
    CHECK(bystander.goes_on());
    CHECK(bystander.wrong() == "");
  });
}

TEST_CASE("law 8: no request waits in the broker: an absent name is refused at once, and its coming is an event") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto maker = open(broker);
    const auto group = must(maker->create_group({.name = "later"}, soon()));
    must(maker->join_group(group.token, 0, soon()));
    const auto served = must(broker_status(*session, soon())).record.requests;
    CHECK(status_of(attach_region(session, at("later/kv"))) == Status::not_found);
    CHECK(must(broker_status(*session, soon())).record.requests == served + 2);
    WatchSpec spec;
    spec.kind = SHMBW_WATCH_KIND_NAME;
    spec.address = "later/kv";
    CHECK(must(session->watch(spec, soon())).state == 0);
    auto made = must(create_region(maker, named("kv", 4096)));
    CHECK(must(session->next_event(soon())).kind == shmb::client::Event::Kind::name_appeared);
    must(made->release(kReleaseUnname));
  });
}

TEST_CASE("law 8: a refusal is a reply, and the next request of the same session is served") {
  BrokerOptions options;
  options.config = "[limits]\nsession_leases = 2\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    auto session = open(broker);
    auto a = must(create_region(session, named("", 4096)));
    auto b = must(create_region(session, named("", 4096)));
    for (int i = 0; i < 100; ++i) CHECK(status_of(create_region(session, named("", 4096))) == Status::limit);
    b.reset();
    auto c = must(create_region(session, named("", 4096)));
  });
}

TEST_CASE("law 8: a client disconnected for not reading keeps its leases until it is dead") {
  BrokerOptions options;
  options.config = "unread_timeout = \"50ms\"\ndescriptors = 512\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    Line told;
    auto bad = Child::run([&] {
      const Lazy peer(broker, 160, 1);
      told.say('l');
      for (;;) ::pause();
      return 0;
    });
    REQUIRE(told.hear() == 'l');
    const auto is_bad = [&](const SessionRow& row) {
      return row.record.pid == static_cast<std::uint32_t>(bad.pid()) &&
             row.record.state == SHMBW_SESSION_STATE_DISCONNECTED;
    };
    {
      // Alone it is over half of nothing; a second one takes the sum over the allowance.
      const Lazy other(broker, 120, 1);
      REQUIRE(eventually([&] {
        const auto rows = sessions(admin);
        return std::any_of(rows.begin(), rows.end(), is_bad);
      }));
    }
    CHECK(eventually([&] { return regions(admin).size() == 160; }));
    ::usleep(200'000);
    CHECK(leases(admin).size() == 160);
    bad.kill();
    CHECK(bad.wait() == 128 + SIGKILL);
    CHECK(eventually([&] { return leases(admin).empty() && regions(admin).empty(); }));
  });
}

TEST_CASE("law 8: a write that never ends holds up the publication of that memory, and neither the broker nor an end") {
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    RawClient owner = greeted(broker), other = greeted(broker);
    const RawPacket made = owner.create(4096), second = owner.create(4096);
    REQUIRE(made.ok());
    REQUIRE(second.ok());
    const auto region = made.element<shmbw_create_reply>(0).region;
    // A session that was lent a descriptor for writing, and has not reported, would be waited for.
    const auto reports = [&](RawClient& client) {
      return client.send(wire_test::batch(SHMBW_OP_READY, 0, std::vector{shmbw_ready{region, 4096, 1, 0}})) &&
             client.status().ok();
    };
    REQUIRE(reports(owner));
    // Three wait for one publication: the owner, a client that leaves, and one that is killed.
    Line told;
    Gate go;
    auto killed = Child::run([&] {
      RawClient client = greeted(broker);
      shmbw_attach wish{};
      wish.by = SHMBW_ATTACH_BY_ID;
      wish.rights = kReadWrite;
      wish.region = region;
      if (!client.call_batch(SHMBW_OP_ATTACH, std::span<const shmbw_attach>(&wish, 1)).ok()) return 1;
      if (!reports(client)) return 3;
      told.say('r');
      if (!go.wait()) return 1;
      if (client.ask(SHMBW_OP_PUBLISH, shmbw_publish{region}) == 0) return 2;
      told.say('p');
      for (;;) ::pause();
      return 0;
    });
    harness::StuckWrite stuck(made.fds.at(0).get());
    if (!stuck.stuck()) SKIP_CASE("userfaultfd is not allowed here");
    REQUIRE(told.hear() == 'r');
    const auto tag = owner.ask(SHMBW_OP_PUBLISH, shmbw_publish{region});
    go.open();
    REQUIRE(told.hear() == 'p');
    {
      RawClient leaves = greeted(broker);
      shmbw_attach wish{};
      wish.by = SHMBW_ATTACH_BY_ID;
      wish.rights = kReadWrite;
      wish.region = region;
      REQUIRE(leaves.call_batch(SHMBW_OP_ATTACH, std::span<const shmbw_attach>(&wish, 1)).ok());
      REQUIRE(leaves.ask(SHMBW_OP_PUBLISH, shmbw_publish{region}) != 0);
    }
    for (int i = 0; i < 20; ++i) REQUIRE(other.status().ok());
    const RawPacket mine = other.create(4096);
    REQUIRE(mine.ok());
    CHECK(other.call(SHMBW_OP_PUBLISH, shmbw_publish{mine.element<shmbw_create_reply>(0).region}).ok());
    killed.kill();
    CHECK(killed.wait() == 128 + SIGKILL);
    CHECK(eventually([&] { return leases(admin).size() == 3; }));  // the owner's two, and the other's
    CHECK(owner.receive(0).kind == RawPacket::Kind::nothing);
    CHECK(stuck.let_go());
    const RawPacket published = owner.reply(tag);
    CHECK(published.ok());
    CHECK(published.fds.size() == 1);
    CHECK(owner.call(SHMBW_OP_PUBLISH, shmbw_publish{second.element<shmbw_create_reply>(0).region}).ok());
  });
}

TEST_CASE("law 8: a write that never ends delays the first readers of that memory, and no other client") {
  on_each_engine([](BrokerFixture& broker) {
    RawClient owner = greeted(broker), other = greeted(broker), reader = greeted(broker);
    const RawPacket made = owner.create(4096);
    REQUIRE(made.ok());
    const auto region = made.element<shmbw_create_reply>(0).region;
    REQUIRE(owner.send(wire_test::batch(SHMBW_OP_READY, 0, std::vector{shmbw_ready{region, 4096, 1, 0}})));
    REQUIRE(owner.status().ok());
    harness::StuckWrite stuck(made.fds.at(0).get());
    if (!stuck.stuck()) SKIP_CASE("userfaultfd is not allowed here");
    shmbw_attach wish{};
    wish.by = SHMBW_ATTACH_BY_ID;
    wish.rights = SHMBW_RIGHT_MAP_READ;
    wish.region = region;
    REQUIRE(reader.send(wire_test::batch(SHMBW_OP_ATTACH, 7, std::vector{wish})));
    {
      RawClient leaves = greeted(broker);
      REQUIRE(leaves.send(wire_test::batch(SHMBW_OP_ATTACH, 7, std::vector{wish})));
    }
    for (int i = 0; i < 20; ++i) REQUIRE(other.status().ok());
    const RawPacket mine = other.create(4096);
    REQUIRE(mine.ok());
    CHECK(other.call(SHMBW_OP_PUBLISH, shmbw_publish{mine.element<shmbw_create_reply>(0).region}).ok());
    CHECK(reader.receive(0).kind == RawPacket::Kind::nothing);
    CHECK(stuck.let_go());
    const RawPacket granted = reader.reply(7);
    REQUIRE(granted.ok());
    CHECK(granted.element<shmbw_outcome>(0).status == 0);
    CHECK(granted.element<shmbw_attach_reply>(0).state == SHMBW_REGION_STATE_WRITE_CLOSED);
    CHECK(granted.fds.size() == 1);
  });
}

namespace {

// One timeline as a consumer has it mapped, with a thread that waits for its last word.
struct Watched {
  Mapping map;
  std::thread waiter;
  std::atomic<bool> woken = false;

  Watched(RawClient& consumer, shmbw_region_ref region) {
    shmbw_attach wish{};
    wish.by = SHMBW_ATTACH_BY_ID;
    wish.rights = SHMBW_RIGHT_MAP_READ;
    wish.region = region;
    const RawPacket got = consumer.call_batch(SHMBW_OP_ATTACH, std::span<const shmbw_attach>(&wish, 1));
    REQUIRE(got.ok());
    REQUIRE(got.fds.size() == 1);
    auto mapped = Mapping::map(got.fds[0].get(), 0, timeline::bytes_of(timeline::kMaxWords), Access::read);
    REQUIRE(mapped);
    map = std::move(*mapped);
    waiter = std::thread([this] {
      while (!released(timeline::kMaxWords - 1) && !given_up)
        (void)sys::futex_wait(word(timeline::kMaxWords - 1).wakes, 0, sys::now_monotonic() + 100'000'000);
      woken = released(timeline::kMaxWords - 1);
    });
  }
  ~Watched() {
    given_up = true;
    waiter.join();
  }
  timeline::Word& word(std::size_t i) { return reinterpret_cast<timeline::Word*>(map.data())[i]; }
  bool released(std::size_t i) {
    return word(i).status.load() == SHMBW_GPU_WORD_STATUS_PRODUCER_DEAD && timeline::reached(word(i).counter.load(), 1);
  }
  std::atomic<bool> given_up = false;
};

}  // namespace

TEST_CASE("law 8: a thousand timelines whose producer is killed release their waiters, and others are served between") {
  if (!allow_descriptors(3000)) SKIP_CASE("fewer than 3,000 descriptors are allowed here");
  on_each_engine([](BrokerFixture& broker) {
    RawClient consumer = greeted(broker), bystander = greeted(broker);
    Line told;
    auto producer = Child::run([&] {
      RawClient client = greeted(broker);
      for (std::uint32_t i = 0; i < kTimelines; ++i) {
        shmbw_gpu_timeline wish{};
        wish.words = timeline::kMaxWords;
        if (!client.call(SHMBW_OP_GPU_TIMELINE, wish).ok()) return 1;
      }
      told.say('t');
      for (;;) ::pause();
      return 0;
    });
    REQUIRE(told.hear(60'000) == 't');
    std::vector<shmbw_attach> wishes;
    REQUIRE(wire_test::list_all<shmbw_gpu_record>(consumer, SHMBW_TABLE_GPU_REGIONS, [&](const auto& record) {
      shmbw_attach wish{};
      wish.by = SHMBW_ATTACH_BY_ID;
      wish.rights = SHMBW_RIGHT_MAP_READ;
      wish.flags = SHMBW_ATTACH_NO_FD;
      wish.region = record.region;
      wishes.push_back(wish);
    }));
    REQUIRE(wishes.size() == kTimelines);
    std::ranges::sort(wishes, {}, [](const shmbw_attach& wish) { return wish.region.id; });
    for (std::size_t at = 0; at < wishes.size(); at += SHMBW_MAX_BATCH) {
      const std::size_t count = std::min<std::size_t>(SHMBW_MAX_BATCH, wishes.size() - at);
      REQUIRE(consumer.call_batch(SHMBW_OP_ATTACH, std::span<const shmbw_attach>(&wishes[at], count)).ok());
    }
    Watched first(consumer, wishes.front().region), middle(consumer, wishes[kTimelines / 2].region),
        last(consumer, wishes.back().region);
    producer.kill();
    CHECK(producer.wait() == 128 + SIGKILL);
    REQUIRE(eventually([&] { return first.released(0); }));
    // Each of these was asked when the release had begun, and answered before it was over.
    long between = 0;
    const auto over = [&] { return last.released(timeline::kMaxWords - 1); };
    for (long asked = 0; !over() && asked < 1'000'000; ++asked) {
      REQUIRE(bystander.status().ok());
      between += !over();
    }
    REQUIRE(over());
    MESSAGE("answers between the portions: " << between);
    CHECK(between > 0);
    for (Watched* one : {&first, &middle, &last})
      for (std::size_t i = 0; i < timeline::kMaxWords; ++i) REQUIRE(one->released(i));
    CHECK(eventually([&] { return first.woken && middle.woken && last.woken; }));
    CHECK(bystander.create(4096).ok());
  });
}
