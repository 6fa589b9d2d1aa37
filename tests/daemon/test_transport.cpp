// SPDX-License-Identifier: Apache-2.0
// Connections over both engines: who is served, who waits, who is dropped, and what the books are told of each end.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/kernel.hpp"
#include "tests/daemon/books/allocations.hpp"
#include "tests/daemon/books/room.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"

using namespace room;
using harness::RawClient;
using harness::RawPacket;

#define ON_EACH_ENGINE \
  for (EngineChoice engine : engine_choices()) DOCTEST_SUBCASE(engine == EngineChoice::epoll ? "epoll" : "io_uring")

TEST_CASE("two hundred clients are greeted and served, and each end is reported once") {
  ON_EACH_ENGINE {
    Room room(engine);
    std::vector<RawClient> clients(200);
    for (RawClient& client : clients) {
      client = room.connect();
      REQUIRE(client.connected());
      CHECK(client.ask(SHMBW_OP_HELLO, RawClient::greeting()) == 1);
    }
    REQUIRE(room.until([&] { return room.books.served == 200; }));
    for (RawClient& client : clients) CHECK(room.ping(client).kind == RawPacket::Kind::packet);
    CHECK(room.transport.connections() == 200);
    clients.clear();
    REQUIRE(room.until([&] { return room.books.sessions.empty(); }));
    CHECK(room.transport.connections() == 0);
    CHECK(room.books.count("eof") == 200);
    CHECK(room.books.count("forget") == 200);
  }
}

TEST_CASE("a connection without HELLO is dropped after the time-out, a greeted one stays") {
  ON_EACH_ENGINE {
    Config config;
    config.hello_timeout = 2'000'000'000;  // also for who greets, on a machine that is busy
    Room room(engine, config);
    RawClient good = room.greeted();
    RawClient silent = room.connect();
    REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
    CHECK(silent.receive(0).kind == RawPacket::Kind::end_of_file);
    room.settle();
    CHECK(room.ping(good).ok());
  }
}

TEST_CASE("silent connections are bounded: the oldest of the uid that has most goes") {
  ON_EACH_ENGINE {
    Config config;
    config.descriptors_reserved = 0;
    config.hello_timeout = 60'000'000'000;
    Room room(engine, config, 128);  // an eighth: 16
    std::vector<RawClient> silent(40);
    for (RawClient& client : silent) client = room.connect();
    bool bounded = room.until([&] { return room.books.count("forget") == 24; });
    CAPTURE(room.books.count("forget"));
    REQUIRE(bounded);
    CHECK(room.transport.connections() == 16);
    CHECK(silent.front().receive(0).kind == RawPacket::Kind::end_of_file);
    CHECK(silent.back().receive(0).kind == RawPacket::Kind::nothing);
    RawClient good = room.greeted();
    CHECK(room.ping(good).ok());
  }
}

TEST_CASE("packets that break the frame drop their sender and no other client") {
  ON_EACH_ENGINE {
    Room room(engine);
    RawClient bystander = room.greeted();
    auto dropped = [&](const std::vector<std::byte>& packet) {
      RawClient bad = room.greeted();
      int before = room.books.count("forget");
      CHECK(bad.send(packet));
      REQUIRE(room.until([&] { return room.books.count("forget") == before + 1; }));
      RawPacket end = bad.receive(0);
      CHECK((end.kind == RawPacket::Kind::end_of_file || end.error == ECONNRESET));
      CHECK(room.ping(bystander).ok());
    };
    SUBCASE("empty") { dropped({}); }
    SUBCASE("shorter than a header") { dropped(std::vector<std::byte>(23)); }
    SUBCASE("a header that lies about its size") { dropped(std::vector<std::byte>(64)); }
    SUBCASE("longer than any message") { dropped(std::vector<std::byte>(SHMBW_MAX_MESSAGE + 1)); }
    SUBCASE("a drop that the books ask for") {
      std::byte buffer[64];
      wire::Writer writer(buffer);
      writer.begin_empty(kDrop, 1, Status::ok);
      auto packet = writer.finish(0);
      dropped({packet.begin(), packet.end()});
    }
  }
}

TEST_CASE("packets that a client sent before it closed are served, also when it leaves an answer unread") {
  ON_EACH_ENGINE {
    Room room(engine);
    RawClient client = room.greeted();
    for (std::uint64_t tag = 1; tag <= 4; ++tag) CHECK(client.ask(kPing, shmbw_status{}) != 0);
    CHECK(client.ask(kSilent, shmbw_status{}) != 0);
    room.settle();
    CHECK(room.books.served == 2);  // HELLO and the first: its answer is unread
    client.close();
    REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
    CHECK(room.books.served == 6);
    CHECK(room.books.count("eof") == 1);
  }
}

