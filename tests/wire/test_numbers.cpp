// SPDX-License-Identifier: Apache-2.0
// A client that has asked for numbers (feature RESUME) and sends wrong ones: gaps, repetitions, lies. It hurts itself
// alone. No packet is served twice or out of its order, no descriptor stays, and the session goes on with the next
// packet that is right.
#include <doctest/doctest.h>

#include <random>

#include "base/sys_socket.hpp"
#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

RawClient numbered(const BrokerFixture& broker) {
  RawClient client = RawClient::connect(broker.socket());
  shmbw_hello hello = RawClient::greeting();
  hello.features = SHMBW_FEATURE_RESUME | SHMBW_FEATURE_PASS_RIGHTS;
  RawPacket reply = client.call(SHMBW_OP_HELLO, hello);
  REQUIRE_MESSAGE(reply.ok(), reply.sentence());
  CHECK((reply.fixed<shmbw_hello_reply>().features & SHMBW_FEATURE_RESUME) != 0);
  return client;
}

Packet create(std::uint64_t number) {
  shmbw_create wish{};
  wish.length = 4096;
  return batch(SHMBW_OP_CREATE, number, std::vector{wish});
}
Packet status(std::uint64_t number, std::uint16_t flags = 0) {
  return plain(SHMBW_OP_STATUS, number, shmbw_status{}, {}, flags);
}

}  // namespace

TEST_CASE("packets with wrong numbers are dropped, whatever their order, and each right one is served once") {
  on_each_engine({.seam = "resume"}, [](BrokerFixture& broker) {
    const Books before = books_of(broker);
    const std::size_t descriptors = descriptors_at_rest(broker);
    {
      RawClient client = numbered(broker);
      std::mt19937_64 random(11);
      std::uint64_t next = 2, served = 0;
      for (int round = 0; round < 400; ++round) {
        // The number of the last answer is a right one: it asks for that answer again (test_twice.cpp).
        const std::uint64_t wrong[] = {0, 1, next - 2, next + 1, next + 1 + random() % 1000, UINT64_MAX, random()};
        for (std::uint64_t number : wrong)
          if (number != next && number != next - 1) REQUIRE(client.send(create(number)));
        if (round % 3 != 0) continue;
        REQUIRE(client.send(create(next)));
        RawPacket reply = client.receive();
        REQUIRE(reply.ok());
        REQUIRE(reply.header().tag == next);
        ++next, ++served;
      }
      REQUIRE(client.send(status(next)));
      RawPacket reply = client.reply(next);
      REQUIRE(reply.ok());
      CHECK(reply.fixed<shmbw_status_reply>().regions == served + before.regions);
      CHECK(client.receive(50).kind == RawPacket::Kind::nothing);
      CHECK(greeted(broker).status().ok());  // others are served
    }
    CHECK(settled(broker, before, descriptors) == "");
  });
}

TEST_CASE("descriptors of a packet that is dropped for its number are closed") {
  on_each_engine({.seam = "resume"}, [](BrokerFixture& broker) {
    RawClient client = numbered(broker);
    REQUIRE(client.send(status(2)));
    REQUIRE(client.reply(2).ok());
    const std::size_t before = broker.descriptors();
    auto ends = shmb::sys::seqpacket_pair();
    REQUIRE(ends);
    const int end[] = {(*ends)[0].get()};
    for (int i = 0; i < 50; ++i) {
      Packet set = plain(SHMBW_OP_POOL_DOORBELL, 7, shmbw_pool_doorbell{1, SHMBW_DOORBELL_SET, 0, 0, 0});
      set_header(set, [&] {
        shmbw_header header = header_of(set);
        header.n_fds = 1;
        return header;
      }());
      REQUIRE(client.send(set, end));
    }
    REQUIRE(client.send(status(3)));
    REQUIRE(client.reply(3).ok());
    CHECK(eventually([&] { return broker.descriptors() <= before; }));
  });
}

TEST_CASE("one-way messages that come again are served once, and wrong ones never") {
  on_each_engine({.seam = "resume"}, [](BrokerFixture& broker) {
    RawClient client = numbered(broker);
    REQUIRE(client.send(create(2)));
    RawPacket made = client.reply(2);
    REQUIRE(made.ok());
    const shmbw_region_ref region = made.element<shmbw_create_reply>(0).region;
    shmbw_attach wish{};
    wish.by = SHMBW_ATTACH_BY_ID;
    wish.rights = kRights;
    wish.region = region;
    REQUIRE(client.send(batch(SHMBW_OP_ATTACH, 3, std::vector{wish})));
    REQUIRE(client.reply(3).ok());
    // Two leases. One release, sent many times.
    for (const std::uint64_t number : {5, 4, 4, 4, 6, 2, 4})
      REQUIRE(client.send(
          batch(SHMBW_OP_RELEASE, number, std::vector{shmbw_release{region, 1, 0}}, {}, SHMBW_HEADER_NO_REPLY)));
    REQUIRE(client.send(status(5)));
    RawPacket reply = client.reply(5);
    REQUIRE(reply.ok());
    CHECK(reply.fixed<shmbw_status_reply>().regions == 1);
  });
}

TEST_CASE("a session without the feature chooses its tags as it likes") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    for (const std::uint64_t tag : {9, 9, 0, 1}) {
      REQUIRE(client.send(status(tag)));
      CHECK(client.reply(tag).ok());
    }
    REQUIRE(client.send(status(4, SHMBW_HEADER_RESUMED)));
    CHECK(client.reply(4).ok());
    // A one-way message with the flag is one-way: it may be served while an answer is unread.
    REQUIRE(client.send(batch(SHMBW_OP_RELEASE, 5, std::vector{shmbw_release{{99, 1, 0}, 1, 0}}, {},
                              SHMBW_HEADER_NO_REPLY | SHMBW_HEADER_RESUMED)));
    REQUIRE(client.send(status(6)));
    CHECK(client.receive().header().tag == 6);
  });
}

}  // namespace wire_test
