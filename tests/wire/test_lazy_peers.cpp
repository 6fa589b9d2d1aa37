// SPDX-License-Identifier: Apache-2.0
// Law 8 on the wire: a session that does not read its replies or events delays only itself. Its requests are not read,
// its lost events are counted, and its descriptors in flight are bounded. Only if these would use up the allowance of
// all is the session with the oldest ones disconnected, and its process may go on.
#include <doctest/doctest.h>
#include <unistd.h>

#include "base/sys_socket.hpp"
#include "tests/support/bystander.hpp"
#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

// As many as the socket takes without waiting; their tags are 1, 2, ...
std::uint64_t fill(RawClient& client, auto&& packet_of) {
  std::uint64_t sent = 0;
  while (sent < 100'000 && shmb::sys::send(client.fd(), packet_of(sent + 1), {}, {}, false)) ++sent;
  return sent;
}

std::vector<shmbw_create> many_creates(std::size_t count) {
  shmbw_create wish{};
  wish.length = 4096;
  return std::vector(count, wish);
}

// Regions made and their leases held, then all of them asked for again: `count` descriptors that wait to be read.
std::string ask_for_descriptors(RawClient& client, std::size_t count) {
  RawPacket made = client.call_batch(SHMBW_OP_CREATE, std::span<const shmbw_create>(many_creates(count)));
  if (!made.ok() || made.fds.size() != count)
    return made.ok() ? error_of_element(made, count - 1).sentence : "CREATE fails";
  std::vector<shmbw_attach> wishes(count);
  for (std::size_t i = 0; i < count; ++i) {
    wishes[i].by = SHMBW_ATTACH_BY_ID;
    wishes[i].rights = kRights;
    wishes[i].region = made.element<shmbw_create_reply>(i).region;
  }
  return client.send(batch(SHMBW_OP_ATTACH, 99, wishes)) ? "" : "the session is gone";
}

struct SessionRow {
  shmbw_session_record record{};
  bool found = false;
};
SessionRow row_of(const BrokerFixture& broker, std::uint64_t session) {
  SessionRow row;
  RawClient admin = greeted(broker.admin());
  list_all<shmbw_session_record>(admin, SHMBW_TABLE_SESSIONS, [&](const auto& record) {
    if (record.session == session) row = {record, true};
  });
  return row;
}
std::uint32_t in_flight(const BrokerFixture& broker) {
  return greeted(broker.admin()).status().fixed<shmbw_status_reply>().in_flight;
}

}  // namespace

TEST_CASE("a peer that sends without reading is not read, gets every answer once it reads, and delays no other") {
  on_each_engine({}, [](BrokerFixture& broker) {
    Bystander bystander(broker.socket());
    REQUIRE(bystander.goes_on());
    RawClient lazy = greeted(broker);
    std::uint64_t sent = fill(lazy, [](std::uint64_t tag) { return plain(SHMBW_OP_STATUS, tag, shmbw_status{}); });
    CHECK(sent > 100);
    CHECK(bystander.goes_on());
    RawClient busy = greeted(broker);
    for (int i = 0; i < 300; ++i) CHECK(busy.status().ok());
    // One reply is out; no second request was served before it was read.
    auto served = greeted(broker.admin()).status().fixed<shmbw_status_reply>().requests;
    for (std::uint64_t tag = 1; tag <= sent; ++tag) {
      RawPacket reply = lazy.receive();
      REQUIRE(reply.ok());
      REQUIRE(reply.header().tag == tag);
      auto requests = reply.fixed<shmbw_status_reply>().requests;
      if (tag == 1) CHECK(requests < served);
      if (tag == 2) CHECK(requests > served - 40);  // of the bystander's, a few
    }
    CHECK(lazy.receive(50).kind == RawPacket::Kind::nothing);
    CHECK(bystander.wrong() == "");
  });
}