TEST_CASE("a client that sends descriptors unasked fails, or is dropped; none is closed on the broker's thread") {
  ON_EACH_ENGINE {
    std::byte buffer[64];
    wire::Writer writer(buffer);
    writer.begin_empty(kPing, 7, Status::ok);
    auto packet = writer.finish(0);
    int stdin_number = 0;
    SUBCASE("where the kernel refuses them, sending fails and the session goes on") {
      if (!kernel().pass_rights) SKIP_CASE("SO_PASSRIGHTS needs Linux 6.16");
      Room room(engine);
      RawClient client = room.greeted();
      RawClient early = room.connect();  // and the broker has not accepted it
      for (RawClient* each : {&client, &early}) {
        auto sent = sys::send(each->fd(), packet, {}, std::span<const int>(&stdin_number, 1), false);
        REQUIRE_FALSE(sent);
        CHECK(sent.error().value == EPERM);
      }
      CHECK(room.ping(client).ok());
    }
    SUBCASE("where it does not, the sender is dropped and nothing is kept open") {
      harness::PretendedKernel older(6, 1);
      Room room(engine);
      room.books.keeps_elsewhere = true;
      RawClient client = room.greeted();
      auto pipe = sys::seqpacket_pair();
      int number = (*pipe)[0].get();
      REQUIRE(sys::send(client.fd(), packet, {}, std::span<const int>(&number, 1), false));
      (*pipe)[0].reset();
      REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
      CHECK(room.books.elsewhere.size() == 1);
      room.books.elsewhere.clear();
      char byte = 0;
      CHECK(::recv((*pipe)[1].get(), &byte, 1, MSG_DONTWAIT) == 0);  // nobody holds the other end any more
    }
    SUBCASE("where it does not, a peer with too many to close is not read, and the rest is closed elsewhere") {
      harness::PretendedKernel older(6, 1);
      Config config;
      config.unread_timeout = 20'000'000;
      Room room(engine, config);
      room.books.keeps_elsewhere = room.books.choked = true;
      RawClient client = room.connect();
      auto pipe = sys::seqpacket_pair();
      int number = (*pipe)[0].get();
      REQUIRE(sys::send(client.fd(), packet, {}, std::span<const int>(&number, 1), false));
      (*pipe)[0].reset();
      REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
      CHECK(room.books.served == 0);
      REQUIRE(room.books.elsewhere.size() == 1);  // the socket, in which the packet lies
      char byte = 0;
      CHECK(::recv((*pipe)[1].get(), &byte, 1, MSG_DONTWAIT) < 0);
    }
  }
}

TEST_CASE("before Linux 6.16 a newcomer whose user has too many descriptors to close is read once there are fewer") {
  ON_EACH_ENGINE {
    harness::PretendedKernel older(6, 1);
    Config config;
    config.hello_timeout = 10'000'000;
    config.unread_timeout = 3'600'000'000'000;
    Room room(engine, config);
    room.books.choked = true;
    RawClient client = room.connect();
    const std::uint64_t tag = client.ask(SHMBW_OP_HELLO, RawClient::greeting());
    const std::int64_t until = sys::now_monotonic() + 10 * config.hello_timeout;
    while (sys::now_monotonic() < until) room.settle();
    CHECK(room.books.served == 0);
    room.books.choked = false;
    CHECK(room.answer(client, tag).ok());
  }
}

TEST_CASE("a client that sends descriptors faster than they can be closed waits; where that never ends it is dropped") {
  ON_EACH_ENGINE {
    Config config;
    config.unread_timeout = 3'600'000'000'000;
    Room room(engine, config);
    RawClient client = room.greeted(), other = room.greeted();
    Link& link = *room.books.session(1).link;
    link.take_descriptors(false);
    const auto ask = [&](std::uint64_t tag) {
      std::byte buffer[256];
      wire::Writer writer(buffer);
      writer.begin(kPing, tag, Status::ok, shmbw_status{});
      const int fd = client.fd();
      CHECK(client.send(writer.finish(1), std::span(&fd, 1)));
    };
    CHECK(room.ping(client).ok());  // the receive that was under way had no room for one
    room.books.served = 0;
    room.books.choked = true;
    for (std::uint64_t tag = 51; tag < 55; ++tag) ask(tag);
    CHECK(room.answer(client, 51).ok());
    room.settle();
    CHECK(room.books.served == 1);
    CHECK(room.ping(other).ok());
    room.books.choked = false;
    for (std::uint64_t tag = 52; tag < 55; ++tag) CHECK(room.answer(client, tag).ok());
    CHECK(room.books.count("eof") == 0);
  }
  ON_EACH_ENGINE {
    Config config;
    config.unread_timeout = 20'000'000;
    Room room(engine, config);
    RawClient client = room.greeted();
    room.books.session(1).link->take_descriptors(false);
    CHECK(room.ping(client).ok());
    room.books.choked = true;
    for (std::uint64_t tag = 1; tag < 4; ++tag) {
      std::byte buffer[256];
      wire::Writer writer(buffer);
      writer.begin(kPing, tag, Status::ok, shmbw_status{});
      const int fd = client.fd();
      (void)client.send(writer.finish(1), std::span(&fd, 1));
    }
    REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
  }
}

// Their close may wait for who sent them.
TEST_CASE("descriptors that lie unread in a socket are not closed on the broker's thread") {
  ON_EACH_ENGINE {
    for (const bool empty : {false, true}) {
      CAPTURE(empty);
      Room room(engine);
      room.books.keeps_elsewhere = true;
      RawClient client = room.greeted();
      room.books.session(1).link->take_descriptors(true);
      CHECK(room.ping(client).ok());
      int ends[2] = {-1, -1};
      REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
      const Fd out = Fd::adopt(ends[0]);
      Fd in = Fd::adopt(ends[1]);
      const int number = in.get();
      if (empty) {
        // The first ends the session, as its end would. No byte tells of the second.
        CHECK(client.send({}));
        CHECK(client.send({}, std::span(&number, 1)));
        client.close();
      } else {
        client.ask(kDrop, shmbw_group_end{});
        std::byte buffer[256];
        wire::Writer writer(buffer);
        writer.begin(kPing, 9, Status::ok, shmbw_status{});
        CHECK(client.send(writer.finish(1), std::span(&number, 1)));
      }
      in.reset();
      REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
      REQUIRE(room.books.elsewhere.size() == 1);
      CHECK_FALSE(*sys::poll_readable(out.get(), 0));  // its other end is open
      room.books.elsewhere.clear();
      CHECK(*sys::poll_readable(out.get(), 0));
      // Where nothing lies unread, nothing has to wait.
      RawClient next = room.greeted();
      room.books.session(2).link->take_descriptors(true);
      next.close();
      REQUIRE(room.until([&] { return room.books.count("forget") == 2; }));
      CHECK(room.books.elsewhere.empty());
    }
  }
}

TEST_CASE("more descriptors than a session may send drop it, and are not closed on the broker's thread either") {
  ON_EACH_ENGINE {
    Room room(engine);
    room.books.keeps_elsewhere = true;
    RawClient client = room.greeted();
    room.books.during_packet = [](FakeBooks::Known& from) { from.link->take_descriptors(false); };  // as HELLO does
    CHECK(room.ping(client).ok());
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const Fd out = Fd::adopt(ends[0]);
    Fd in = Fd::adopt(ends[1]);
    const int numbers[] = {out.get(), in.get()};
    std::byte buffer[256];
    wire::Writer writer(buffer);
    writer.begin(kPing, 9, Status::ok, shmbw_status{});
    CHECK(client.send(writer.finish(2), numbers));
    in.reset();
    REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
    CHECK(room.books.elsewhere.size() == 2);
    CHECK_FALSE(*sys::poll_readable(out.get(), 0));  // its other end is open
    room.books.elsewhere.clear();
    CHECK(*sys::poll_readable(out.get(), 0));
  }
}

TEST_CASE("no request is served while a reply is unread, and others are served meanwhile") {
  ON_EACH_ENGINE {
    Room room(engine);
    RawClient lazy = room.greeted(), other = room.greeted();
    room.books.served = 0;
    for (int i = 0; i < 5; ++i) Room::ask_descriptors(lazy, 3);
    room.settle();
    CHECK(room.books.served == 1);
    CHECK(room.transport.descriptors_in_flight() == 3);
    CHECK(room.ping(other).ok());
    for (int i = 1; i <= 5; ++i) {
      RawPacket reply = lazy.receive(0);
      CHECK(reply.ok());
      CHECK(reply.fds.size() == 3);
      room.settle();
      CHECK(room.books.served == 1 + std::min(i + 1, 5));  // each reply read lets one more in; 1 is the ping
    }
    CHECK(room.transport.descriptors_in_flight() == 0);
  }
}