TEST_CASE("unread replies with descriptors hold one reply's descriptors and no more, and arrive whole when read") {
  on_each_engine({}, [](BrokerFixture& broker) {
    Bystander bystander(broker.socket());
    RawClient lazy = greeted(broker);
    const auto wishes = many_creates(SHMBW_MAX_BATCH);
    std::uint64_t sent = fill(lazy, [&](std::uint64_t tag) { return batch(SHMBW_OP_CREATE, tag, wishes); });
    CHECK(sent >= 3);
    CHECK(bystander.goes_on());
    std::uint64_t unread = in_flight(broker);  // the batch is served in portions
    for (int tries = 0; tries < 1000 && unread < SHMBW_MAX_BATCH; ++tries) {
      ::usleep(10'000);
      unread = in_flight(broker);
    }
    CHECK(unread >= SHMBW_MAX_BATCH);
    CHECK(unread <= SHMBW_MAX_BATCH + 1);  // the bystander may have one of its own on the way
    CHECK(row_of(broker, 0).found == false);
    std::uint64_t asked = std::min<std::uint64_t>(sent, 6);
    for (std::uint64_t tag = 1; tag <= asked; ++tag) {
      RawPacket reply = lazy.receive(30'000);
      REQUIRE(reply.ok());
      CHECK(reply.header().tag == tag);
      CHECK(reply.fds.size() == SHMBW_MAX_BATCH);
    }
    // It goes with an unread reply in the socket, a request in the broker and more behind it.
    lazy.close();
    CHECK(bystander.goes_on());
    CHECK(bystander.wrong() == "");
  });
}

TEST_CASE("requests that a peer sent before it closed count, also when it leaves an answer unread") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient owner = greeted(broker), peer = greeted(broker);
    const std::uint64_t group =
        owner.call(SHMBW_OP_GROUP_CREATE, shmbw_group_create{}).fixed<shmbw_group_create_reply>().group;
    shmbw_create create{};
    create.length = 4096;
    create.group = group;
    const auto named = create_region(peer, create, "x").region;
    CHECK(books_of(broker).regions == 1);
    REQUIRE(peer.send(plain(SHMBW_OP_STATUS, 1, shmbw_status{})));
    // Its name alone holds the region, once the peer is gone.
    REQUIRE(peer.send(batch(SHMBW_OP_RELEASE, 0, std::vector{shmbw_release{named, 0, SHMBW_RELEASE_UNNAME}}, {},
                            SHMBW_HEADER_NO_REPLY)));
    peer.close();
    CHECK(eventually([&] { return books_of(broker).regions == 0; }));
    CHECK(owner.status().ok());
  });
}

TEST_CASE("a hundred lazy peers at once delay no other peer, and their end leaves nothing") {
  on_each_engine({}, [](BrokerFixture& broker) {
    Bystander bystander(broker.socket());
    REQUIRE(bystander.goes_on());
    REQUIRE(bystander.pause());
    const Books before = books_of(broker);
    const std::size_t descriptors = descriptors_at_rest(broker);
    bystander.resume();
    {
      std::vector<RawClient> lazy;
      for (int i = 0; i < 100; ++i) {
        lazy.push_back(greeted(broker));
        for (std::uint64_t tag = 1; tag < 20; ++tag)
          (void)shmb::sys::send(lazy.back().fd(), batch(SHMBW_OP_CREATE, tag, many_creates(3)), {}, {}, false);
      }
      CHECK(bystander.goes_on());
      CHECK(bystander.goes_on());
      REQUIRE(bystander.pause());  // or one of its own might be on the way, too
      CHECK(in_flight(broker) == 300);
    }
    CHECK(settled(broker, before, descriptors) == "");
    bystander.resume();
    CHECK(bystander.goes_on());
    CHECK(bystander.wrong() == "");
  });
}