TEST_CASE("requests without an answer are served beside an unread answer, in order, and no others are") {
  ON_EACH_ENGINE {
    Room room(engine);
    RawClient lazy = room.greeted();
    Room::ask_descriptors(lazy, 3);
    room.settle();
    room.books.served = 0;
    const auto served = [&](int count) { return room.until([&] { return room.books.served >= count; }); };
    int silent = 0;
    for (const std::uint16_t op : {SHMBW_OP_READY, SHMBW_OP_LANE_FINISHED, SHMBW_OP_QUEUE_HOLD, SHMBW_OP_RELEASE,
                                   SHMBW_OP_REF_RELEASE, SHMBW_OP_REF_SETTLE, SHMBW_OP_GPU_REPORT}) {
      CAPTURE(op);
      lazy.ask(op, shmbw_batch{}, {}, SHMBW_HEADER_NO_REPLY);
      CHECK(served(++silent));
    }
    shmbw_pool_doorbell bell{};
    bell.flags = SHMBW_DOORBELL_RING;
    lazy.ask(SHMBW_OP_POOL_DOORBELL, bell, {}, SHMBW_HEADER_NO_REPLY);
    CHECK(served(++silent));
    CHECK(room.transport.descriptors_in_flight() == 3);
    CHECK(lazy.reply(1 | std::uint64_t{3} << 32, 0).fds.size() == 3);

    // Each of these waits, and so does what comes behind it.
    bell.flags = SHMBW_DOORBELL_GET;
    const std::function<void()> answered[] = {
        [&] { lazy.ask(SHMBW_OP_RELEASE, shmbw_batch{}); },
        [&] { lazy.ask(kPing, shmbw_status{}, {}, SHMBW_HEADER_NO_REPLY); },
        [&] { lazy.ask(SHMBW_OP_POOL_DOORBELL, bell, {}, SHMBW_HEADER_NO_REPLY); },
    };
    for (const auto& ask : answered) {
      room.settle();
      Room::ask_descriptors(lazy, 3);
      room.settle();
      room.books.served = 0;
      ask();
      lazy.ask(SHMBW_OP_RELEASE, shmbw_batch{}, {}, SHMBW_HEADER_NO_REPLY);
      room.settle();
      CHECK(room.books.served == 0);
      while (lazy.receive(0).kind == RawPacket::Kind::packet) {
      }
      CHECK(served(2));
      while (lazy.receive(0).kind == RawPacket::Kind::packet) {
      }
    }
  }
}

TEST_CASE("a client that closes with requests waiting behind an unread reply ends") {
  ON_EACH_ENGINE {
    Room room(engine);
    RawClient lazy = room.greeted();
    for (int i = 0; i < 5; ++i) Room::ask_descriptors(lazy, 3);
    room.settle();
    lazy.close();
    REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
    CHECK(room.transport.descriptors_in_flight() == 0);
  }
}

namespace {

void send_events(Link& link, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t i = first; i < first + count; ++i) {
    std::byte buffer[64];
    wire::Writer writer(buffer);
    shmbw_region_gone_event event{};
    event.sequence = i;
    writer.begin(SHMBW_EVENT | SHMBW_EVENT_REGION_GONE, 0, Status::ok, event);
    link.event(writer.finish(0));
  }
  link.send_events();
}

}  // namespace

TEST_CASE("unread events hold up no request, and too many become one gap that counts the lost") {
  ON_EACH_ENGINE {
    Room room(engine);
    RawClient client = room.greeted();
    send_events(*room.books.session(1).link, 1, 300);
    CHECK(room.ping(client).ok());  // keeps the events that came before it
    CHECK(room.ping(client).ok());
    std::uint64_t expected = 1;
    for (;;) {
      room.settle();
      RawPacket event = client.event(0);
      REQUIRE(event.kind == RawPacket::Kind::packet);
      if (event.header().op == (SHMBW_EVENT | SHMBW_EVENT_GAP)) {
        CHECK(expected == 258);  // one in flight and 256 queued came
        CHECK(event.fixed<shmbw_gap_event>().lost == 43);
        CHECK(event.fixed<shmbw_gap_event>().sequence == 300);
        break;
      }
      CHECK(event.fixed<shmbw_region_gone_event>().sequence == expected++);
    }
    send_events(*room.books.session(1).link, 301, 1);
    room.settle();
    CHECK(client.event(0).fixed<shmbw_region_gone_event>().sequence == 301);
  }
}

TEST_CASE("only one event packet is ever in flight") {
  ON_EACH_ENGINE {
    Room room(engine);
    RawClient client = room.greeted();
    send_events(*room.books.session(1).link, 1, 10);
    for (std::uint64_t i = 1; i <= 10; ++i) {
      CHECK(client.receive(0).fixed<shmbw_region_gone_event>().sequence == i);
      CHECK(client.receive(0).kind == RawPacket::Kind::nothing);
      room.settle();
    }
  }
}

TEST_CASE("a reply that the kernel refuses for lack of resources is kept, and no other peer waits for it") {
  ON_EACH_ENGINE {
    for (int code : {ETOOMANYREFS, ENOBUFS, EAGAIN}) {
      CAPTURE(code);
      Room room(engine);
      RawClient unlucky = room.greeted(), other = room.greeted();
      Room::ask_descriptors(unlucky, 5);
      harness::Injected fault(fault::Call::send, code, 1, 3);  // after the client's own send
      REQUIRE(room.until([&] { return room.books.served == 3; }));
      CHECK(room.transport.in_flight().kept() == 5);
      fault::clear();
      CHECK(room.ping(other).ok());
      REQUIRE(room.until([&] { return Room::readable(unlucky); }));
      CHECK(unlucky.receive(0).fds.size() == 5);
      CHECK(room.transport.in_flight().kept() == 0);
      CHECK(room.ping(unlucky).ok());
    }
  }
}

TEST_CASE("lazy readers go only when too many descriptors are in flight, longest first, and that is not their death") {
  ON_EACH_ENGINE {
    Config config;
    config.unread_timeout = 20'000'000;
    Room room(engine, config, 100);  // half the allowance: 50
    RawClient first = room.greeted(), second = room.greeted();
    Room::ask_descriptors(first, 20);
    room.settle();
    ::usleep(30'000);
    room.settle();
    CHECK(room.books.told.empty());  // 20 is not too many, however old
    Room::ask_descriptors(second, 35);
    REQUIRE(room.until([&] { return !room.books.told.empty(); }));
    room.settle();
    CHECK(room.books.told == std::vector<std::string>{"disconnected 1"});  // 35 are left: nobody else has to go
    CHECK(room.transport.descriptors_in_flight() == 55);                   // the kernel counts what is not read yet
    CHECK(first.receive(0).fds.size() == 20);
    CHECK(first.receive(0).kind != RawPacket::Kind::nothing);
    CHECK(room.transport.descriptors_in_flight() == 35);
    CHECK(second.receive(0).fds.size() == 35);
    CHECK(room.ping(second).ok());
    CHECK(room.transport.connections() == 1);
  }
}

TEST_CASE("a process that leaves its share unread is sent no more descriptors, over any of its sessions; others are") {
  ON_EACH_ENGINE {
    Room room(engine, {}, 400);  // half is 200
    RawClient first = room.greeted(), second = room.greeted(), third = room.greeted();
    Room::ask_descriptors(first, 140);
    Room::ask_descriptors(second, 60);
    room.settle();
    CHECK(room.books.served == 5);
    Room::ask_descriptors(third, 1);
    room.settle();
    CHECK(room.books.served == 5);
    auto other = harness::Child::run([&] {
      RawClient client = RawClient::connect(room.socket_path());
      if (!client.hello().ok()) return 1;
      Room::ask_descriptors(client, 5);
      return client.receive().fds.size() == 5 ? 0 : 2;
    });
    REQUIRE(room.until([&] { return other.wait_ended(0); }));
    CHECK(other.wait() == 0);
    CHECK(second.receive(0).fds.size() == 60);
    REQUIRE(room.until([&] { return Room::readable(third); }));
    CHECK(third.receive(0).fds.size() == 1);
  }
}

TEST_CASE("over its share a process is refused a doorbell, and rings behind that all the same") {
  ON_EACH_ENGINE {
    Room room(engine, {}, 400);  // half is 200
    RawClient first = room.greeted(), second = room.greeted(), third = room.greeted();
    bool over = false;
    room.books.during_packet = [&](FakeBooks::Known& from) { over = from.link->over_share(); };
    shmbw_pool_doorbell bell{};
    bell.flags = SHMBW_DOORBELL_GET;
    CHECK(room.answer(third, third.ask(SHMBW_OP_POOL_DOORBELL, bell)).kind == RawPacket::Kind::packet);
    CHECK_FALSE(over);
    Room::ask_descriptors(first, 140);
    Room::ask_descriptors(second, 60);
    room.settle();
    const int served = room.books.served;
    const std::uint64_t asked = third.ask(SHMBW_OP_POOL_DOORBELL, bell);
    bell.flags = SHMBW_DOORBELL_RING;
    third.ask(SHMBW_OP_POOL_DOORBELL, bell, {}, SHMBW_HEADER_NO_REPLY);
    REQUIRE(room.until([&] { return room.books.served == served + 2; }));
    CHECK(over);
    CHECK(room.answer(third, asked).kind == RawPacket::Kind::packet);
    CHECK(room.ping(third).ok());
    CHECK_FALSE(over);
  }
}

TEST_CASE("a session with one unread descriptor is not disconnected for those that another process leaves unread") {
  ON_EACH_ENGINE {
    Config config;
    config.unread_timeout = 20'000'000;
    config.descriptors_reserved = 0;
    Room room(engine, config, 100);  // half the allowance: 50
    const harness::Gate over;
    auto computes = harness::Child::run([&] {
      RawClient client = RawClient::connect(room.socket_path());
      if (!client.hello().ok()) return 1;
      Room::ask_descriptors(client, 1);
      if (!over.wait()) return 2;
      return client.receive().fds.size() == 1 ? 0 : 3;
    });
    REQUIRE(room.until([&] { return room.transport.descriptors_in_flight() == 1; }));
    ::usleep(30'000);
    RawClient fills = room.greeted();  // after the other, which has waited longer
    Room::ask_descriptors(fills, 55);
    REQUIRE(room.until([&] { return !room.books.told.empty(); }));
    room.settle();
    CHECK(room.books.told == std::vector<std::string>{"disconnected 2"});
    over.open();
    REQUIRE(room.until([&] { return computes.wait_ended(0); }));
    CHECK(computes.wait() == 0);
  }
}

TEST_CASE("accept at a full table pauses the listener instead of spinning, and goes on when a descriptor is free") {
  ON_EACH_ENGINE {
    for (int code : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
      CAPTURE(code);
      Room room(engine);
      RawClient before = room.greeted();
      harness::Injected fault(fault::Call::accept, code, 1, -1);
      RawClient waiting = room.connect();
      CHECK(waiting.ask(SHMBW_OP_HELLO, RawClient::greeting()) == 1);
      room.settle();
      CHECK(fault::count(fault::Call::accept) <= 2);  // one failure is enough; the other listener may have tried
      CHECK(room.ping(before).ok());
      fault::clear();
      before.close();  // frees one
      REQUIRE(room.until([&] { return Room::readable(waiting); }));
      CHECK(waiting.receive(0).ok());
    }
  }
}

TEST_CASE("a newcomer that finds the table full is accepted as soon as the books have freed a descriptor") {
  Room room(EngineChoice::epoll);  // an edge is seen in the turn after it
  harness::Injected fault(fault::Call::accept, EMFILE, 1, -1);
  RawClient waiting = room.connect();
  CHECK(waiting.ask(SHMBW_OP_HELLO, RawClient::greeting()) == 1);
  room.settle();
  fault::clear();
  room.transport.descriptor_freed();
  for (int i = 0; i < 8; ++i) (void)room.transport.turn(0);
  CHECK(Room::readable(waiting));
}

TEST_CASE("ordinary clients leave the reserve alone, admins may use it") {
  ON_EACH_ENGINE {
    auto probe = Fd::adopt(::dup(0));
    Config config;
    config.descriptors_reserved = 20;  // half of it is for being told that the table is full
    Room room(engine, config, static_cast<std::uint64_t>(probe.get()) + 30);
    std::vector<RawClient> clients;
    // Each costs two here, the client's end and the broker's, and one for its pidfd.
    for (int i = 0; i < 8; ++i) {
      clients.push_back(room.connect());
      clients.back().ask(SHMBW_OP_HELLO, RawClient::greeting());
      room.settle();
    }
    std::size_t served = room.transport.connections();
    CHECK(served < 8);
    RawClient admin = room.greeted(true);
    CHECK(room.ping(admin).ok());
    for (std::size_t i = 0; i < 3; ++i) clients[i].close();
    REQUIRE(room.until([&] { return Room::readable(clients[served]); }));
    CHECK(clients[served].receive(0).ok());
  }
}

// A second round as the kernel of Debian 12, which gives a peer's pidfd only after HELLO, and no way that it died.
#define ON_LINUX_6_1_TOO()                        \
  std::optional<harness::PretendedKernel> linux_; \
  SUBCASE("this kernel") {}                       \
  SUBCASE("Linux 6.1") { linux_.emplace(6, 1); }

TEST_CASE("the end of a process is reported with the way it died, where the kernel knows it") {
  ON_EACH_ENGINE {
    ON_LINUX_6_1_TOO();
    Room room(engine);
    room.books.wants = true;
    auto child = harness::Child::run([&] {
      RawClient client = room.connect();
      client.hello();
      ::raise(SIGKILL);
      return 0;
    });
    REQUIRE(room.until([&] { return room.books.count("eof") == 1; }));
    child.wait();
    REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
    std::vector<std::string> expected = {"eof 1", kernel().exit_info ? "died 1 by 9" : "died 1 ?", "forget 1"};
    CHECK(room.books.told == expected);
  }
}

TEST_CASE("the pidfd of a process that is asked how it ended is the books' to count, or is not kept") {
  ON_EACH_ENGINE {
    ON_LINUX_6_1_TOO();
    Room room(engine);
    room.books.wants = true;
    RawClient client = room.greeted();
    client.close();
    REQUIRE(room.until([&] { return room.books.count("eof") == 1; }));
    CHECK(room.books.pidfds == 1);
    CHECK(room.transport.descriptors() == 0);
    REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
    CHECK(room.books.pidfds == 0);
    room.books.room_for_pidfds = false;
    RawClient next = room.greeted();
    next.close();
    REQUIRE(room.until([&] { return room.books.count("eof") == 2; }));
    CHECK(room.books.told.back() == "forget 2");
    CHECK(room.books.pidfds == 0);
  }
}

TEST_CASE(
    "the books hear of a request that they hold and whose client is gone, before the packets behind it are served") {
  ON_EACH_ENGINE {
    Room room(engine);
    RawClient client = room.greeted();
    room.books.holds = true;
    client.ask(kPing, shmbw_status{});
    REQUIRE(room.until([&] { return room.books.served == 2; }));
    CHECK(client.ask(kSilent, shmbw_status{}) != 0);
    room.settle();
    CHECK(room.books.served == 2);  // it waits
    CHECK(room.books.count("given up") == 0);
    client.close();
    REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
    CHECK(room.books.told.front() == "given up 1 op " + std::to_string(kPing));
    CHECK(room.books.served == 3);
  }
}

TEST_CASE("a process whose forked child holds the socket dies without an end of file: an heir goes on") {
  ON_EACH_ENGINE {
    ON_LINUX_6_1_TOO();
    Room room(engine);
    harness::Gate gate;
    auto child = harness::Child::run([&] {
      RawClient client = room.connect();
      client.hello();
      if (::fork() == 0) {
        gate.wait();
        ::_exit(0);
      }
      return 3;
    });
    REQUIRE(room.until([&] { return room.books.count("died") == 1; }));
    CHECK(room.books.count("eof") == 0);
    CHECK(room.transport.connections() == 1);
    gate.open();
    REQUIRE(room.until([&] { return room.books.count("forget") == 1; }));
    CHECK(room.books.count("died") == 1);
    CHECK(room.books.count("eof") == 1);
    child.wait();
  }
}

TEST_CASE("without SO_PEERPIDFD a pidfd counts only once HELLO's start time has confirmed it") {
  ON_EACH_ENGINE {
    harness::PretendedKernel older(6, 1);
    Room room(engine);
    SUBCASE("the right start time") {
      RawClient client = room.greeted();
      CHECK(room.books.confirmed);
      CHECK(room.books.session(1).link->peer().has_pidfd);
    }
    SUBCASE("a /proc that hides the client") {
      RawClient client = room.connect();
      std::uint64_t tag = client.ask(SHMBW_OP_HELLO, RawClient::greeting());
      harness::Injected fault(fault::Call::open, ENOENT, 1, -1);
      CHECK(room.answer(client, tag).ok());
      CHECK_FALSE(room.books.session(1).link->peer().has_pidfd);
    }
    SUBCASE("a wrong one") {
      RawClient client = room.connect();
      shmbw_hello hello = RawClient::greeting();
      hello.start_time += 1;
      CHECK(room.answer(client, client.ask(SHMBW_OP_HELLO, hello)).ok());
      CHECK_FALSE(room.books.confirmed);
      CHECK_FALSE(room.books.session(1).link->peer().has_pidfd);
    }
  }
}

TEST_CASE("a fact that the kernel does not give about a peer is unknown, never a reason to refuse") {
  ON_EACH_ENGINE {
    harness::Injected fault(fault::Call::peer_pidfd, EMFILE, 1, -1);
    fault::inject(fault::Call::pidfd_open, EMFILE, 1, -1);
    Room room(engine);
    RawClient client = room.greeted();
    CHECK_FALSE(room.books.session(1).link->peer().has_pidfd);
    CHECK(room.books.session(1).link->peer().uid == ::getuid());
    CHECK(room.ping(client).ok());
  }
}

TEST_CASE("an engine that cannot watch one more thing costs that connection, or its pidfd, and no other") {
  Room room(EngineChoice::epoll);
  RawClient before = room.greeted();
  {
    harness::Injected fault(fault::Call::epoll, ENOSPC, 1, 1);
    RawClient refused = room.connect();
    REQUIRE(room.until([&] { return Room::readable(refused); }));
    CHECK(refused.receive(0).kind == RawPacket::Kind::end_of_file);
  }
  {
    harness::Injected fault(fault::Call::epoll, ENOSPC, 2, 1);
    RawClient unwatched = room.greeted();
    CHECK_FALSE(room.books.sessions.back().link->peer().has_pidfd);
    CHECK(room.ping(unwatched).ok());
  }
  CHECK(room.ping(before).ok());
}

namespace {
// The kernel may take its time with what a ring is asked: a turn need not bring every answer.
bool all_answered(const std::vector<RawClient>& clients) {
  return std::ranges::all_of(clients, [](const RawClient& client) {
    pollfd answer{client.fd(), POLLIN, 0};
    return ::poll(&answer, 1, 0) == 1;
  });
}
}  // namespace

TEST_CASE("a request in steady state allocates nothing in the transport") {
  ON_EACH_ENGINE {
    Room room(engine);
    std::vector<RawClient> clients(10);
    for (RawClient& client : clients) client = room.greeted();
    for (RawClient& client : clients) CHECK(room.ping(client).ok());
    for (int round = 0; round < 50; ++round) {
      std::vector<std::uint64_t> tags;
      for (RawClient& client : clients) tags.push_back(client.ask(kPing, shmbw_status{}));
      {
        AllocationsForbidden here;
        for (int i = 0; i < 10'000 && !all_answered(clients); ++i) (void)room.transport.turn(1'000'000);
        CHECK(here.seen() == 0);
      }
      for (std::size_t i = 0; i < clients.size(); ++i) CHECK(clients[i].reply(tags[i], 0).ok());
    }
  }
}

TEST_CASE("books that refuse a connection, deadlines of theirs, and the idle end") {
  ON_EACH_ENGINE {
    Config config;
    config.idle_exit = 20'000'000;
    Room room(engine, config);
    room.books.refuse = true;
    RawClient refused = room.connect();
    REQUIRE(room.until([&] { return Room::readable(refused); }));
    CHECK(refused.receive(0).kind == RawPacket::Kind::end_of_file);
    room.books.refuse = false;
    room.books.deadline = sys::now_boottime();
    REQUIRE(room.until([&] { return room.books.count("tick") == 1; }));
    room.books.is_idle = true;
    CHECK(room.transport.run() == Transport::End::idle);
  }
}

TEST_CASE("the idle time begins when the last client has left, however long the broker had been idle before it came") {
  constexpr std::int64_t kIdle = 2'000'000'000;
  ON_EACH_ENGINE {
    Config config;
    config.idle_exit = kIdle;
    Room room(engine, config);
    room.books.is_idle = true;
    room.settle();
    std::int64_t leaves = 0;
    {
      RawClient client = room.connect();
      REQUIRE(room.until([&] { return room.transport.connections() == 1; }));
      for (int i = 0; i < 20; ++i) (void)room.transport.turn(10'000'000);
      leaves = sys::now_boottime();
    }
    CHECK(room.transport.run() == Transport::End::idle);
    CHECK(sys::now_boottime() - leaves >= kIdle);
  }
}

TEST_CASE("a transport that has been closed leaves its engine to the next one, also when it goes") {
  ON_EACH_ENGINE {
    const ChosenEngine chosen = std::move(*choose_engine(engine));
    FakeBooks books;
    auto closed = std::make_unique<Transport>(*chosen.engine, Config{}, 4096);
    REQUIRE(closed->attach(books));
    closed->close_all();
    CHECK_FALSE(chosen.engine->discard);
    CHECK_FALSE(chosen.engine->turns.after);
    Transport next(*chosen.engine, Config{}, 4096);
    REQUIRE(next.attach(books));
    closed.reset();
    CHECK(chosen.engine->discard);
    CHECK(chosen.engine->turns.after);
  }
}

TEST_CASE("a kernel short of memory when a packet is fetched ends no session") {
  for (EngineChoice engine : engine_choices()) {
    Room room(engine);
    RawClient client = room.greeted();
    for (const int code : {ENOMEM, ENOBUFS}) {
      // io_uring asks for a packet before it comes: there it is the next one that is not had at once.
      const std::uint64_t tag = client.ask(kPing, shmbw_status{});
      {
        const harness::Injected fault(fault::Call::receive, code, 1, 2);
        for (int turn = 0; fault::count(fault::Call::receive) < 2 && turn < 30'000; ++turn)
          REQUIRE(room.transport.turn(1'000'000));
        CHECK(fault::count(fault::Call::receive) >= 2);
      }
      CHECK(room.answer(client, tag).ok());
      CHECK(room.ping(client).ok());
    }
  }
}

TEST_CASE("a kernel that stays short of memory is asked again at intervals, and clients are then served") {
  for (EngineChoice engine : engine_choices()) {
    for (const int code : {ENOMEM, ENOBUFS}) {
      Room room(engine);
      RawClient client = room.greeted();
      constexpr std::int64_t kLeastPause = 9'000'000;  // the engine's own, less what epoll rounds
      const std::int64_t began = sys::now_monotonic();
      const std::uint64_t tag = client.ask(kPing, shmbw_status{});
      {
        const harness::Injected fault(fault::Call::receive, code, 1, -1);
        for (int turn = 0; turn < 1000; ++turn) REQUIRE(room.transport.turn(0));
        // As many as the time that has passed allows, however long this was kept from running.
        CHECK(fault::count(fault::Call::receive) >= 1);
        CHECK(fault::count(fault::Call::receive) <= 1 + (sys::now_monotonic() - began) / kLeastPause);
        RawClient gone = room.connect();
        gone.ask(kPing, shmbw_status{});
        REQUIRE(room.transport.turn(0));
      }  // it hangs up while its packet is not had
      CHECK(room.answer(client, tag).ok());
      CHECK(room.ping(client).ok());
    }
  }
}