TEST_CASE("300 unread events end in exactly one gap that counts the lost ones, and never in a disconnect") {
  BrokerOptions options;
  options.config = "unread_timeout = \"20ms\"\ndescriptors = 512\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient watcher = RawClient::connect(broker.socket());
    auto hello = watcher.hello().fixed<shmbw_hello_reply>();
    RawClient maker = greeted(broker);
    RawPacket group = maker.call(SHMBW_OP_GROUP_CREATE, shmbw_group_create{});
    std::string address = "#" + std::to_string(group.fixed<shmbw_group_create_reply>().group);
    shmbw_watch wish{};
    wish.kind = SHMBW_WATCH_KIND_NAME;
    wish.events = SHMBW_WATCH_EVENT_APPEARED;
    wish.group_len = static_cast<std::uint16_t>(address.size());
    wish.name_len = 1;
    RawPacket watched = watcher.call(SHMBW_OP_WATCH, wish, address + "x");
    REQUIRE_MESSAGE(watched.ok(), watched.sentence());

    constexpr std::uint64_t kEvents = 300;
    auto appear = [&] {
      shmbw_create create{};
      create.length = 4096;
      create.group = group.fixed<shmbw_group_create_reply>().group;
      create.flags = SHMBW_CREATE_REPLACE;
      auto made = create_region(maker, create, "x");
      ok_element<shmbw_release_reply>(maker, SHMBW_OP_RELEASE, shmbw_release{made.region, 0, 0});
    };
    for (std::uint64_t i = 0; i < kEvents; ++i) appear();
    // Meanwhile others take more than half of the allowance, and the first of them is disconnected: the watcher has no
    // part in it. They are processes of their own, as one process gets no more than half.
    harness::Gate enough;
    auto lazy = [&] {
      return harness::Child::run([&] {
        RawClient client = greeted(broker);
        const bool asked = ask_for_descriptors(client, 140) == "";
        return enough.wait() && asked ? 0 : 1;
      });
    };
    auto first = lazy();
    REQUIRE(eventually([&] { return in_flight(broker) == 140; }));
    ::usleep(60'000);
    auto second = lazy();
    REQUIRE(eventually([&] { return broker.log().find("does not read its replies") != std::string::npos; }));
    ::usleep(100'000);
    SessionRow row = row_of(broker, hello.session);
    CHECK(row.found);
    CHECK(row.record.state == SHMBW_SESSION_STATE_MEMBER);

    // A reply is not kept back by unread events.
    REQUIRE(watcher.send(plain(SHMBW_OP_STATUS, 7, shmbw_status{})));
    std::uint64_t next = 1, lost = 0;
    bool answered = false;
    while (next <= kEvents || !answered) {
      RawPacket packet = watcher.receive();
      REQUIRE(packet.kind == RawPacket::Kind::packet);
      if (!packet.is_event()) {
        CHECK(packet.header().tag == 7);
        CHECK(packet.ok());
        answered = true;
        continue;
      }
      CHECK(packet.header().tag == 0);
      if (packet.header().op == (SHMBW_EVENT | SHMBW_EVENT_GAP)) {
        auto gap = packet.fixed<shmbw_gap_event>();
        CHECK(lost == 0);
        lost = gap.lost;
        CHECK(gap.sequence == kEvents);
        CHECK(gap.sequence - gap.lost == next - 1);
        next = gap.sequence + 1;
      } else {
        CHECK(packet.header().op == (SHMBW_EVENT | SHMBW_EVENT_NAME_APPEARED));
        CHECK(packet.rest() == "x");
        CHECK(packet.fixed<shmbw_name_appeared_event>().sequence == next);
        ++next;
      }
    }
    CHECK(lost > 0);
    CHECK(lost <= kEvents - 256);
    enough.open();
    CHECK(first.wait() == 0);
    CHECK(second.wait() == 0);
    appear();
    RawPacket after = watcher.receive();
    CHECK(after.header().op == (SHMBW_EVENT | SHMBW_EVENT_NAME_APPEARED));
    CHECK(after.fixed<shmbw_name_appeared_event>().sequence == kEvents + 1);
  });
}

namespace {

// 300 events of a name, then all that were kept are read; the lost ones that the gap tells, 0 if it does not come.
std::uint64_t gap_after_300(const BrokerFixture& broker) {
  RawClient watcher = greeted(broker), maker = greeted(broker);
  auto first = create_region(maker, 4096, "x");
  std::string address = "#" + std::to_string(first.group);
  shmbw_watch wish{};
  wish.kind = SHMBW_WATCH_KIND_NAME;
  wish.events = SHMBW_WATCH_EVENT_APPEARED;
  wish.group_len = static_cast<std::uint16_t>(address.size());
  wish.name_len = 1;
  REQUIRE(watcher.call(SHMBW_OP_WATCH, wish, address + "x").ok());
  shmbw_create create{};
  create.length = 4096;
  create.flags = SHMBW_CREATE_REPLACE;
  for (int i = 0; i < 300; ++i) create_region(maker, create, "x");
  for (;;) {
    RawPacket packet = watcher.receive();
    if (packet.kind != RawPacket::Kind::packet) return 0;
    if (packet.header().op == (SHMBW_EVENT | SHMBW_EVENT_GAP)) return packet.fixed<shmbw_gap_event>().lost;
  }
}

}  // namespace

TEST_CASE("a gap that the kernel has no memory for is sent later, not forgotten") {
  for (const std::string& engine : harness::engines()) {
    INFO("engine: ", engine);
    BrokerOptions options;
    options.engine = engine;
    options.expect_empty_books = false;
    std::uint64_t lost = 0;
    std::string sends;
    {
      BrokerFixture broker(options);
      REQUIRE_MESSAGE(broker.running(), broker.log());
      lost = gap_after_300(broker);
      REQUIRE(broker.stop() == 0);
      std::string log = broker.log();
      std::size_t at = log.find(" send=");
      REQUIRE(at != std::string::npos);
      sends = std::to_string(std::atoi(log.c_str() + at + 6));
    }
    CHECK(lost > 0);
    for (const char* error : {"ENOBUFS", "ENOMEM", "EAGAIN"}) {
      // The gap was the last that the broker sent.
      options.seam = std::string("fail=send:") + error + ":" + sends + ":3";
      BrokerFixture broker(options);
      REQUIRE_MESSAGE(broker.running(), broker.log());
      CHECK(gap_after_300(broker) == lost);
    }
  }
}

TEST_CASE("unread replies under half of the allowance disconnect no peer, however old they are") {
  BrokerOptions options;
  options.config = "unread_timeout = \"20ms\"\ndescriptors = 512\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    std::vector<RawClient> lazy;
    for (int i = 0; i < 4; ++i) {
      lazy.push_back(greeted(broker));
      REQUIRE(ask_for_descriptors(lazy.back(), 60) == "");
    }
    CHECK(eventually([&] { return in_flight(broker) == 240; }));
    ::usleep(200'000);
    for (RawClient& client : lazy) {
      RawPacket reply = client.receive();
      CHECK(reply.ok());
      CHECK(reply.fds.size() == 60);
      CHECK(client.status().ok());
    }
  });
}

TEST_CASE("over half of the allowance the longest unread goes; its leases stay until its process has ended") {
  BrokerOptions options;
  options.config = "unread_timeout = \"50ms\"\ndescriptors = 768\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    Bystander bystander(broker.socket());
    REQUIRE(bystander.goes_on());
    harness::Gate go_on;
    // The first to be lazy, a process that can be killed.
    auto child = harness::Child::run([&] {
      RawClient first = RawClient::connect(broker.socket());
      if (!first.hello().ok() || !ask_for_descriptors(first, 200).empty()) return 1;
      go_on.open();
      for (;;) ::pause();
    });
    REQUIRE(go_on.wait());
    REQUIRE(eventually([&] { return in_flight(broker) >= 200; }));
    ::usleep(20'000);
    RawClient second = RawClient::connect(broker.socket());
    auto hello = second.hello().fixed<shmbw_hello_reply>();
    REQUIRE(ask_for_descriptors(second, 200) == "");

    std::uint64_t gone = 0;
    CHECK(eventually([&] {
      RawClient admin = greeted(broker.admin());
      list_all<shmbw_session_record>(admin, SHMBW_TABLE_SESSIONS, [&](const auto& record) {
        if (record.state == SHMBW_SESSION_STATE_DISCONNECTED) gone = record.session;
      });
      return gone != 0;
    }));
    SessionRow row = row_of(broker, gone);
    CHECK(row.record.pid == static_cast<std::uint32_t>(child.pid()));
    CHECK(row.record.leases == 200);
    // The second is old by now, too, but what is left is under half.
    ::usleep(200'000);
    CHECK(row_of(broker, hello.session).record.state == SHMBW_SESSION_STATE_MEMBER);
    CHECK(row_of(broker, gone).record.leases == 200);
    CHECK(bystander.goes_on());
    child.kill();
    child.wait();
    CHECK(eventually([&] { return !row_of(broker, gone).found; }));
    CHECK(books_of(broker).leases <= 200 + 4);
    RawPacket reply = second.receive();
    CHECK(reply.fds.size() == 200);
    CHECK(bystander.wrong() == "");
  });
}

TEST_CASE("a process that was disconnected for not reading comes back and takes its leases over") {
  BrokerOptions options;
  options.config = "unread_timeout = \"20ms\"\ndescriptors = 512\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient lazy = RawClient::connect(broker.socket());
    auto hello = lazy.hello().fixed<shmbw_hello_reply>();
    REQUIRE(ask_for_descriptors(lazy, 60) == "");
    REQUIRE(eventually([&] { return in_flight(broker) == 60; }));
    std::vector<RawClient> more;
    for (int i = 0; i < 3; ++i) {
      more.push_back(greeted(broker));
      REQUIRE(ask_for_descriptors(more.back(), 80) == "");
    }
    REQUIRE(eventually([&] { return row_of(broker, hello.session).record.state == SHMBW_SESSION_STATE_DISCONNECTED; }));
    // Packets that were sent before can still be read; then comes the end.
    RawPacket late = lazy.receive();
    CHECK(late.fds.size() == 60);
    CHECK(hung_up(lazy));
    RawClient back = RawClient::connect(broker.socket());
    shmbw_hello wish = RawClient::greeting();
    wish.fork_session = hello.session;
    std::memcpy(wish.fork_secret, hello.fork_secret, sizeof wish.fork_secret);
    RawPacket reply = back.call(SHMBW_OP_HELLO, wish);
    REQUIRE_MESSAGE(reply.ok(), reply.sentence());
    auto again = reply.fixed<shmbw_hello_reply>();
    CHECK(row_of(broker, again.session).record.leases == 60);
    CHECK(!row_of(broker, hello.session).found);
    auto region = late.element<shmbw_attach_reply>(0).region;
    ok_element<shmbw_release_reply>(back, SHMBW_OP_RELEASE, shmbw_release{region, 2, 0});
    CHECK(row_of(broker, again.session).record.leases == 59);
  });
}

}  // namespace wire_test
